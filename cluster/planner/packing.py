"""Ray's placement of replicas on cards, and whether a set of replicas always finds a place. Pure.

Ray's raylet gives a share of a card by best fit and whole cards only if they are entirely free
(`NodeResourceInstanceSet::TryAllocate`, src/ray/common/scheduling/resource_instance_set.cc); it moves nothing later. So
replicas that start, stop and start again in another order can leave free parts that no replica fits in.
`place_for_all` looks at every state that starts and stops can reach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

Node: TypeAlias = "tuple[tuple[str, ...], ...]"
"""The tiers on each card of a node, sorted; a tier with several cards stands on each of them."""
MOST_STATES: Final = 20_000
"""States that are looked at; what needs more counts as not proven."""
WHOLE: Final = 100  # hundredths of a card


def allocate(free: Sequence[int], demand: int) -> tuple[int, ...] | None:
    """Return the indexes of the cards that Ray gives a replica, or None if it can give none.

    Args:
        free: hundredths of each card of a node that are free.
        demand: hundredths of a card that the replica asks for: below 100, or a multiple of it.
    """
    if demand >= WHOLE:
        cards = [index for index, left in enumerate(free) if left == WHOLE][: demand // WHOLE]
        return tuple(cards) if len(cards) * WHOLE == demand else None
    fitting = [(left, index) for index, left in enumerate(free) if left >= demand]
    return (min(fitting)[1],) if fitting else None


def place_for_all(nodes: Sequence[int], demands: Mapping[str, int], replicas: Mapping[str, int]) -> bool:
    """Return whether each replica always finds a place, whatever started and stopped before.

    Ray picks any node whose free cards and parts add up to the demand. So a node where they do, but where no card has
    enough, counts as no place.

    Args:
        nodes: cards of each node.
        demands: hundredths of a card that a replica of each tier asks for.
        replicas: most replicas of each tier.
    """
    if sum(demands[tier] * count for tier, count in replicas.items()) > WHOLE * sum(nodes):
        return False
    if _surely(nodes, demands, replicas):
        return True
    start: tuple[Node, ...] = tuple(sorted(((),) * count for count in nodes))
    seen, open_ = {start}, [start]
    while open_:
        state = open_.pop()
        for tier in replicas:
            if _running(state, tier, demands[tier]) < replicas[tier]:
                after = _started(state, tier, demands)
                if after is None:
                    return False
            else:
                after = []
            for other in (*after, *_stopped(state, tier, demands[tier])):
                if other not in seen:
                    seen.add(other)
                    open_.append(other)
        if len(seen) > MOST_STATES:
            return False
    return True


def _surely(nodes: Sequence[int], demands: Mapping[str, int], replicas: Mapping[str, int]) -> bool:
    """Return True if the other replicas are too few to block all nodes for any replica, which needs no search.

    A replica of d cards is blocked on a node of c >= d cards when c - d + 1 of them are in use, at worst by others that
    hold a part of each. With shares on nodes of several cards Ray's choice of the node is not covered by this.
    """
    if any(demand < WHOLE for demand in demands.values()) and max(nodes, default=0) > 1:
        return False
    held = sum(max(1, demands[tier] // WHOLE) * count for tier, count in replicas.items())
    for demand in demands.values():
        cards = max(1, demand // WHOLE)
        if held - cards >= sum(count - cards + 1 for count in nodes if count >= cards):
            return False
    return True


def _running(state: tuple[Node, ...], tier: str, demand: int) -> int:
    cards = sum(card.count(tier) for node in state for card in node)
    return cards // max(1, demand // WHOLE)


def _started(state: tuple[Node, ...], tier: str, demands: Mapping[str, int]) -> list[tuple[Node, ...]] | None:
    """Return the states after one more replica of the tier, one for each node that Ray may pick; None: no place."""
    states = []
    for index, node in enumerate(state):
        free = [WHOLE - sum(min(demands[each], WHOLE) for each in card) for card in node]
        if sum(free) < demands[tier]:
            continue
        cards = allocate(free, demands[tier])
        if cards is None:
            return None
        # Of cards that fit equally well Ray takes the first, which may be any here: they are sorted.
        equal = [(at,) for at, left in enumerate(free) if left == free[cards[0]]] if demands[tier] < WHOLE else [cards]
        for given in equal:
            filled = tuple(tuple(sorted((*card, tier))) if at in given else card for at, card in enumerate(node))
            states.append(_with(state, index, filled))
    return states or None


def _stopped(state: tuple[Node, ...], tier: str, demand: int) -> list[tuple[Node, ...]]:
    """Return the states after one replica of the tier stopped, one for each that may be the one."""
    states = []
    wanted = max(1, demand // WHOLE)
    for index, node in enumerate(state):
        on = [at for at, card in enumerate(node) if tier in card]
        groups = [tuple(on[:wanted])] if demand >= WHOLE and len(on) >= wanted else [(at,) for at in on]
        for cards in groups:
            left = tuple(_without(card, tier) if at in cards else card for at, card in enumerate(node))
            states.append(_with(state, index, left))
    return states


def _without(card: tuple[str, ...], tier: str) -> tuple[str, ...]:
    at = card.index(tier)
    return card[:at] + card[at + 1 :]


def _with(state: tuple[Node, ...], index: int, node: Node) -> tuple[Node, ...]:
    return tuple(sorted((*state[:index], tuple(sorted(node)), *state[index + 1 :])))
