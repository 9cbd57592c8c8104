"""What the worker measured of a step: the time of the forward pass and that of drafting, told apart.

The worker writes it on vLLM's `ModelRunnerOutput` (`worker/step_clock.py`), which carries it to the scheduler, between
processes by pickle. `scheduler.py` gives it to the controller.
"""

from __future__ import annotations

from typing import Final, NamedTuple

TIMES_ATTRIBUTE: Final = "power_lever_times"
"""Attribute of vLLM's `ModelRunnerOutput`."""


class StepTimes(NamedTuple):
    """Times of one engine step on the device.

    Drafts are made while the step's output is already on its way, so their time comes with the next step's output.
    """

    verify_s: float
    """From the step's first work to its sampled tokens, s: the forward pass and what goes with it."""
    draft_s: float | None
    """Of the drafting that came before this step, s; None: not known, or the draft model also read a prompt."""
    depth: int
    """Draft iterations in `draft_s`. n-gram lookup beside an own draft counts none."""
    idle_s: float = 0.0
    """From the end of the work of the step before to the step's first work, s: what the device waited for the host, or
    for requests."""
