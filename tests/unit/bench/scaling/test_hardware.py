"""The speed of a tier's replica is that of the catalogue's estimates."""

from __future__ import annotations

import numpy as np
import pytest

from bench.scaling.hardware import hardware_of
from cluster.catalogue.memory import MEAN_REQUEST_TOKENS
from cluster.catalogue.speed import coefficients, prefill_ms, step_ms
from cluster.catalogue.types import catalogue
from router.registry import TIER_NAMES, TierName
from tests.unit.bench.scaling.hardware import PLAIN


@pytest.mark.parametrize(
    ("tier", "model", "gpu", "parallel"),
    [("eco", "qwen3-4b-instruct-2507-w4a16", "L4", 1), ("ultra", "llama-3.3-70b-instruct-fp8", "H100", 2)],
)
@pytest.mark.parametrize("batch", [1, 8, 32, 64])
def test_a_step_takes_what_the_catalogue_estimates(
    tier: TierName, model: str, gpu: str, parallel: int, batch: int
) -> None:
    step_s = hardware_of(tier).step_s(batch, batch * MEAN_REQUEST_TOKENS)
    assert step_s == pytest.approx(step_ms(model, gpu, parallel, batch) / 1000)


def test_a_prompt_takes_its_estimated_time_and_a_long_one_more_than_in_proportion() -> None:
    # 73 ms for 512 tokens (bench/results/estimates.md), and under 1% for their attention.
    eco = hardware_of("eco")
    assert eco.prompt_s(512) == pytest.approx(0.073, rel=0.02)
    # 8192 tokens: 2 x 8192^2 x 32 heads x 128 x 36 layers operations at 121 TFLOPS are 0.164 s.
    model, card = catalogue().models["qwen3-4b-instruct-2507-w4a16"], coefficients()["L4"]
    linear_s = prefill_ms(model, catalogue().gpus["L4"], card, 1, 8192) / 1000
    assert eco.prompt_s(8192) - linear_s == pytest.approx(0.164, rel=0.01)


@pytest.mark.parametrize("tier", TIER_NAMES)
def test_longer_prompts_and_larger_batches_take_longer(tier: TierName) -> None:
    hardware = hardware_of(tier)
    assert np.all(np.diff(hardware.prefill_s(np.array([100.0, 1000.0, 10_000.0]))) > 0)
    steps = [hardware.step_s(batch, 1000.0 * batch) for batch in range(1, hardware.slots + 1)]
    assert steps == sorted(steps)


def test_the_work_of_a_request_is_its_prompt_and_its_share_of_full_steps() -> None:
    # Two slots: 0.5 s, and 95 tokens in steps of 0.1 s that advance two requests.
    assert PLAIN.work_s(np.array([1.0]), np.array([96.0])) == pytest.approx([0.5 + 95 * 0.05])
