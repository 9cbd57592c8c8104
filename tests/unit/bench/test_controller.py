"""`bench.controller` times every call of the controller."""

from __future__ import annotations

import pytest

from bench.closed_loop.shapes import Shape
from bench.controller import SHAPES, measure


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_both_calls_of_every_step_are_timed(shape: Shape) -> None:
    row = measure(shape, 4, 20)
    steps, decide, observe, both = (row[key] for key in ("steps", "decide_mean_ms", "observe_mean_ms", "both_mean_ms"))
    assert isinstance(steps, int)
    assert isinstance(decide, float)
    assert isinstance(observe, float)
    assert isinstance(both, float)
    assert 4 < steps < 80
    assert min(decide, observe, both) > 0
