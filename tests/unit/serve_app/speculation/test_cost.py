"""The model of step times: curve fitting, learning, robustness."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from math import isfinite

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.speculation.cost import CostModel, StepTime
from serve_app.speculation.cost_curve import Point, StepCost, convex_fit, verify_curve


def learned(steps: list[StepTime], model: CostModel | None = None) -> tuple[CostModel, StepCost]:
    model = model or CostModel.new()
    for seen in steps:
        model = model.after(seen, model.cost())
    return model, model.cost()


def steps_of(
    step_s: Callable[[int, int], float], batches: list[tuple[int, int]], noise: float = 0.03, requests: int = 8
) -> list[StepTime]:
    """Steps with these (tokens, depth), the times from the machine and some scatter."""
    rng = random.Random(3)
    return [
        StepTime(step_s(tokens, depth) * rng.lognormvariate(0, noise), tokens, requests, depth)
        for tokens, depth in batches
    ]


def wandering(least: int, most: int, count: int, deepest: int = 3) -> list[tuple[int, int]]:
    rng = random.Random(4)
    return [(rng.randint(least, most), rng.randint(0, deepest)) for _ in range(count)]


# --- curves ---


def test_points_on_a_convex_curve_are_kept() -> None:
    points = [Point(1, 10, 1), Point(2, 10, 1), Point(4, 12, 1), Point(8, 20, 1)]
    assert convex_fit(points) == ([10, 10, 12, 20], [0, 1, 2])


def test_slopes_that_fall_are_pooled_by_their_certainty() -> None:
    # Slopes 2 and 0, equally certain: both become 1, and the mean stays (10 + 12 + 12) / 3 = 34 / 3.
    values, slopes = convex_fit([Point(0, 10, 1), Point(1, 12, 1), Point(2, 12, 1)])
    assert slopes == [1, 1]
    assert values == pytest.approx([31 / 3, 34 / 3, 37 / 3])


def test_a_falling_curve_is_taken_for_flat() -> None:
    values, slopes = convex_fit([Point(1, 12, 1), Point(2, 10, 1)])
    assert (values, slopes) == ([11, 11], [0])


@given(
    st.lists(
        st.tuples(st.integers(1, 4096), st.floats(0.001, 10), st.floats(0.001, 1)),
        min_size=1,
        max_size=30,
        unique_by=lambda point: point[0],
    )
)
def test_any_points_give_an_increasing_convex_curve(points: list[tuple[int, float, float]]) -> None:
    knots, times, slopes = verify_curve([Point(*point) for point in sorted(points)], 0.01)
    assert knots[0] == 1
    assert all(less < more for less, more in pairwise(knots))
    assert all(slope >= -1e-12 for slope in slopes)
    assert all(more >= less - 1e-9 for less, more in pairwise(slopes))
    for index, (here, there) in enumerate(pairwise(knots)):
        assert times[index] + slopes[index] * (there - here) == pytest.approx(times[index + 1])


def test_a_wide_gap_begins_as_cheap_as_it_may_be() -> None:
    # From 128 tokens to 1280 nothing was seen: up to 192 it may be flat, then it must rise to 43.
    knots, times, _ = verify_curve([Point(128, 10, 1), Point(1280, 43, 1)], 0.0)
    assert list(knots) == [1, 128, 192, 1280]
    assert list(times) == [10, 10, 10, 43]


# --- learning ---


def test_before_any_step_the_prior_is_used() -> None:
    cost = CostModel.new().cost()
    assert cost.verify(1) == pytest.approx(0.02)
    assert cost.verify(11) == pytest.approx(0.02 * 1.1)
    assert cost.draft(3, 1) == pytest.approx(3 * 0.002)


def test_a_linear_machine_with_free_drafts_is_learned() -> None:
    _, cost = learned(steps_of(lambda tokens, depth: 0.035 + 0.0025 * tokens, wandering(8, 72, 600)))
    for tokens in (8, 16, 32, 64):
        assert cost.verify(tokens) == pytest.approx(0.035 + 0.0025 * tokens, rel=0.03)
    assert cost.draft(1, 8) == pytest.approx(0, abs=0.001)


def test_a_knee_and_the_cost_of_drafts_are_learned() -> None:
    def step_s(tokens: int, depth: int) -> float:
        return 0.010 * max(1.0, tokens / 256) + 0.0012 * depth

    _, cost = learned(steps_of(step_s, wandering(128, 640, 600)))
    # Within a cell (a quarter of an octave) the knee is rounded.
    for tokens in (128, 200, 256, 384, 600):
        assert cost.verify(tokens) == pytest.approx(step_s(tokens, 0), rel=0.06)
    assert cost.draft(1, 8) == pytest.approx(0.0012, rel=0.15)


def test_a_few_plain_steps_separate_drafting_from_verifying() -> None:
    # Always depth 4 and 5 tokens, but for one plain step in 50: its drafts are missing one step later.
    def step_s(tokens: int, depth: int) -> float:
        return 0.010 + 0.001 * tokens + 0.005 * depth

    batches = [(5, 4)] * 40 + [(5, 0), (1, 4), *[(5, 4)] * 48] * 6
    _, cost = learned(steps_of(step_s, batches, noise=0.01, requests=1))
    assert cost.draft(4, 1) == pytest.approx(0.020, rel=0.1)
    assert cost.verify(1) == pytest.approx(0.011, rel=0.1)
    assert cost.verify(5) == pytest.approx(0.015, rel=0.1)


def test_what_drafts_cost_more_in_a_larger_batch_is_learned() -> None:
    rng = random.Random(5)
    steps = []
    for _ in range(1500):
        requests, depth = rng.choice((1, 16, 64)), rng.randint(0, 4)
        steps.append(StepTime(0.01 + depth * (0.001 + 0.00002 * (requests - 1)), requests, requests, depth))
    _, cost = learned(steps)
    for requests in (1, 16, 64):
        assert cost.draft(1, requests) == pytest.approx(0.001 + 0.00002 * (requests - 1), rel=0.1)


def test_a_step_that_waited_for_a_compile_changes_next_to_nothing() -> None:
    model, before = learned(steps_of(lambda tokens, depth: 0.02, [(8, 0)] * 100))
    _, after = learned([StepTime(36.0, 8, 8, 0)], model)
    assert after.verify(8) == pytest.approx(before.verify(8), rel=0.02)


def test_a_slow_first_step_of_a_size_is_forgotten_with_the_second() -> None:
    _, cost = learned([StepTime(36.0, 8, 8, 0), StepTime(0.02, 8, 8, 0)])
    assert cost.verify(8) == pytest.approx(0.02)


def test_a_slower_machine_is_followed_also_at_sizes_not_seen_since() -> None:
    def step_s(tokens: int, depth: int) -> float:
        return 0.02 + 0.001 * tokens

    model, _ = learned(steps_of(step_s, wandering(8, 64, 600)))
    # Other work takes half of the machine; only steps of 8 tokens are run from then on.
    _, cost = learned([StepTime(2 * step_s(8, 0), 8, 8, 0)] * 20, model)
    assert cost.verify(8) == pytest.approx(2 * step_s(8, 0), rel=0.05)
    assert cost.verify(64) == pytest.approx(2 * step_s(64, 0), rel=0.1)


def test_what_was_learned_stays_while_another_step_runs_a_thousand_times() -> None:
    def step_s(tokens: int, depth: int) -> float:
        return 0.02 + 0.001 * tokens + 0.004 * depth

    model, _ = learned(steps_of(step_s, wandering(8, 64, 300)))
    _, cost = learned(steps_of(step_s, [(40, 3)] * 1000), model)
    assert cost.verify(8) == pytest.approx(step_s(8, 0), rel=0.08)
    assert cost.verify(64) == pytest.approx(step_s(64, 0), rel=0.08)
    assert cost.draft(1, 8) == pytest.approx(0.004, rel=0.15)


def test_twice_the_tokens_are_tried_where_they_may_be_free() -> None:
    # Only 128 tokens and prefills were seen: nothing says yet that 192 take longer.
    _, cost = learned(steps_of(lambda tokens, depth: 0.01 * max(1.0, tokens / 256), [(128, 0), (2048, 0)] * 10))
    assert cost.verify(192) == pytest.approx(cost.verify(128), rel=0.01)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_no_step_can_have_is_ignored(seconds: float) -> None:
    model, _ = learned(steps_of(lambda tokens, depth: 0.02, [(8, 0)] * 10))
    assert learned([StepTime(seconds, 8, 8, 0)], model)[0] is model


@settings(max_examples=40)
@given(
    st.lists(
        st.builds(
            StepTime,
            seconds=st.floats(1e-6, 1e4),
            tokens=st.integers(1, 8192),
            requests=st.integers(0, 256),
            depth=st.integers(0, 8),
        ),
        max_size=80,
    )
)
def test_any_steps_keep_all_costs_finite_and_the_curve_rising(steps: list[StepTime]) -> None:
    model, cost = learned(steps)
    assert 0 < model.scatter <= 1
    assert all(isfinite(time) and time > 0 for time in cost.at_knot_s[1:])
    assert all(isfinite(slope) and slope >= 0 for slope in cost.slope_s)
    for requests in (1, 64):
        draft = cost.draft(3, requests)
        assert isfinite(draft)
        assert draft >= 0
    times = [cost.verify(tokens) for tokens in (1, 2, 3, 9, 100, 1000, 10_000)]
    assert all(0 < less <= more * (1 + 1e-9) for less, more in pairwise(times))
