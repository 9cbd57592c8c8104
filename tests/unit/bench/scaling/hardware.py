"""A replica whose times are round numbers."""

from __future__ import annotations

from bench.scaling.hardware import Hardware

PLAIN = Hardware(
    slots=2,
    cold_start_s=10.0,
    gpus=1.0,
    prompts_s=((1.0, 0.5), (1000.0, 0.5)),
    batched_tokens=1000,
    host_s=(0.0, 0.0, 0.0),
    pass_s=(0.1, 0.1, 0.1),
)
"""A prompt takes 0.5 s, a step 0.1 s: an answer of 96 tokens alone 10 s."""
