"""Ray's packing of replicas, and which sets of replicas always find a place."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.planner.packing import allocate, place_for_all


@pytest.mark.parametrize(
    ("free", "demand", "cards"),
    [
        ((100, 100), 40, (0,)),
        ((100, 60), 40, (1,)),  # best fit, not first fit
        ((60, 40, 50), 40, (1,)),
        ((60, 60), 40, (0,)),  # of equal ones the first
        ((30, 30), 40, None),  # parts of two cards do not add up
        ((60, 100), 100, (1,)),
        ((60, 100, 100), 200, (1, 2)),
        ((60, 60, 100), 200, None),
    ],
)
def test_a_share_goes_where_it_fits_best_and_whole_cards_must_be_free(
    free: tuple[int, ...], demand: int, cards: tuple[int, ...] | None
) -> None:
    assert allocate(free, demand) == cards


@pytest.mark.parametrize(
    ("nodes", "demands", "placed"),
    [
        ((1,), {"a": 40, "b": 40, "c": 20}, True),
        ((1,), {"a": 60, "b": 60}, False),
        ((2,), {"a": 60, "b": 60}, True),
        # a and c first, on one card: b takes the other, and d (50) finds 15 and 45 left.
        ((2,), {"a": 40, "b": 55, "c": 45, "d": 50}, False),
        # Shares of one card together: best fit keeps them on one, so whole cards stay free.
        ((4,), {"a": 40, "b": 60, "c": 100, "d": 200}, True),
        # On two machines Ray may put a and b on different cards.
        ((1, 1), {"a": 40, "b": 40, "c": 100}, False),
        ((1, 1, 1), {"a": 40, "b": 40, "c": 100}, True),
        ((3,), {"a": 60, "b": 60, "c": 200}, False),
        # Two single cards in use on one machine each leave no machine with two.
        ((2, 2), {"a": 100, "b": 100, "c": 200}, False),
        ((4,), {"a": 100, "b": 100, "c": 200}, True),
        # Shares of more than one card: a machine may have parts of two that add up to c, and no free card.
        ((4, 4), {"a": 60, "b": 60, "c": 100}, False),
        ((4,), {"a": 60, "b": 60, "c": 200}, True),
        # Whole engines take all cards.
        ((2,), {"a": 40, "b": 200}, False),
        ((1, 1), {"a": 100, "b": 200}, False),  # no machine has two cards
    ],
)
def test_a_set_of_replicas_surely_has_a_place_in_any_order_of_starts_and_stops(
    nodes: tuple[int, ...], demands: dict[str, int], placed: bool
) -> None:
    assert place_for_all(nodes, demands, dict.fromkeys(demands, 1)) is placed


def test_a_stop_may_leave_parts_that_a_later_start_does_not_fit() -> None:
    # In any order of starts alone b, of 70, has a place; but after a a c the first a stops, and two halves are left.
    assert not place_for_all((2,), {"a": 50, "b": 70}, {"a": 3, "b": 1})
    assert place_for_all((2,), {"a": 30, "b": 50}, {"a": 2, "b": 1})


def test_a_share_that_blocks_a_card_alone_blocks_no_second_one_with_its_rest() -> None:
    # Each of three c blocks a card for d, which needs 68; a and b together leave the fourth one enough.
    demands = {"a": 13, "b": 16, "c": 45, "d": 68}
    assert place_for_all((4,), demands, {"a": 1, "b": 1, "c": 3, "d": 1})
    assert not place_for_all((4,), demands, {"a": 1, "b": 1, "c": 4, "d": 1})


def test_many_cards_are_judged_at_once() -> None:
    assert place_for_all((8,) * 64, {"a": 100, "b": 100}, {"a": 256, "b": 256})
    assert not place_for_all((8,) * 64, {"a": 100}, {"a": 513})
    assert place_for_all((1024,), {"a": 20, "b": 100, "c": 400}, {"a": 5, "b": 1003, "c": 5})
    assert not place_for_all((1024,), {"a": 20, "b": 100, "c": 400}, {"a": 5, "b": 1004, "c": 5})


SHARES = st.sampled_from([10, 20, 25, 30, 34, 40, 45, 50, 55, 60, 75, 100, 200])


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.lists(st.tuples(SHARES, st.integers(1, 2)), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_what_is_promised_a_place_gets_one_in_every_random_history(
    nodes: list[int], tiers: list[tuple[int, int]], chance: random.Random
) -> None:
    demands = {f"tier{index}": demand for index, (demand, _) in enumerate(tiers)}
    replicas = {f"tier{index}": count for index, (_, count) in enumerate(tiers)}
    if place_for_all(nodes, demands, replicas):
        play(nodes, demands, replicas, chance, steps=40)


def play(
    nodes: list[int], demands: dict[str, int], replicas: dict[str, int], chance: random.Random, steps: int
) -> None:
    """Start and stop replicas at random as Ray does; assert that each start finds a place and no card is exceeded."""
    free = [[100] * count for count in nodes]
    running: list[tuple[str, int, tuple[int, ...]]] = []
    for _ in range(steps):
        waiting = [tier for tier in replicas if sum(each[0] == tier for each in running) < replicas[tier]]
        if running and (not waiting or chance.random() < 0.4):
            tier, node, cards = running.pop(chance.randrange(len(running)))
            for card in cards:
                free[node][card] += min(100, demands[tier])
            continue
        tier = chance.choice(waiting)
        able = [index for index, cards_ in enumerate(free) if sum(cards_) >= demands[tier]]
        assert able, f"{tier}: no node has {demands[tier]} of {free}"
        node = chance.choice(able)
        given_cards = allocate(free[node], demands[tier])
        assert given_cards is not None, f"{tier}: {demands[tier]} fits no card of {free[node]}"
        for card in given_cards:
            free[node][card] -= min(100, demands[tier])
            assert free[node][card] >= 0
        running.append((tier, node, given_cards))
