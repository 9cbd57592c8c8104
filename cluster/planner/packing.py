"""Ray's placement of replicas on cards, and whether a set of replicas always finds a place. Pure.

Ray's raylet gives a share of a card by best fit and whole cards only if they are entirely free
(`NodeResourceInstanceSet::TryAllocate`, src/ray/common/scheduling/resource_instance_set.cc); it moves nothing later. So
replicas that start, stop and start again in another order can leave free parts that no replica fits in.
`place_for_all` counts what the others can block at worst: it takes no longer for many cards than for few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

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
    """Return whether each replica surely finds a place, whatever started and stopped before.

    Ray picks any node whose free cards and parts add up to the demand. So a node where they do, but where no card has
    enough, counts as no place.

    Args:
        nodes: cards of each node.
        demands: hundredths of a card that a replica of each tier asks for.
        replicas: most replicas of each tier.
    """
    shares = {tier: demand for tier, demand in demands.items() if demand < WHOLE}
    whole = {tier: demand // WHOLE for tier, demand in demands.items() if demand >= WHOLE}
    parts = sum(demand * replicas[tier] for tier, demand in shares.items())
    held = sum(cards * replicas[tier] for tier, cards in whole.items())
    sharing = sum(replicas[tier] for tier in shares)
    sizes = Counter(nodes)
    # If all shares together are one card, each finds room on a card of its node that others share already (best fit
    # takes it), so at most one card of each node is shared, and its rest never adds up to a free card.
    one_card = parts <= WHOLE
    flat = len(nodes) == 1 or max(nodes, default=0) == 1
    if one_card:
        if shares and held >= sum(nodes):
            return False
    elif held and not flat:
        return False
    else:
        # A share is without a place if on each card that is left the others take all but less than it needs.
        left = sum(nodes) - held if flat else min(nodes)
        if any(_most_blocked(tier, shares, replicas) >= left for tier in shares):
            return False
    for cards in whole.values():
        able = {size: count for size, count in sizes.items() if size >= cards}
        blocked = held - cards + (min(sharing, sum(able.values())) if one_card else sharing)
        # A node of n cards has no place for c of them if n - c + 1 are in use.
        if blocked >= sum((size - cards + 1) * count for size, count in able.items()):
            return False
    return True


def _most_blocked(tier: str, shares: Mapping[str, int], replicas: Mapping[str, int]) -> int:
    """Return on how many cards the others can leave less than a replica of the tier needs.

    One share blocks a card if it is large enough; the others do so only together.
    """
    enough = WHOLE + 1 - shares[tier]
    others = {name: replicas[name] - (name == tier) for name in shares}
    alone = sum(count for name, count in others.items() if shares[name] >= enough)
    together = sum(shares[name] * count for name, count in others.items() if shares[name] < enough)
    return alone + together // enough
