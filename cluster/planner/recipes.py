"""How a tier runs one model on some cards: its chain entries and what they need. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from cluster.catalogue.memory import MEAN_REQUESTS, entry_budget, share_of, utilization
from cluster.catalogue.speed import expected, step_ms, usd_per_million
from cluster.catalogue.types import Gpu, Model, catalogue
from router.registry import ChainEntry, Replicas, Speculation, Tier, TierName

IDEAL: Final[dict[TierName, float]] = {"eco": 4.0, "balanced": 8.0, "performance": 32.0}
"""Size of a tier's model, 10^9 parameters; ultra's is as large as possible."""
CONTEXTS: Final = (8192, 16384, 32768)
"""Context lengths to plan for, tokens. A share of a card starts with the shortest."""
SIZES: Final = (1, 2, 4, 8)
"""Tensor parallel sizes."""
BATCH: Final = MEAN_REQUESTS
"""Requests at a time at which tiers are compared by price: as many as every entry has KV cache for."""
_LARGE_GIB: Final = 70.0
_MEDIUM_GIB: Final = 40.0
"""From this memory on, a card gets large batches; from this, deep drafts. Both cost memory."""
LARGE_GB: Final = 20.0
"""From this size on, weights are `large` and the chain ends with a small model."""
LAST_RESORT: Final = "llama-3.1-8b-instruct-w4a16"
_TAU: Final = 0.3
_NGRAM_TAU: Final = 0.05
"""`ngram_gpu` drafts at every step, so its acceptance is small by nature."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A model on whole cards (`cards` > 0) or on a share of one (0)."""

    gpu: str
    cards: int
    model: str
    head: str | None
    context: int
    need_gib: float = 0.0
    demand: int = 0
    """Hundredths of a card."""
    price: float = 0.0
    """Of a replica, USD per hour."""
    usd_alone: float = 0.0
    """Price of 10^6 tokens of one request at a time."""
    usd: float = 0.0
    """Price of 10^6 tokens with `BATCH` requests at a time; both alone on its cards."""

    @property
    def parallel(self) -> int:
        """Cards that it is split over."""
        return max(1, self.cards)

    @property
    def allowed_gib(self) -> float:
        """Memory that it may have on each card."""
        gpu = catalogue().gpus[self.gpu]
        share = utilization(self.demand / 100, gpu)
        return share * gpu.memory_gib

    @property
    def rank(self) -> float:
        """Size of its model, 10^9 parameters."""
        return catalogue().models[self.model].rank

    @property
    def shape(self) -> tuple[int, int, int]:
        """The model without the format of its weights: two formats of one model are no two tiers."""
        return catalogue().models[self.model].shape


@cache
def recipes(gpu_name: str, most_cards: int) -> tuple[Recipe, ...]:
    """Return every model on a share of a card, and on 1, 2, 4 and 8 cards as far as a node has them."""
    return tuple(_recipes(gpu_name, most_cards))


def _recipes(gpu_name: str, most_cards: int) -> Iterator[Recipe]:
    known = catalogue()
    for name, model in known.models.items():
        if known.gpus[gpu_name].capability < model.capability:
            continue
        for head in (model.eagle3, None) if model.eagle3 else (None,):
            for cards in (0, *(size for size in SIZES if size <= most_cards and model.splits_over(size))):
                for context in reversed(CONTEXTS) if cards else CONTEXTS[:1]:
                    recipe = sized(Recipe(gpu_name, cards, name, head, context))
                    if fits(recipe):
                        yield recipe
                        break


@cache
def sized(recipe: Recipe) -> Recipe:
    """Return the recipe with what it needs and costs."""
    gpu = catalogue().gpus[recipe.gpu]
    tier = tier_of(recipe, hundredths=100 * recipe.parallel, power=(0, 100))
    need = max(budget.total for entry in tier.chain if (budget := entry_budget(entry, tier)) is not None)
    demand = 100 * recipe.cards or round(100 * share_of(need, gpu))
    price = round(gpu.price_usd_per_hour * demand / 100, 3)
    usd_alone, usd = (
        usd_per_million(price, step_ms(recipe.model, recipe.gpu, recipe.parallel, batch), batch) for batch in (1, BATCH)
    )
    return replace(recipe, need_gib=need, demand=demand, price=price, usd_alone=usd_alone, usd=usd)


def fits(recipe: Recipe) -> bool:
    """Return whether its cards have the memory that it needs; a share leaves a tenth of the card at least."""
    gpu = catalogue().gpus[recipe.gpu]
    return recipe.need_gib <= (utilization(1, gpu) if recipe.cards else 0.9) * gpu.memory_gib


def tier_of(recipe: Recipe, *, hundredths: int, power: tuple[int, int], replicas: int = 1) -> Tier:
    """Return the tier that runs a recipe on that many hundredths of a card."""
    known = catalogue()
    gpu, model = known.gpus[recipe.gpu], known.models[recipe.model]
    share = hundredths / 100
    whole = recipe.cards > 0
    speed = expected(recipe.model, recipe.gpu, recipe.parallel)
    return Tier(
        power=power,
        gpu=recipe.gpu,
        gpus=share,
        # Four tiers on one card must also fit the few CPUs that machines with one card have.
        cpus=0.5 if not whole else 2 if share == 1 else 4,
        replicas=Replicas(min=0, max=replicas),
        price_usd_per_hour=round(gpu.price_usd_per_hour * share, 3),
        active_watts=round(gpu.active_watts * share),
        idle_watts=round(gpu.idle_watts * share),
        limit_watts=round(gpu.limit_watts * share),
        max_ongoing_requests=_requests(gpu, whole=whole),
        cold_start_s=_cold_start_s(model),
        chain=tuple(_chain(recipe, model, gpu, whole=whole, share=share)),
        expected_ttft_ms=speed.ttft_ms,
        expected_tokens_per_s=speed.tokens_per_s,
    )


def _requests(gpu: Gpu, *, whole: bool) -> int:
    """Return the most requests of a replica. CUDA graphs and logits grow with it."""
    if whole:
        return 128 if gpu.memory_gib >= _LARGE_GIB else 64
    return 32 if gpu.memory_gib >= _MEDIUM_GIB else 16


def _chain(recipe: Recipe, model: Model, gpu: Gpu, *, whole: bool, share: float) -> Iterator[ChainEntry]:
    arguments: dict[str, Any] = {"enable_auto_tool_choice": True, "tool_call_parser": model.tools}
    if whole:
        arguments["max_num_batched_tokens"] = 8192 if gpu.memory_gib >= _LARGE_GIB else 2048
    else:
        arguments["max_num_batched_tokens"] = 2048 if gpu.memory_gib >= _MEDIUM_GIB else 1024
    if not whole:
        arguments["gpu_memory_utilization"] = utilization(share, gpu)
    depth = 5 if whole and gpu.memory_gib >= _MEDIUM_GIB else 4

    def entry(name: str, target: str = recipe.model, speculation: Speculation | None = None) -> ChainEntry:
        parser = {"tool_call_parser": catalogue().models[target].tools}
        return ChainEntry(
            name=name,
            target=target,
            max_model_len=min(recipe.context, catalogue().models[target].context),
            speculation=speculation,
            engine_args=arguments | parser,
        )

    if recipe.head is not None:
        yield entry("eagle3", speculation=Speculation(method="eagle3", draft=recipe.head, k_max=depth, tau=_TAU))
    yield entry("ngram", speculation=Speculation(method="ngram_gpu", k_max=depth, tau=_NGRAM_TAU))
    yield entry("target-only")
    if model.weight_bytes / 1e9 >= LARGE_GB:
        yield entry("small", LAST_RESORT)


def _cold_start_s(model: Model) -> float:
    """Return the expected cold start, s: 90 s of imports, compilation and graphs, and weights at 0.35 GB/s (~)."""
    return float(round((90 + model.weight_bytes / 1e9 / 0.35) / 10) * 10)
