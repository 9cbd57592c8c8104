"""What may be spent on finding out."""

from __future__ import annotations

from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.speculation.allocation import Allocation
from serve_app.speculation.cost import Costs
from serve_app.speculation.cost_curve import StepCost
from serve_app.speculation.exploration import (
    SAVED_STEPS,
    Allowance,
    Probes,
    StepTimes,
    affordable_probes,
    graph_trial,
    hopeful_trial,
    lost_s,
    near_trial,
)
from serve_app.speculation.settings import EngineFacts

SHARE = 0.02
CPU = StepCost((1.0,), (0.0375,), (0.0025,), (0.0,) * 9)
COSTLY = StepCost((1.0,), (0.010,), (0.0,), tuple(0.005 * depth for depth in range(9)))


def nothing(requests: int, cost: StepCost) -> Allocation:
    seconds = cost.verify(requests)
    return Allocation((0,), 0, 0, requests, requests, seconds, requests / seconds, 0.0)


def mixed(cost: StepCost) -> StepTimes:
    return lambda tokens, depth: cost.verify(tokens) + cost.draft(depth)


def test_probes_that_cost_tokens_are_sent_as_far_as_the_allowance_goes() -> None:
    # 2.5 ms each: 10 ms cover 4 of 8.
    probes = affordable_probes(8, 1, nothing(8, CPU), mixed(CPU), 0.0101)
    assert (probes.requests, probes.tokens) == (4, 1)
    assert probes.lost_s == pytest.approx(0.010)
    assert affordable_probes(8, 1, nothing(8, CPU), mixed(CPU), 0.0024).requests == 0


def test_a_costly_draft_is_shared_by_all_probes_of_a_step() -> None:
    assert affordable_probes(8, 1, nothing(8, COSTLY), mixed(COSTLY), 0.0049).requests == 0
    probes = affordable_probes(8, 1, nothing(8, COSTLY), mixed(COSTLY), 0.0051)
    assert (probes.requests, probes.tokens) == (8, 1)
    assert probes.lost_s == pytest.approx(0.005)


def test_a_probe_is_free_where_the_depth_is_drafted_anyway() -> None:
    drafting = nothing(8, COSTLY)._replace(iterations=2, seconds=COSTLY.verify(8) + COSTLY.draft(2))
    assert affordable_probes(1, 2, drafting, mixed(COSTLY), 0.0) == Probes(1, 2, 0.0)


def test_as_many_requests_are_probed_as_stay_below_a_jump_of_the_time() -> None:
    def tiled(tokens: float, depth: int) -> float:
        return 0.010 if tokens <= 11 else 0.015

    decided = nothing(8, COSTLY)
    assert affordable_probes(8, 1, decided, tiled, 0.001) == Probes(3, 1, 0.0)
    assert affordable_probes(8, 1, decided, tiled, 0.006).requests == 8


@given(st.lists(st.tuples(st.floats(0.001, 1), st.floats(0, 1)), max_size=200))
def test_losses_stay_within_a_share_of_the_time_and_a_few_steps(steps: list[tuple[float, float]]) -> None:
    allowance, total, spent = Allowance(0.0), 0.0, 0.0
    for step_s, requested in steps:
        if requested <= allowance.seconds:
            allowance, spent = allowance.spent(requested), spent + requested
        allowance = allowance.earned(step_s, SHARE)
        total += step_s
        assert allowance.seconds <= SAVED_STEPS * step_s + 1e-12
        assert spent <= SHARE * total + 1e-9


def alike(depth: int, output: float, seconds: float) -> Allocation:
    """Eight requests that all draft that deep."""
    score = 8 * log(output / seconds)
    return Allocation((depth,), depth, depth, 8 * (1 + depth), output, seconds, output / seconds, score)


def test_what_a_step_loses_is_its_time_less_that_of_its_output_at_the_best_rate() -> None:
    assert lost_s(alike(0, 8.0, 0.010), rate=1000.0) == pytest.approx(0.010 - 0.008)


def test_one_k_for_all_is_tried_only_where_it_seems_hardly_worse_than_no_drafts() -> None:
    # Of a step of 10 ms, 0.5 ms are lost, then 1 ms.
    none, near, far = alike(0, 8.0, 0.010), alike(1, 8.8, 0.0115), alike(2, 8.8, 0.012)
    assert near_trial([none, near]) is near
    assert near_trial([none, far]) is None
    assert near_trial([none]) is None


def test_a_graph_is_tried_where_the_most_that_it_may_save_would_pay_and_the_loss_is_allowed() -> None:
    # Without a graph a step takes 1.2 ms more than the 10 ms in one; at most 0.75 of 11.2 ms are hoped for.
    verify = StepCost((1.0,), (0.010,), (0.0,), (0.0,) * 3)
    costs = Costs(EngineFacts(graph="k_max"), 2, True, verify, verify._replace(at_knot_s=(0.0112,)))
    plain, drafting = alike(0, 8.0, 0.0112), alike(2, 9.0, 0.014)
    loss_s = lost_s(drafting, plain.rate)
    assert graph_trial([plain, drafting], plain, 8, costs, loss_s * 1.01) is drafting
    assert graph_trial([plain, drafting], plain, 8, costs, loss_s * 0.99) is None
    # Even then it would be no better.
    assert graph_trial([plain, drafting], alike(0, 40.0, 0.0112), 8, costs, 1.0) is None


def test_steps_that_were_never_measured_are_tried_where_they_may_take_hardly_longer_than_smaller_ones() -> None:
    # One draft for all was measured; of two and three it is known only that they take no less.
    none, one = alike(0, 8.0, 0.010), alike(1, 12.0, 0.0165)
    two, three = alike(2, 15.0, 0.024), alike(3, 16.8, 0.032)

    def least_s(each: Allocation) -> float | None:
        return one.seconds if each.depth > 1 else None

    # At 0.3 of the way two take 18.75 ms. So its output comes at 800/s, as without drafts: that is no gain.
    assert hopeful_trial([none, one, two], none, 8, least_s, 1.0) is None
    # Of 16 tokens in that time there would be one. A third draft would gain as well, and loses more.
    two = alike(2, 16.0, 0.024)
    ways = [none, one, two, three]
    assert hopeful_trial(ways, none, 8, least_s, 1.0) is two
    # 24 ms, of which the best way makes that output in 20: 4 ms are lost, and 0.3 of the allowance may be.
    assert hopeful_trial(ways, none, 8, least_s, 0.0134) is two
    assert hopeful_trial(ways, none, 8, least_s, 0.0133) is None
    # What was measured is no matter of hope, nor what is predicted to take no longer than it must.
    assert hopeful_trial(ways, none, 8, lambda each: None, 1.0) is None
    assert hopeful_trial(ways, none, 8, lambda each: each.seconds, 1.0) is None
