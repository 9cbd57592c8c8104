"""The planner: four tiers on the cards that there are, with the reasons. Pure.

It looks for the best of all combinations of models and cards by a score: eco, balanced and performance near their own
size (4, 8 and 32 x 10^9 parameters), ultra as large as possible, each tier's model larger than the one before, eco the
cheapest per token, EAGLE-3 heads where there are some, no card left idle. Only combinations count in which every
replica always finds a place under Ray's packing (`packing.py`), and every entry fits its part of a card
(`cluster/catalogue/memory.py`). What is left becomes longer contexts, then replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import log
from typing import Final

from cluster.catalogue.types import catalogue
from cluster.planner.packing import WHOLE, place_for_all
from cluster.planner.reasons import notes, reasons
from cluster.planner.recipes import CONTEXTS, IDEAL, Recipe, fits, recipes, sized, tier_of
from cluster.planner.supply import Cards, written
from router.errors import ConfigError
from router.registry import TIER_NAMES, Tier, TierName

_POWER: Final[dict[TierName, tuple[int, int]]] = {
    "eco": (0, 25),
    "balanced": (26, 50),
    "performance": (51, 80),
    "ultra": (81, 100),
}
_ULTRA: Final = 1.2  # worth of a factor e in the size of ultra's model
_HEAD: Final = 0.15  # worth of an EAGLE-3 head
_SAME: Final = 2.0  # cost of the same model as the tier below: two such tiers are one
_DEAR: Final = 0.5  # cost of an eco that is not the cheapest per token
_TOKEN: Final = 0.05  # worth of a factor e in the price of eco's tokens: it decides between formats of one model
_WASTE: Final = 0.3  # cost of each card for a model that needs under a quarter of it, or of cards that it does not need
_ROOMY: Final = 0.05  # cost of a whole card for a model that needs under 45% of it
_IDLE: Final = 0.1  # cost of a card that no tier uses
_MOST_IDLE: Final = 8  # more count as so many: they are there for replicas
_ABOVE: Final = 0.8  # cost of a more powerful card than that of the tier above
_PRICE: Final = 0.02  # cost of a replica's USD per hour
_MANY: Final = 16
_MACHINES: Final = 4
"""From so many cards of a type on, or so many machines with one each, none is shared: shares do not pack over machines,
and beside whole engines their replicas are limited to those of one card."""

_LARGE: Final[tuple[TierName, ...]] = ("ultra", "performance")
"""The tiers whose shares may become whole cards."""

Chosen = dict[TierName, Recipe]


@dataclass(frozen=True, slots=True)
class Plan:
    """Four tiers, the reasons of each, and what the cards cannot do."""

    cards: tuple[Cards, ...]
    tiers: dict[TierName, Tier]
    reasons: dict[TierName, tuple[str, ...]]
    notes: tuple[str, ...]


def plan(cards: Sequence[Cards]) -> Plan:
    """Return the plan for these cards.

    Raises:
        ConfigError: four engines do not fit; says what would.
    """
    chosen = choose(cards)
    if chosen is None:
        raise ConfigError(
            f"no four tiers fit {written(cards) or 'no GPU'}: the smallest four engines need a card of 20 GiB; "
            f"allowed are {', '.join(catalogue().gpus)}"
        )
    # The first of those that leave the fewest cards idle.
    chosen = max((_roomier(cards, each) for each in _wholer(cards, _alone(cards, chosen))), key=partial(_used, cards))
    replicas = _replicas(cards, chosen)
    tiers = {
        name: tier_of(chosen[name], hundredths=chosen[name].demand, power=_POWER[name], replicas=replicas[name])
        for name in TIER_NAMES
    }
    other = partial(choose, cards)
    why = {name: tuple(reasons(name, chosen, other)) for name in TIER_NAMES}
    return Plan(tuple(cards), tiers, why, tuple(notes(cards, chosen, replicas, other)))


def choose(
    cards: Sequence[Cards], allowed: Callable[[TierName, Recipe], bool] = lambda name, recipe: True
) -> Chosen | None:
    """Return the best allowed recipe of each tier, or None if no four go together."""
    all_ = [recipe for each in cards for recipe in _of_type(each)]
    order: tuple[TierName, ...] = tuple(reversed(TIER_NAMES))
    options = {name: _best_of(name, (each for each in all_ if allowed(name, each))) for name in order}
    if not all(options.values()):
        return None
    kinds = {each.gpu: index for index, each in enumerate(cards)}
    # The best that the tiers after each may add.
    rest = [sum(options[name][0][0] for name in order[index + 1 :]) for index in range(len(order))]
    # The most that each and the tiers after it may take.
    largest = [max(each.demand for _, each in options[name]) for name in order]
    takes = [sum(largest[index:]) for index in range(len(order))]
    best: tuple[float, Chosen | None] = (float("-inf"), None)

    def search(chosen: Chosen, score: float, left: dict[str, int]) -> None:
        nonlocal best
        if len(chosen) == len(order):
            score -= _idle(sum(left.values())) + (0.0 if cheapest(chosen) else _DEAR)
            if score > best[0] and all(_placed(each, chosen) for each in cards):
                best = (score, dict(chosen))
            return
        name = order[len(chosen)]
        above = chosen[order[len(chosen) - 1]] if chosen else None
        most = score + rest[len(chosen)] - _idle(sum(left.values()) - takes[len(chosen)])
        for own, recipe in options[name]:
            if most + own <= best[0]:
                break
            if recipe.demand > left[recipe.gpu] or (above is not None and recipe.rank > above.rank):
                continue
            same = _SAME if above is not None and recipe.shape == above.shape else 0.0
            stronger = _ABOVE if above is not None and kinds[recipe.gpu] > kinds[above.gpu] else 0.0
            after = left | {recipe.gpu: left[recipe.gpu] - recipe.demand}
            search(chosen | {name: recipe}, score + own - same - stronger, after)

    search({}, 0.0, {each.gpu: WHOLE * each.count for each in cards})
    return best[1]


def _idle(left: int) -> float:
    """Return the cost of so many hundredths of cards that no tier takes; fewer than none cost nothing."""
    return _IDLE * min(max(0, left) // WHOLE, _MOST_IDLE)


def cheapest(chosen: Mapping[TierName, Recipe]) -> bool:
    """Return whether eco is the cheapest per token, alone and with as many requests as every entry has room for."""
    eco = chosen["eco"]
    return all(eco.usd_alone <= each.usd_alone and eco.usd <= each.usd for each in chosen.values())


def _of_type(cards: Cards) -> Iterable[Recipe]:
    found = recipes(cards.gpu, max(cards.nodes))
    many = cards.count >= _MANY or (cards.count >= _MACHINES and max(cards.nodes) == 1)
    return (each for each in found if each.cards) if many else found


def _placed(cards: Cards, chosen: Mapping[TierName, Recipe], replicas: Mapping[TierName, int] | None = None) -> bool:
    demands = {str(name): each.demand for name, each in chosen.items() if each.gpu == cards.gpu}
    counts = {str(name): count for name, count in (replicas or dict.fromkeys(TIER_NAMES, 1)).items()}
    return place_for_all(cards.nodes, demands, counts)


def _best_of(name: TierName, all_: Iterable[Recipe]) -> list[tuple[float, Recipe]]:
    """Return the tier's recipes with their scores, best first, without those that another beats.

    Another beats it if it is for the same type and number of cards, scores as well, asks for no more of the card and of
    the tier above (it is no larger), and as eco costs no more per token.
    """
    found: list[tuple[float, Recipe]] = []
    scored = sorted(
        ((_score(name, each), each) for each in all_), key=lambda one: (-one[0], one[1].demand, one[1].rank)
    )
    for score, recipe in scored:
        beaten = any(
            (other.gpu, other.cards) == (recipe.gpu, recipe.cards)
            and other.demand <= recipe.demand
            and other.rank <= recipe.rank
            and (name != "eco" or (other.usd <= recipe.usd and other.usd_alone <= recipe.usd_alone))
            for _, other in found
        )
        if not beaten:
            found.append((score, recipe))
    return found


def _score(name: TierName, recipe: Recipe) -> float:
    size = _ULTRA * log(recipe.rank) if name == "ultra" else -abs(log(recipe.rank / IDEAL[name]))
    cheap = -_TOKEN * log(recipe.usd) if name == "eco" else 0.0
    return size + cheap + (_HEAD if recipe.head else 0.0) - _waste(recipe) - _PRICE * recipe.price


def _waste(recipe: Recipe) -> float:
    used = recipe.need_gib / catalogue().gpus[recipe.gpu].memory_gib
    if recipe.cards > 1 and used < 0.45:
        return _WASTE * recipe.cards
    if recipe.cards == 1 and used < 0.45:
        return _ROOMY if used > 0.25 else _WASTE
    return 0.0


def _alone(cards: Sequence[Cards], chosen: Chosen) -> Chosen:
    """Return the recipes with whole cards for a tier whose share no other tier would fill."""
    for each in cards:
        sharing = [name for name, recipe in chosen.items() if recipe.gpu == each.gpu and not recipe.cards]
        if len(sharing) != 1:
            continue
        old = chosen[sharing[0]]
        whole = [new for new in recipes(each.gpu, 1) if (new.model, new.cards) == (old.model, 1)]
        if whole:
            chosen = _if_as_good(each, chosen, sharing[0], whole[0])
    return chosen


def _wholer(cards: Sequence[Cards], chosen: Chosen) -> Iterator[Chosen]:
    """Yield the recipes, and again with whole cards for ultra's share, and for performance's too.

    Replicas of large shares are few on many cards: they could spread so that no card has room for the next.
    """
    yield chosen
    for name in _LARGE:
        old = chosen[name]
        if old.cards:
            continue
        on = next(each for each in cards if each.gpu == old.gpu)
        for new in recipes(old.gpu, 1):
            if (new.model, new.head, new.cards) == (old.model, old.head, 1):
                chosen = _if_as_good(on, chosen, name, new)
                yield chosen


def _used(cards: Sequence[Cards], chosen: Chosen) -> int:
    """Return the hundredths of cards that all replicas take."""
    replicas = _replicas(cards, chosen)
    return sum(recipe.demand * replicas[name] for name, recipe in chosen.items())


def _roomier(cards: Sequence[Cards], chosen: Chosen) -> Chosen:
    """Return the recipes with longer contexts, and so more KV cache, for shares as far as the cards have room."""
    for context in CONTEXTS[1:]:
        for each in cards:
            for name in reversed(TIER_NAMES):
                old = chosen[name]
                if old.gpu == each.gpu and not old.cards:
                    chosen = _if_as_good(each, chosen, name, sized(replace(old, context=context)))
    return chosen


def _if_as_good(cards: Cards, chosen: Chosen, name: TierName, new: Recipe) -> Chosen:
    """Return `chosen` with the new recipe if that has a place and leaves eco the cheapest, if it was."""
    changed = chosen | {name: new}
    return changed if fits(new) and _placed(cards, changed) and cheapest(changed) >= cheapest(chosen) else chosen


def _replicas(cards: Sequence[Cards], chosen: Mapping[TierName, Recipe]) -> dict[TierName, int]:
    """Return the most replicas of each tier: as many as always find a place, given out in turn."""
    replicas = dict.fromkeys(TIER_NAMES, 1)
    growing: list[TierName] = ["performance", "balanced", "ultra", "eco"]
    while growing:
        for name in tuple(growing):
            each = next(each for each in cards if each.gpu == chosen[name].gpu)
            more = replicas | {name: replicas[name] + 1}
            if _placed(each, chosen, more):
                replicas = more
            else:
                growing.remove(name)
    return replicas
