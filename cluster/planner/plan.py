"""The planner: four tiers on the cards that there are, with the reasons. Pure.

It looks for the best of all combinations of models and cards by a score: eco, balanced and performance near their own
size (4, 8 and 32 x 10^9 parameters), ultra as large as possible, each tier's model larger than the one before, EAGLE-3
heads where there are some, no card left idle. Only combinations count in which every replica always finds a place under
Ray's packing (`packing.py`), and every entry fits its part of a card (`cluster/catalogue/memory.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Final

from cluster.catalogue.memory import entry_budget, utilization
from cluster.catalogue.speed import expected
from cluster.catalogue.types import catalogue
from cluster.planner.packing import WHOLE, place_for_all
from cluster.planner.recipes import CONTEXTS, LARGE_GB, LAST_RESORT, Recipe, recipes, tier_of
from cluster.planner.supply import Cards, written
from router.errors import ConfigError
from router.registry import TIER_NAMES, Tier, TierName

_POWER: Final[dict[TierName, tuple[int, int]]] = {
    "eco": (0, 25),
    "balanced": (26, 50),
    "performance": (51, 80),
    "ultra": (81, 100),
}
_IDEAL: Final[dict[TierName, float]] = {"eco": 4.0, "balanced": 8.0, "performance": 32.0}
"""Size of a tier's model, 10^9 parameters; ultra has none."""
_ULTRA: Final = 1.2  # worth of a factor e in the size of ultra's model
_HEAD: Final = 0.15  # worth of an EAGLE-3 head
_SAME: Final = 0.6  # cost of the same model as the tier below
_WASTE: Final = (
    0.3  # cost of a whole card for a model that needs under a quarter of it, or of cards that it does not need
)
_ROOMY: Final = 0.05  # cost of a whole card for a model that needs under 45% of it
_IDLE: Final = 0.1  # cost of a card that no tier uses
_ABOVE: Final = 0.8  # cost of a more powerful card than that of the tier above
_PRICE: Final = 0.02  # cost of a replica's USD per hour
_MOST_REPLICAS: Final = 8


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
    chosen = _choose(cards)
    if chosen is None:
        raise ConfigError(
            f"no four tiers fit {written(cards) or 'no GPU'}: the smallest four engines need a card of 20 GiB; "
            f"allowed are {', '.join(catalogue().gpus)}"
        )
    chosen = _alone(cards, chosen)
    demands = {name: recipe.demand for name, recipe in chosen.items()}
    demands = _grown(cards, chosen, demands)
    chosen = {name: _longer(recipe, demands[name]) for name, recipe in chosen.items()}
    replicas = _replicas(cards, chosen, demands)
    tiers: dict[TierName, Tier] = {}
    reasons: dict[TierName, tuple[str, ...]] = {}
    for name in TIER_NAMES:
        recipe = chosen[name]
        speed = expected(recipe.model, recipe.gpu, max(1, recipe.cards))
        tiers[name] = tier_of(
            recipe,
            hundredths=demands[name],
            power=_POWER[name],
            replicas=replicas[name],
            ttft_ms=speed.ttft_ms,
            tokens_per_s=speed.tokens_per_s,
        )
        reasons[name] = tuple(_reasons(name, chosen, demands, tiers[name], speed.basis))
    return Plan(tuple(cards), tiers, reasons, tuple(_notes(cards, chosen)))


def _choose(cards: Sequence[Cards]) -> dict[TierName, Recipe] | None:
    """Return the best recipe of each tier, or None if no four go together."""
    all_ = [recipe for each in cards for recipe in recipes(each.gpu, max(each.nodes))]
    order: tuple[TierName, ...] = tuple(reversed(TIER_NAMES))
    options = {name: _best_of(name, all_) for name in order}
    if not all(options.values()):
        return None
    kinds = [each.gpu for each in cards]
    ceiling = {name: _score(name, options[name][0]) for name in order}
    best: tuple[float, dict[TierName, Recipe] | None] = (float("-inf"), None)
    placed: dict[tuple[tuple[str, int], ...], bool] = {}

    def fits(chosen: Mapping[TierName, Recipe], *, exactly: bool) -> bool:
        for each in cards:
            demands = {name: recipe.demand for name, recipe in chosen.items() if recipe.gpu == each.gpu}
            if sum(demands.values()) > WHOLE * each.count:
                return False
            if exactly and demands:
                key = (("", cards.index(each)), *((f"{index}", d) for index, d in enumerate(sorted(demands.values()))))
                if key not in placed:
                    placed[key] = _placed(each.nodes, demands, dict.fromkeys(demands, 1))
                if not placed[key]:
                    return False
        return True

    def search(chosen: dict[TierName, Recipe], score: float) -> None:
        nonlocal best
        if len(chosen) == len(order):
            score -= _IDLE * _idle(cards, chosen)
            if score > best[0] and fits(chosen, exactly=True):
                best = (score, dict(chosen))
            return
        name = order[len(chosen)]
        rest = sum(ceiling[other] for other in order[len(chosen) + 1 :])
        above = chosen[order[len(chosen) - 1]] if chosen else None
        for recipe in options[name]:
            own = _score(name, recipe)
            if score + own + rest <= best[0]:
                break
            if above is not None and recipe.rank > above.rank:
                continue
            same = _SAME if above is not None and recipe.model == above.model else 0.0
            stronger = above is not None and kinds.index(recipe.gpu) > kinds.index(above.gpu)
            chosen[name] = recipe
            if fits(chosen, exactly=False):
                search(chosen, score + own - same - (_ABOVE if stronger else 0.0))
            del chosen[name]

    search({}, 0.0)
    return best[1]


def _placed(nodes: Sequence[int], demands: Mapping[TierName, int], replicas: Mapping[TierName, int]) -> bool:
    names = {str(name): demand for name, demand in demands.items()}
    return place_for_all(nodes, names, {str(name): count for name, count in replicas.items()})


def _best_of(name: TierName, all_: Iterable[Recipe]) -> list[Recipe]:
    """Return the tier's recipes, best first, without those that another beats.

    Another beats it if it is for the same type and number of cards, scores as well, and asks for no more of the card
    and of the tier above: it is no larger.
    """
    found: list[Recipe] = []
    for recipe in sorted(all_, key=lambda each: (-_score(name, each), each.demand, each.rank)):
        beaten = any(
            (other.gpu, other.cards) == (recipe.gpu, recipe.cards)
            and other.demand <= recipe.demand
            and other.rank <= recipe.rank
            for other in found
        )
        if not beaten:
            found.append(recipe)
    return found


def _score(name: TierName, recipe: Recipe) -> float:
    size = _ULTRA * log(recipe.rank) if name == "ultra" else -abs(log(recipe.rank / _IDEAL[name]))
    return size + (_HEAD if recipe.head else 0.0) - _waste(recipe) - _PRICE * _price(recipe)


def _waste(recipe: Recipe) -> float:
    used = recipe.need_gib / catalogue().gpus[recipe.gpu].memory_gib
    if recipe.cards > 1 and used < 0.45:
        return _WASTE * recipe.cards
    if recipe.cards == 1 and used < 0.45:
        return _ROOMY if used > 0.25 else _WASTE
    return 0.0


def _price(recipe: Recipe) -> float:
    return (catalogue().gpus[recipe.gpu].price_usd_per_hour or 0.0) * recipe.demand / WHOLE


def _idle(cards: Sequence[Cards], chosen: Mapping[TierName, Recipe]) -> int:
    idle = 0
    for each in cards:
        whole = sum(recipe.cards for recipe in chosen.values() if recipe.gpu == each.gpu)
        shared = any(recipe.gpu == each.gpu and not recipe.cards for recipe in chosen.values())
        idle += each.count - whole - shared
    return max(0, idle)


def _alone(cards: Sequence[Cards], chosen: dict[TierName, Recipe]) -> dict[TierName, Recipe]:
    """Return the recipes with whole cards for a tier whose share no other tier would fill."""
    for each in cards:
        on_type = {name: recipe for name, recipe in chosen.items() if recipe.gpu == each.gpu}
        sharing = [name for name, recipe in on_type.items() if not recipe.cards]
        if len(sharing) != 1:
            continue
        name, old = sharing[0], on_type[sharing[0]]
        whole = [new for new in recipes(each.gpu, 1) if (new.model, new.cards) == (old.model, 1)]
        demands = {other: recipe.demand for other, recipe in on_type.items()} | {name: WHOLE}
        if whole and _placed(each.nodes, demands, dict.fromkeys(demands, 1)):
            chosen = chosen | {name: whole[0]}
    return chosen


def _grown(
    cards: Sequence[Cards], chosen: Mapping[TierName, Recipe], demands: dict[TierName, int]
) -> dict[TierName, int]:
    """Return the demands with the rest of a shared card given to its tiers, by what they need."""
    grown = dict(demands)
    for each in cards:
        shares = {name: demands[name] for name, recipe in chosen.items() if recipe.gpu == each.gpu and not recipe.cards}
        rest = WHOLE - sum(shares.values())
        if len(shares) < 2 or rest <= 0:
            continue
        larger = {name: share + rest * share // sum(shares.values()) for name, share in shares.items()}
        on_type = {name: grown[name] for name, recipe in chosen.items() if recipe.gpu == each.gpu} | larger
        if _placed(each.nodes, on_type, dict.fromkeys(on_type, 1)):
            grown |= larger
    return grown


def _longer(recipe: Recipe, demand: int) -> Recipe:
    """Return the recipe with the longest context that fits its share."""
    if recipe.cards:
        return recipe
    for context in CONTEXTS:
        tried = replace(recipe, context=context)
        tier = tier_of(tried, hundredths=demand, power=(0, 100))
        if all((budget := entry_budget(entry, tier)) is None or budget.fits for entry in tier.chain):
            return tried
    return recipe


def _replicas(
    cards: Sequence[Cards], chosen: Mapping[TierName, Recipe], demands: Mapping[TierName, int]
) -> dict[TierName, int]:
    """Return the most replicas of each tier: as many as always find a place, given out in turn."""
    replicas = dict.fromkeys(TIER_NAMES, 1)
    growing: list[TierName] = ["performance", "balanced", "ultra", "eco"]
    while growing:
        for name in tuple(growing):
            each = next(each for each in cards if each.gpu == chosen[name].gpu)
            on_type = {other: demands[other] for other, recipe in chosen.items() if recipe.gpu == each.gpu}
            more = {other: replicas[other] + (other == name) for other in on_type}
            enough = sum(demands[other] * count for other, count in more.items()) <= WHOLE * each.count
            if more[name] <= _MOST_REPLICAS and enough and _placed(each.nodes, on_type, more):
                replicas[name] += 1
            else:
                growing.remove(name)
    return replicas


def _reasons(
    name: TierName, chosen: Mapping[TierName, Recipe], demands: Mapping[TierName, int], tier: Tier, basis: str
) -> Iterable[str]:
    recipe = chosen[name]
    known = catalogue()
    gpu, model = known.gpus[recipe.gpu], known.models[recipe.model]
    need = max(budget.total for entry in tier.chain if (budget := entry_budget(entry, tier)) is not None)
    below = TIER_NAMES[TIER_NAMES.index(name) - 1] if name != "eco" else None
    if below is not None and chosen[below].model == recipe.model:
        yield f"No larger model fits here: the model of {below}, with a part of a card of its own."
    elif name == "ultra":
        yield "The largest model of the catalogue that fits."
    else:
        yield f"Of the models that fit together the nearest to {name}'s size, {_IDEAL[name]:g}B."
    if recipe.cards:
        each = f"each of {recipe.cards} cards" if recipe.cards > 1 else "a card of its own"
        yield f"It needs {need:.1f} GiB of {utilization(1, gpu) * gpu.memory_gib:.1f} on {each}."
    else:
        others = [other for other in TIER_NAMES if other != name and chosen[other].gpu == recipe.gpu]
        near = [other for other in others if not chosen[other].cards]
        share = demands[name] / 100
        yield (
            f"It needs {need:.1f} GiB of {utilization(share, gpu) * gpu.memory_gib:.1f}, its share of a card"
            + (f" that it may share with {', '.join(near)}." if near else ".")
        )
    if recipe.head is None:
        yield "n-gram drafts: " + (
            "no room for its EAGLE-3 head." if model.eagle3 else "no EAGLE-3 head is known for it."
        )
    neighbours = "" if recipe.cards else ", alone on the card"
    yield f"`expected_*` from: {basis}{neighbours}."
    if gpu.price_usd_per_hour is None:
        yield "No price of this card was found: put yours."


def _notes(cards: Sequence[Cards], chosen: Mapping[TierName, Recipe]) -> Iterable[str]:
    """Yield what cannot be had, and cards that stay unused."""
    known = catalogue()
    top = chosen["ultra"]
    larger = [name for name, model in known.models.items() if model.rank > known.models[top.model].rank * 1.5]
    fitting = {recipe.model for each in cards for recipe in recipes(each.gpu, max(each.nodes))}
    for name in larger[:2]:
        if name in fitting:
            yield f"Not here: {name} fits these cards alone, but not beside three other tiers."
        else:
            size = known.models[name].weight_bytes / 2**30
            most = max(max(each.nodes) * known.gpus[each.gpu].memory_gib for each in cards)
            able = any(known.gpus[each.gpu].capability >= known.models[name].capability for each in cards)
            why = f"its weights take {size:.0f} GiB, and a machine here has {most:.0f} GiB for them and all else"
            why = why if able else "these cards cannot run it"
            yield f"Not here: {name}: {why}."
    for each in cards:
        if not any(recipe.gpu == each.gpu for recipe in chosen.values()):
            yield f"Unused: {each.count} x {each.gpu}."
    used = {recipe.model for recipe in chosen.values()}
    if any(known.models[name].weight_bytes / 1e9 >= LARGE_GB for name in used):
        yield f"Large weights come with `power-lever weights seed --large`; without them a tier serves {LAST_RESORT}."
