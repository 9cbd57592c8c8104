"""The model of step times: curve fitting, learning, robustness."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.speculation.cost import Costs, CostTable, Key, StepTime
from serve_app.speculation.cost_curve import Point, convex_fit, verify_curve
from serve_app.speculation.settings import EngineFacts

K_MAX = 8
NO_GRAPHS = EngineFacts()
GRAPHS = EngineFacts(graph="per_k")
FIRST = StepTime(1.0, 100, False, 0)
"""An engine's first step, which waits for compilation."""


def learned(steps: list[StepTime], table: CostTable | None = None, facts: EngineFacts = NO_GRAPHS) -> Costs:
    """What a table predicts after these steps; a new table sees an engine's first step before them."""
    if table is None:
        table = CostTable(facts, K_MAX)
        steps = [FIRST, *steps]
    for seen in steps:
        table.observe(seen)
    return table.refit()


def steps_of(
    step_s: Callable[[int, int], float], batches: list[tuple[int, int]], noise: float = 0.03
) -> list[StepTime]:
    """Steps with these (tokens, depth), the times from the machine and some scatter."""
    rng = random.Random(3)
    return [
        StepTime(step_s(tokens, depth) * rng.lognormvariate(0, noise), tokens, False, depth)
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
    cost = CostTable(NO_GRAPHS, K_MAX).refit().in_graph
    assert cost.verify(1) == pytest.approx(0.02)
    assert cost.verify(21) == pytest.approx(0.02 * 1.1)
    assert cost.draft(3) == pytest.approx(3 * 0.001)


def test_a_linear_machine_with_free_drafts_is_learned() -> None:
    costs = learned(steps_of(lambda tokens, depth: 0.035 + 0.0025 * tokens, wandering(8, 72, 300)))
    for tokens in (8, 16, 32, 64):
        assert costs.in_graph.verify(tokens) == pytest.approx(0.035 + 0.0025 * tokens, rel=0.04)
    assert costs.in_graph.draft(1) == pytest.approx(0, abs=0.0015)


def test_a_knee_and_the_cost_of_drafts_are_learned_from_whole_steps() -> None:
    def step_s(tokens: int, depth: int) -> float:
        return 0.010 * max(1.0, tokens / 256) + 0.0012 * depth

    cost = learned(steps_of(step_s, wandering(128, 640, 400))).in_graph
    for tokens in (128, 200, 300, 384, 600):
        assert cost.verify(tokens) == pytest.approx(step_s(tokens, 0), rel=0.03)
    # Within a cell (a quarter of an octave) the knee is rounded.
    assert cost.verify(256) == pytest.approx(step_s(256, 0), rel=0.07)
    assert cost.draft(1) == pytest.approx(0.0012, rel=0.2)


def test_drafting_measured_apart_is_not_guessed() -> None:
    table = CostTable(NO_GRAPHS, K_MAX)
    learned([FIRST, *steps_of(lambda tokens, depth: 0.01, [(8, 0)] * 20)], table)
    # The first iteration takes longer than the others.
    for depth, seconds in [(1, 0.003), (4, 0.006)] * 20:
        table.observe_draft(seconds, depth)
    cost = table.refit().in_graph
    assert cost.draft(1) == pytest.approx(0.003, rel=0.07)
    assert cost.draft(4) == pytest.approx(0.006, rel=0.07)
    assert cost.draft(0) == 0


@pytest.mark.parametrize(
    ("draft", "paid"), [("depth", (0, 1, 4)), ("k_max", (0, 8, 8)), ("always", (8, 8, 8))], ids=lambda value: str(value)
)
def test_iterations_are_paid_as_the_engine_drafts(draft: str, paid: tuple[int, ...]) -> None:
    table = CostTable(EngineFacts.model_validate({"draft": draft}), K_MAX)
    learned([FIRST, *steps_of(lambda tokens, depth: 0.01, [(8, 0)] * 20)], table)
    for _ in range(30):
        table.observe_draft(0.004, 8)
    cost = table.refit().in_graph
    assert [cost.draft(depth) for depth in (0, 1, 4)] == pytest.approx([0.0005 * each for each in paid], rel=0.1)


def in_graph_s(tokens: int) -> float:
    return 0.006 + 0.00003 * tokens


@pytest.mark.parametrize("piecewise_s", [0.0005, 0.0015, 0.006])
def test_what_a_step_without_a_graph_takes_more_is_learned_and_holds_at_other_sizes(piecewise_s: float) -> None:
    rng = random.Random(5)
    steps = []
    for _ in range(150):
        tokens, captured = rng.choice((8, 16, 32, 64)), rng.random() < 0.5
        seconds = in_graph_s(tokens) + (0.0 if captured else piecewise_s)
        steps.append(StepTime(seconds * rng.lognormvariate(0, 0.02), tokens, captured, 0))
    costs = learned([*steps, *[StepTime(in_graph_s(24), 24, True, 0)] * 5], facts=GRAPHS)
    assert costs.step_s(24, 0, captured=True) == pytest.approx(in_graph_s(24), rel=0.03)
    # A size that never ran without a graph.
    assert costs.step_s(24, 0, captured=False) == pytest.approx(in_graph_s(24) + piecewise_s, rel=0.05)


def test_without_graphs_no_step_is_dearer_for_lack_of_one() -> None:
    costs = learned(steps_of(lambda tokens, depth: 0.02, [(8, 0), (16, 0)] * 20))
    assert costs.in_graph == costs.piecewise


def test_a_measured_cell_counts_more_than_the_curve() -> None:
    # Time jumps from 16 to 18 tokens, which no convex curve does.
    def step_s(tokens: int, depth: int) -> float:
        return 0.006 if tokens <= 16 else 0.0075

    costs = learned(steps_of(step_s, [(tokens, 0) for tokens in (8, 12, 16, 20, 24, 32)] * 40))
    for tokens in (12, 16, 20, 32):
        assert costs.step_s(tokens, 0, captured=False) == pytest.approx(step_s(tokens, 0), rel=0.03)


def test_a_cell_ends_at_a_power_of_two_after_which_time_may_jump() -> None:
    keys = [Key.of(captured=False, iterations=0, tokens=tokens) for tokens in (16, 17, 32, 33, 128, 129)]
    assert len(set(keys)) == 6
    assert Key.of(captured=False, iterations=0, tokens=110) == keys[4]


def test_the_first_step_of_an_engine_teaches_nothing() -> None:
    table = CostTable(NO_GRAPHS, K_MAX)
    table.observe(StepTime(36.0, 8, False, 0))
    assert table.cells == {}


def test_a_step_that_waited_for_a_compile_changes_next_to_nothing() -> None:
    table = CostTable(NO_GRAPHS, K_MAX)
    before = learned([FIRST, *steps_of(lambda tokens, depth: 0.02, [(8, 0)] * 100)], table)
    after = learned([StepTime(36.0, 8, False, 0)], table)
    assert after.in_graph.verify(8) == pytest.approx(before.in_graph.verify(8), rel=0.02)


def test_a_slow_first_step_of_a_size_is_forgotten_with_the_second() -> None:
    costs = learned([StepTime(36.0, 8, False, 0), StepTime(0.02, 8, False, 0)])
    assert costs.in_graph.verify(8) == pytest.approx(0.02)


def test_a_slow_first_step_of_a_size_makes_no_token_dearer_than_of_a_smaller_one() -> None:
    costs = learned([*steps_of(lambda tokens, depth: 0.02, [(8, 0)] * 20), StepTime(36.0, 32, False, 0)])
    assert costs.in_graph.verify(32) <= 1.3 * 4 * costs.in_graph.verify(8)


def test_a_slower_machine_is_followed_also_at_sizes_not_seen_since() -> None:
    def step_s(tokens: int, depth: int) -> float:
        return 0.02 + 0.001 * tokens

    table = CostTable(NO_GRAPHS, K_MAX)
    learned([FIRST, *steps_of(step_s, wandering(8, 64, 300, 0))], table)
    # Other work takes half of the machine; only steps of 8 tokens are run from then on.
    cost = learned([StepTime(2 * step_s(8, 0), 8, False, 0)] * 30, table).in_graph
    assert cost.verify(8) == pytest.approx(2 * step_s(8, 0), rel=0.05)
    assert cost.verify(64) == pytest.approx(2 * step_s(64, 0), rel=0.15)


def test_what_was_measured_while_the_machine_was_slower_is_forgotten_once_a_larger_step_is_faster() -> None:
    table = CostTable(NO_GRAPHS, K_MAX)
    slow = [StepTime(0.040, 1, False, 0)] * 5 + [StepTime(0.046, 3, False, 2)] * 100
    assert learned([FIRST, *slow], table).alike_s(1, 0) == pytest.approx(0.040, rel=0.05)

    # The machine is faster, and only another depth is run from then on, which nothing was known of.
    assert learned([StepTime(0.026, 4, False, 3)] * 70, table).alike_s(1, 0) <= 0.026


def test_a_smaller_step_that_takes_longer_is_believed_while_both_are_run() -> None:
    kernels = [StepTime(0.020, 100, False, 0), StepTime(0.014, 128, False, 0)]
    costs = learned([FIRST, *kernels * 100])
    assert costs.step_s(100, 0, captured=False) == pytest.approx(0.020, rel=0.05)
    assert costs.step_s(128, 0, captured=False) == pytest.approx(0.014, rel=0.05)


def test_what_was_learned_stays_while_another_step_runs_a_thousand_times() -> None:
    def step_s(tokens: int, depth: int) -> float:
        return 0.02 + 0.001 * tokens

    table = CostTable(NO_GRAPHS, K_MAX)
    learned([FIRST, *steps_of(step_s, wandering(8, 64, 300, 0))], table)
    for seen in steps_of(step_s, [(40, 0)] * 1000):
        table.observe(seen)
    cost = table.refit().in_graph
    assert cost.verify(8) == pytest.approx(step_s(8, 0), rel=0.08)
    assert cost.verify(64) == pytest.approx(step_s(64, 0), rel=0.08)


def test_more_tokens_are_tried_where_they_may_be_free() -> None:
    # Only 128 tokens and prefills were seen: nothing says yet that 192 take longer.
    cost = learned(steps_of(lambda tokens, depth: 0.01 * max(1.0, tokens / 256), [(128, 0), (2048, 0)] * 10)).in_graph
    assert cost.verify(192) == pytest.approx(cost.verify(128), rel=0.01)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_no_step_can_have_is_ignored(seconds: float) -> None:
    table = CostTable(NO_GRAPHS, K_MAX)
    before = learned([FIRST, *steps_of(lambda tokens, depth: 0.02, [(8, 0)] * 10)], table)
    assert learned([StepTime(seconds, 8, False, 0)], table) == before


@given(
    graph=st.sampled_from(["none", "k_max", "per_k", "any"]),
    steps=st.lists(
        st.builds(
            StepTime,
            seconds=st.floats(1e-6, 1e4),
            tokens=st.integers(1, 8192),
            captured=st.booleans(),
            iterations=st.integers(0, K_MAX),
        ),
        max_size=60,
    ),
    drafts=st.lists(st.tuples(st.floats(-1, 1e4), st.integers(0, K_MAX)), max_size=20),
)
def test_any_steps_keep_all_costs_finite_and_the_curve_rising(
    graph: str, steps: list[StepTime], drafts: list[tuple[float, int]]
) -> None:
    table = CostTable(EngineFacts.model_validate({"graph": graph}), K_MAX)
    learned(steps, table)
    for seconds, iterations in drafts:
        table.observe_draft(seconds, iterations)
    costs = table.refit()
    for cost in (costs.in_graph, costs.piecewise):
        assert all(isfinite(time) and time > 0 for time in cost.at_knot_s[1:])
        assert all(isfinite(slope) and slope >= 0 for slope in cost.slope_s)
        assert all(isfinite(draft) and draft >= 0 for draft in cost.drafts_s)
        times = [cost.verify(tokens) for tokens in (1, 2, 3, 9, 100, 1000, 10_000)]
        assert all(0 < less <= more * (1 + 1e-9) for less, more in pairwise(times))
    assert isfinite(table.piecewise_s)
    assert all(isfinite(each) for each in costs.corrections.values())


# --- drafting measured apart ---


def test_drafting_nothing_costs_what_was_measured_and_is_no_part_of_an_iteration() -> None:
    table = CostTable(NO_GRAPHS, K_MAX)
    learned([StepTime(0.010, 4, False, 0)] * 10, table)
    for _ in range(200):
        table.observe_draft(0.001, 0)
        table.observe_draft(0.002, 2)
    costs = table.refit().in_graph
    assert costs.draft(0) == pytest.approx(0.001, rel=0.05)
    assert costs.draft(2) == pytest.approx(0.002, rel=0.05)
    assert costs.draft(4) == pytest.approx(0.004, rel=0.05)


def test_drafts_of_unmeasured_depth_are_not_cheaper_than_none() -> None:
    table = CostTable(NO_GRAPHS, K_MAX)
    learned([StepTime(0.010, 4, False, 0)] * 10, table)
    for _ in range(50):
        table.observe_draft(0.004, 0)
    costs = table.refit().in_graph
    assert all(one <= other for one, other in pairwise(costs.drafts_s))


def test_the_more_often_steps_were_run_the_less_their_time_may_be_wrong() -> None:
    table = CostTable(NO_GRAPHS, K_MAX)
    errors = [table.error(Key.of(False, 0, 4))]
    for count in (3, 3, 50):
        learned([StepTime(0.010, 4, False, 0)] * count, table)
        errors.append(table.error(Key.of(False, 0, 4)))
    assert errors == sorted(errors, reverse=True)
    assert len(set(errors)) == 4


def test_a_step_that_was_never_measured_takes_no_less_than_one_with_fewer_tokens() -> None:
    table = CostTable(GRAPHS, K_MAX)
    in_graph = [*[StepTime(0.010, 8, True, 0)] * 4, *[StepTime(0.016, 16, True, 0)] * 4]
    for step in [FIRST, *in_graph, *[StepTime(0.030, 20, False, 0)] * 4]:
        table.observe_apart(0.002, 1)
        table.observe(step)
    assert table.least_s(24, 2, captured=True) == pytest.approx(0.016 + table.costs.in_graph.draft(2), rel=0.02)
    assert table.least_s(16, 1, captured=True) is None  # it was measured
    assert table.least_s(4, 0, captured=True) is None  # nothing smaller was


def test_whole_steps_take_their_draft_iterations_on_top() -> None:
    table = CostTable(GRAPHS, K_MAX)
    learned([FIRST, *[StepTime(0.010, 8, True, 0)] * 4, *[StepTime(0.016, 16, True, 1)] * 4], table)
    assert table.draft_s > 0
    assert table.least_s(24, 2, captured=True) == pytest.approx(0.016 + table.draft_s, rel=0.02)
