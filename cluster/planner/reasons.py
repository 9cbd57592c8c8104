"""Why a plan is as it is, in words: for each tier, and what the cards cannot do. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import gcd, log
from typing import Final, TypeAlias

from cluster.catalogue.memory import host_gib
from cluster.catalogue.speed import coefficients
from cluster.catalogue.types import catalogue
from cluster.planner.packing import WHOLE
from cluster.planner.recipes import BATCH, CONTEXTS, IDEAL, LARGE_GB, LAST_RESORT, SIZES, Recipe, fits, recipes, sized
from cluster.planner.supply import Cards
from router.registry import TIER_NAMES, TierName

Other: TypeAlias = "Callable[[Callable[[TierName, Recipe], bool]], dict[TierName, Recipe] | None]"
"""The best plan of which each tier's recipe is allowed; None: there is none."""
_LARGER: Final = 1.5
"""A model counts as larger than ultra's from this factor on."""
_UNVERIFIED: Final = "unverified"
_FREE: Final = 25
"""From so many hundredths of a card on, what stays idle is said."""
_NAMED: Final = 2
"""So many larger models are named, the next in size."""


def reasons(name: TierName, chosen: Mapping[TierName, Recipe], other: Other) -> Iterator[str]:
    """Yield why the tier has its model and cards, and what a token costs there."""
    recipe = chosen[name]
    yield _why_this_model(name, chosen, other)
    if recipe.cards:
        where = f"each of {recipe.cards} cards" if recipe.cards > 1 else "a card of its own"
        yield f"It needs {recipe.need_gib:.1f} GiB of {recipe.allowed_gib:.1f} on {where}; the rest is KV cache."
    else:
        near = [each for each in TIER_NAMES if each != name and _shares_with(chosen[each], recipe)]
        beside = f" that it may share with {', '.join(near)}" if near else ""
        yield f"It needs {recipe.need_gib:.1f} GiB of {recipe.allowed_gib:.1f}, its share of a card{beside}."
    if recipe.head is None:
        head = catalogue().models[recipe.model].eagle3
        yield f"n-gram drafts: {'no room for its EAGLE-3 head' if head else 'no EAGLE-3 head is known for it'}."
    elif _UNVERIFIED in catalogue().eagle3_heads[recipe.head].source:
        yield "The size of its EAGLE-3 head is what others report, not verified."
    yield _what_a_token_costs(name, chosen)


def notes(
    cards: Sequence[Cards], chosen: Mapping[TierName, Recipe], replicas: Mapping[TierName, int], other: Other
) -> Iterator[str]:
    """Yield what cannot be had, cards that stay idle, and what to know before seeding."""
    known = catalogue()
    larger: dict[tuple[int, int, int], str] = {}
    for name, model in known.models.items():
        if model.rank > chosen["ultra"].rank * _LARGER:
            larger.setdefault(model.shape, name)
    for model_name in list(larger.values())[:_NAMED]:
        yield f"Not here: {model_name}: {_why_not(model_name, cards, chosen, other)}."
    for each in cards:
        yield from _idle(each, chosen, replicas)
        yield from _host_memory(each, chosen, replicas)
    guessed = [each.gpu for each in cards if each.gpu not in coefficients()[each.gpu].fitted_to.split(", ")]
    if guessed:
        yield f"No kernel times were measured on {' and '.join(guessed)}: speeds and prices of tokens are less sure."
    used = {recipe.model for recipe in chosen.values()}
    if any(known.models[name].weight_bytes / 1e9 >= LARGE_GB for name in used):
        yield f"Large weights come with `power-lever weights seed --large`; without them a tier serves {LAST_RESORT}."


def _why_this_model(name: TierName, chosen: Mapping[TierName, Recipe], other: Other) -> str:
    recipe = chosen[name]
    below = chosen[TIER_NAMES[TIER_NAMES.index(name) - 1]] if name != "eco" else None
    if below is not None and below.shape == recipe.shape:
        again = "The model of the tier below again" + (", in another format" if below.model != recipe.model else "")
        larger = other(lambda tier, each: tier != name or (each.rank > recipe.rank and each.shape != recipe.shape))
        if larger is None:
            return f"{again}: no larger one has room here beside three other tiers."
        return f"{again}: {larger[name].model} {_would_leave(larger, chosen, name)}."
    if name == "ultra":
        return "The most able: the largest model of the four."
    size = f"{name}'s size, {IDEAL[name]:g}B"
    # With the other tiers as they are, and no two of the same model.
    nearer = other(lambda tier, each: _nearer(name, each, chosen) if tier == name else each.model == chosen[tier].model)
    if nearer is None:
        return f"The nearest to {size}, that the other tiers leave room for."
    return f"Near {size}: {nearer[name].model} is nearer, but {_what_speaks_against(nearer[name], recipe)}."


def _nearer(name: TierName, recipe: Recipe, chosen: Mapping[TierName, Recipe]) -> bool:
    away, most = (abs(log(each.rank / IDEAL[name])) for each in (recipe, chosen[name]))
    return away < most and all(recipe.shape != each.shape for each in chosen.values())


def _what_speaks_against(nearer: Recipe, recipe: Recipe) -> str:
    """Return why a recipe whose model is nearer to the tier's size is not the planner's."""
    if recipe.head and not nearer.head:
        return "has no EAGLE-3 head here"
    if nearer.price > recipe.price:
        return f"costs {nearer.price:.2f} USD/h instead of {recipe.price:.2f}"
    return "is worth less by drafts, price and idle cards together"


def _what_a_token_costs(name: TierName, chosen: Mapping[TierName, Recipe]) -> str:
    own = chosen[name]
    price = f"10^6 tokens cost {own.usd:.2g} USD at a batch of {BATCH}"
    if name != "eco":
        return f"{price}."
    cheaper = [
        f"{each}'s {chosen[each].usd:.2g}"
        for each in TIER_NAMES
        if chosen[each].usd < own.usd or chosen[each].usd_alone < own.usd_alone
    ]
    if not cheaper:
        return f"The cheapest: {price}."
    return f"Not the cheapest: {price}, {' and '.join(cheaper)}, as cards there read more bytes for the price."


def _why_not(model_name: str, cards: Sequence[Cards], chosen: Mapping[TierName, Recipe], other: Other) -> str:
    """Return the constraint that keeps the model away, with its numbers."""
    known = catalogue()
    model = known.models[model_name]
    able = [each for each in cards if known.gpus[each.gpu].capability >= model.capability]
    if not able:
        most = max(known.gpus[each.gpu].capability for each in cards)
        return f"its weights ({model.weights}) need compute capability {model.capability}, here is {most} at most"
    alone = [each for cards_ in able for each in recipes(cards_.gpu, max(cards_.nodes)) if each.model == model_name]
    if not alone:
        # The type on which it needs the least more than there is.
        return min((_too_large(model_name, each) for each in able), key=lambda found: found[0])[1]
    instead = other(lambda tier, each: tier != "ultra" or each.model == model_name)
    if instead is not None:
        return f"as ultra it {_would_leave(instead, chosen, 'ultra')}"
    smallest = min(alone, key=lambda each: each.demand)
    have = next(each.count for each in cards if each.gpu == smallest.gpu)
    least = min(each.demand for each in recipes(smallest.gpu, 1))
    if len(cards) > 1 or smallest.demand + 3 * least <= WHOLE * have:
        return f"it needs {_part(smallest)} in one machine, where Ray may put other tiers' replicas first"
    return (
        f"it needs {_part(smallest)} of {have}, and what is left has no room for three other tiers, which need "
        f"{least / WHOLE:g} of a card each at least"
    )


def _too_large(model_name: str, cards: Cards) -> tuple[float, str]:
    """Return by which factor the model exceeds the most cards of a machine that it can be split over, and in words."""
    model, machine = catalogue().models[model_name], max(cards.nodes)
    possible = [size for size in SIZES if model.splits_over(size)]
    need = {size: sized(Recipe(cards.gpu, size, model_name, None, CONTEXTS[0])) for size in possible}
    size = max(each for each in possible if each <= machine)
    missing = (
        f"it needs {need[size].need_gib:.1f} GiB of {need[size].allowed_gib:.1f} on "
        f"{'each of ' if size > 1 else ''}{size} x {cards.gpu}"
    )
    would = [each for each in possible if each > machine and fits(need[each])]
    if would:
        why = f"; it fits {would[0]} in one machine, a machine here has {machine}"
    elif size == max(possible):
        why = ", the most that it can be split over"
    else:
        why = ", the most that it can be split over in a machine here"
    return need[size].need_gib / need[size].allowed_gib, missing + why


def _would_leave(instead: Mapping[TierName, Recipe], chosen: Mapping[TierName, Recipe], but: TierName) -> str:
    """Return what another plan has for the other tiers."""
    changed = [
        f"{name} {instead[name].model} instead of {chosen[name].model}"
        for name in TIER_NAMES
        if name != but and instead[name].model != chosen[name].model
    ]
    if changed:
        return f"would have room, but leave {' and '.join(changed)}"
    price = f"{instead[but].price:.2f} USD/h instead of {chosen[but].price:.2f}"
    return f"would have room on {_part(instead[but])}, at {price}"


def _idle(cards: Cards, chosen: Mapping[TierName, Recipe], replicas: Mapping[TierName, int]) -> Iterator[str]:
    on = [name for name in TIER_NAMES if chosen[name].gpu == cards.gpu]
    if not on:
        yield (
            f"Unused: {cards.count} x {cards.gpu}, as a tier runs on one type of card. To use them, give a tier "
            f"`gpu: {cards.gpu}` by hand, or make them a profile of their own."
        )
        return
    free = WHOLE * cards.count - sum(chosen[name].demand * replicas[name] for name in on)
    if free < _FREE:
        return
    stays = f"{free / WHOLE:.3g} of {cards.count} {cards.gpu} stay idle with all replicas up"
    if free < min(chosen[name].demand for name in on):
        yield f"{stays}: no tier's replica is that small."
        return
    largest = max(on, key=lambda name: chosen[name].demand)
    if chosen[largest].cards > 1:
        why = (
            f"with more, others could spread so that no machine keeps {chosen[largest].cards} free cards for {largest}"
        )
    else:
        why = "with more, it is not proven that each finds a place whatever starts and stops"
    yield f"{stays}: {why}, and Ray moves none. To use them, raise `replicas.max` by hand; a replica may then wait."


def _host_memory(cards: Cards, chosen: Mapping[TierName, Recipe], replicas: Mapping[TierName, int]) -> Iterator[str]:
    """Yield the memory that a machine must have for the most engines that may run there."""
    machine = max(cards.nodes)
    unit = gcd(WHOLE, *(recipe.demand for recipe in chosen.values()))
    units = WHOLE * machine // unit
    most_gib = [0.0] * (units + 1)  # by how much of the cards engines may take
    for name in TIER_NAMES:
        demand, engine_gib = chosen[name].demand // unit, host_gib(chosen[name].cards or 1)
        left = min(replicas[name], units // demand) if chosen[name].gpu == cards.gpu else 0
        together = 1
        # Engines in groups of 1, 2, 4, ...: with or without each group makes every number of them.
        while left:
            group = min(together, left)
            for taken in range(units, group * demand - 1, -1):
                most_gib[taken] = max(most_gib[taken], most_gib[taken - group * demand] + group * engine_gib)
            left, together = left - group, 2 * together
    if most_gib[-1]:
        yield (
            f"A machine with {machine} x {cards.gpu} wants {most_gib[-1]:g} GiB of memory for the engines that may "
            "run there, besides their weights (estimated)."
        )


def _shares_with(one: Recipe, other: Recipe) -> bool:
    return one.gpu == other.gpu and not one.cards


def _part(recipe: Recipe) -> str:
    return f"{recipe.demand / WHOLE:g} x {recipe.gpu}"
