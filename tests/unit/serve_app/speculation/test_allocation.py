"""The search for the best allocation against brute force, closed forms and common sense."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise, product, zip_longest
from math import inf, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.speculation.allocation import Allocator, Curve, Fixed, Group, Load
from serve_app.speculation.cost_curve import StepCost

K_MAX = 4

acceptances = st.lists(st.floats(0.01, 0.99), min_size=K_MAX, max_size=K_MAX)
seconds = st.floats(0.1, 10)


def gains(acceptance: Sequence[float]) -> tuple[float, ...]:
    return tuple(accumulate(acceptance, lambda reached, likely: reached * likely))


def geometric(acceptance: float, k_max: int = K_MAX) -> tuple[float, ...]:
    return gains([acceptance] * k_max)


def drafts(iteration: float) -> tuple[float, ...]:
    return tuple(iteration * depth for depth in range(2 * K_MAX + 1))


def linear(base: float, token: float, draft: float = 0.0) -> StepCost:
    """A step of n tokens takes base + n token; k_max irrelevant."""
    return StepCost((1.0,), (base + token,), (token,), drafts(draft))


def flat_until(knee: float, base: float, draft: float = 0.0) -> StepCost:
    """A step takes `base` up to so many tokens, and in proportion to its tokens beyond."""
    return StepCost((1.0, knee), (base, base), (0.0, base / knee), drafts(draft))


def allocator(
    requests: Sequence[tuple[float, ...]], cost: StepCost, share: float = 1.0, fixed: Sequence[Fixed] = ()
) -> Allocator:
    return Allocator([Group.of(Curve.of(request, share), 1) for request in requests], Load(0, fixed), cost, share)


def score(
    requests: Sequence[tuple[float, ...]],
    depths: Sequence[int],
    cost: StepCost,
    share: float = 1.0,
    lookups: Sequence[bool] = (),
) -> float:
    """Sum of logarithmic speeds, written down anew; for a time that is linear in the tokens."""
    token = cost.slope_s[0]
    drafted = [k for k, lookup in zip_longest(depths, lookups, fillvalue=False) if not lookup]
    base = cost.at_knot_s[0] - token + cost.draft(max(drafted, default=0))
    return sum(
        log((1 + share * sum(request[:k])) / (base / len(requests) + token * (1 + share * k)))
        for request, k in zip(requests, depths, strict=True)
    )


def tokens_per_second(requests: Sequence[tuple[float, ...]], depths: Sequence[int], cost: StepCost) -> float:
    output = sum(1 + sum(request[:k]) for request, k in zip(requests, depths, strict=True))
    return output / (cost.verify(len(depths) + sum(depths)) + cost.draft(max(depths)))


def every_choice(requests: int) -> product[tuple[int, ...]]:
    return product(range(K_MAX + 1), repeat=requests)


# --- closed forms ---


@pytest.mark.parametrize("acceptance", [0.2, 0.5, 0.9])
def test_expected_output_of_geometric_acceptance_is_the_known_sum(acceptance: float) -> None:
    curve = Curve.of(geometric(acceptance))
    assert curve.output == pytest.approx([(1 - acceptance ** (k + 1)) / (1 - acceptance) for k in range(K_MAX + 1)])


def test_a_draft_that_comes_half_the_time_gives_half_the_gain() -> None:
    assert Curve.of((0.8, 0.6), share=0.5).output == pytest.approx((1.0, 1.4, 1.7))


def test_the_first_draft_token_is_worth_it_if_it_gains_more_than_it_lengthens_the_step() -> None:
    # (1 + a) / (shared + 2 token) > 1 / (shared + token) where shared / token > 1 / a - 1.
    assert Curve.of((0.25,)).critical == pytest.approx((3.0,))


def test_a_token_that_is_never_accepted_is_never_worth_it() -> None:
    assert Curve.of((0.5, 0.0)).critical == (1.0, inf)


def test_free_tokens_and_free_drafts_are_all_taken() -> None:
    best = allocator([geometric(0.1)], linear(1.0, 0.0)).best()
    assert (best.depths, best.depth) == ((K_MAX,), K_MAX)
    assert best.rate == pytest.approx(1.1111)


# --- optimality ---


@given(st.lists(acceptances, min_size=1, max_size=3), seconds, st.floats(0, 1), st.floats(0, 1), st.floats(0.2, 1))
def test_no_choice_of_depths_beats_the_search(
    batch: list[list[float]], base: float, token: float, draft: float, share: float
) -> None:
    requests = [gains(acceptance) for acceptance in batch]
    cost = linear(base, token, draft)
    best = allocator(requests, cost, share).best()
    assert best.score == pytest.approx(score(requests, best.depths, cost, share))
    assert best.score >= max(score(requests, choice, cost, share) for choice in every_choice(len(requests))) - 1e-9


@given(
    st.lists(st.tuples(acceptances, st.booleans()), min_size=1, max_size=3), seconds, st.floats(0, 1), st.floats(0, 1)
)
def test_no_choice_of_depths_beats_the_search_where_some_drafts_are_looked_up(
    batch: list[tuple[list[float], bool]], base: float, token: float, draft: float
) -> None:
    requests, lookups = [gains(acceptance) for acceptance, _ in batch], [lookup for _, lookup in batch]
    cost = linear(base, token, draft)
    groups = [Group.of(Curve.of(each), 1, lookup=lookup) for each, lookup in zip(requests, lookups, strict=True)]
    best = Allocator(groups, Load(0), cost).best()
    assert best.score == pytest.approx(score(requests, best.depths, cost, lookups=lookups))
    choices = every_choice(len(requests))
    assert best.score >= max(score(requests, choice, cost, lookups=lookups) for choice in choices) - 1e-9


@given(st.lists(acceptances, min_size=1, max_size=3), seconds, st.floats(0, 1), st.floats(0, 1), st.integers(0, K_MAX))
def test_climbing_from_any_depth_loses_at_most_half_a_percent(
    batch: list[list[float]], base: float, token: float, draft: float, near: int
) -> None:
    search = allocator([gains(acceptance) for acceptance in batch], linear(base, token, draft))
    assert search.best(near).score >= search.best().score - 0.005 * len(batch)


@given(acceptances, st.integers(2, K_MAX), seconds, st.floats(0, 1))
def test_for_one_request_it_is_the_most_tokens_per_second_on_any_convex_time(
    acceptance: list[float], knee: int, base: float, draft: float
) -> None:
    request, cost = gains(acceptance), flat_until(knee, base, draft)
    best = allocator([request], cost).best()
    fastest = max(tokens_per_second([request], [k], cost) for k in range(K_MAX + 1))
    assert best.rate == pytest.approx(fastest)


@given(acceptances, st.integers(1, 4), seconds, st.floats(0, 1), st.floats(0, 1))
def test_for_requests_alike_it_is_the_most_tokens_per_second(
    acceptance: list[float], size: int, base: float, token: float, draft: float
) -> None:
    requests, cost = [gains(acceptance)] * size, linear(base, token, draft)
    best = Allocator([Group.of(Curve.of(requests[0]), size)], Load(0), cost).best()
    fastest = max(tokens_per_second(requests, choice, cost) for choice in every_choice(size))
    assert best.rate >= 0.995 * fastest


def test_beyond_a_knee_tokens_are_taken_only_where_they_pay() -> None:
    # 6 requests alike, flat up to 10 tokens; beyond, each costs 2% of the step: half a token more is worth it for all.
    gentle = StepCost((1.0, 10.0), (1.0, 1.0), (0.0, 0.02), drafts(0.0))
    assert Allocator([Group.of(Curve.of((0.5, 0.1)), 6)], Load(0), gentle).best().tokens == 12
    # In proportion to the tokens none is: 6 tokens and 0.3 more in 1.2 times the time.
    steep = flat_until(5, 1.0)
    assert Allocator([Group.of(Curve.of((0.05, 0.01)), 6)], Load(0), steep).best().tokens == 6


def test_a_copying_request_does_not_slow_down_many_that_crawl() -> None:
    # Seven requests in prose, one copying; each draft iteration takes a tenth of a step. Most tokens in this very step
    # come from drafting, but then the seven wait for the one that is through its passage soon anyway.
    cost = linear(1.0, 0.0, draft=0.1)
    requests = [geometric(0.005)] * 7 + [geometric(0.95)]
    assert max(every_choice_of_last(7), key=lambda choice: tokens_per_second(requests, choice, cost))[-1] == 3
    assert allocator(requests, cost).best().depth == 0
    # Two copying requests are worth a shallow draft for all.
    assert allocator([geometric(0.005)] * 6 + [geometric(0.95)] * 2, cost).best().depth == 2


def every_choice_of_last(others: int) -> list[tuple[int, ...]]:
    return [(0,) * others + (k,) for k in range(K_MAX + 1)]


# --- monotonicity ---


@given(acceptances, st.integers(0, K_MAX - 1), st.floats(0, 0.5), seconds, st.floats(0, 1), st.floats(0, 1))
def test_more_acceptance_never_lowers_k(
    acceptance: list[float], position: int, more: float, base: float, token: float, draft: float
) -> None:
    better = acceptance.copy()
    better[position] = min(1.0, better[position] + more)
    cost = linear(base, token, draft)
    before, after = (allocator([gains(each)], cost).best().depths[0] for each in (acceptance, better))
    assert after >= before


@given(acceptances, seconds, st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_dearer_tokens_never_raise_k(
    acceptance: list[float], base: float, token: float, more: float, draft: float
) -> None:
    dear, cheap = (allocator([gains(acceptance)], linear(base, each, draft)).best() for each in (token + more, token))
    assert dear.depths[0] <= cheap.depths[0]


@given(acceptances, seconds, st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_dearer_drafts_never_raise_k(
    acceptance: list[float], base: float, token: float, draft: float, more: float
) -> None:
    dear, cheap = (allocator([gains(acceptance)], linear(base, token, each)).best() for each in (draft + more, draft))
    assert dear.depths[0] <= cheap.depths[0]


@given(st.floats(0.05, 0.99), seconds, st.floats(0.001, 1), st.floats(0, 0.2))
def test_more_requests_never_raise_k(acceptance: float, base: float, token: float, draft: float) -> None:
    curve = Curve.of(geometric(acceptance))
    found = [
        Allocator([Group.of(curve, size)], Load(0), linear(base, token, draft)).best().depth for size in (1, 8, 64)
    ]
    assert all(fewer >= more for fewer, more in pairwise(found))


def test_at_high_load_the_depth_goes_to_0_by_itself() -> None:
    # 35 ms + 2.5 ms a token, acceptance 0.8: the CPU of the simulation.
    depths = [
        Allocator([Group.of(Curve.of(geometric(0.8, 8)), size)], Load(0), linear(0.035, 0.0025)).best().depth
        for size in (1, 8, 32, 128)
    ]
    assert depths == [7, 2, 1, 0]


def test_prefill_tokens_that_bring_the_hardware_to_its_limit_leave_less_to_drafts() -> None:
    cost = flat_until(256, 0.01)
    depths = [
        Allocator([Group.of(Curve.of(geometric(0.4)), 8)], Load(prefill), cost).best().depth for prefill in (0, 1000)
    ]
    assert depths == [4, 3]


# --- fixed depths ---


def test_requested_drafts_are_charged_and_counted_and_their_depth_is_free_for_others() -> None:
    cost = linear(1.0, 0.0, draft=0.5)
    alone = allocator([geometric(0.3)], cost).best()
    assert alone.depths == (0,)
    beside = allocator([geometric(0.3)], cost, fixed=[Fixed(Curve.of(geometric(0.5)), 1, 2)]).best()
    assert (beside.depths, beside.depth) == ((2,), 2)
    assert beside.seconds == pytest.approx(2.0)
    assert beside.output == pytest.approx(1 + 0.3 + 0.09 + 1 + 0.5 + 0.25)


def test_looked_up_drafts_take_no_iterations_however_many_are_requested() -> None:
    cost = linear(1.0, 0.0, draft=0.5)
    beside = allocator([geometric(0.3)], cost, fixed=[Fixed(Curve.of(geometric(0.5)), 1, 2, lookup=True)]).best()
    assert (beside.depths, beside.depth, beside.iterations) == ((0,), 2, 0)
    assert beside.seconds == pytest.approx(1.0)


def test_without_auto_requests_the_requested_depth_is_what_is_drafted() -> None:
    fixed = Load(10, [Fixed(Curve.of(geometric(0.5)), 3, 2)])
    best = Allocator([], fixed, linear(1.0, 0.1, 0.2)).best()
    assert (best.depths, best.depth, best.tokens) == ((), 2, 3 * 3 + 10)
    assert best.seconds == pytest.approx(1.0 + 1.9 + 0.4)
