"""How a tier runs one model on some cards: its chain entries and what they need. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from cluster.catalogue.memory import entry_budget, share_of, utilization
from cluster.catalogue.types import Gpu, Model, catalogue
from router.registry import ChainEntry, Replicas, Speculation, Tier

CONTEXTS: Final = (32768, 16384, 8192)
"""Context lengths to plan for, tokens, longest first; a share of a card gets the shortest."""
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
    need_gib: float

    @property
    def demand(self) -> int:
        """Hundredths of a card."""
        return 100 * self.cards if self.cards else round(100 * share_of(self.need_gib, catalogue().gpus[self.gpu]))

    @property
    def rank(self) -> float:
        """Size of its model, 10^9 parameters."""
        return catalogue().models[self.model].rank


def recipes(gpu_name: str, most_cards: int) -> Iterator[Recipe]:
    """Yield every model on a share of a card, and on 1, 2, 4 and 8 cards as far as a node has them."""
    known = catalogue()
    gpu = known.gpus[gpu_name]
    for name, model in known.models.items():
        if gpu.capability < model.capability:
            continue
        for head in (model.eagle3, None) if model.eagle3 else (None,):
            for cards in (0, 1, 2, 4, 8):
                if cards > min(most_cards, model.max_parallel):
                    continue
                for context in CONTEXTS if cards else CONTEXTS[-1:]:
                    recipe = _recipe(gpu_name, gpu, name, head, cards, context)
                    if recipe is not None:
                        yield recipe
                        break


def _recipe(gpu_name: str, gpu: Gpu, name: str, head: str | None, cards: int, context: int) -> Recipe | None:
    draft = Recipe(gpu_name, cards, name, head, context, 0.0)
    tier = tier_of(draft, hundredths=100 * cards or 100, power=(0, 100))
    budgets = [budget for entry in tier.chain if (budget := entry_budget(entry, tier)) is not None]
    need = max(budget.total for budget in budgets)
    allowed = utilization(1, gpu) * gpu.memory_gib if cards else 0.9 * gpu.memory_gib
    return Recipe(gpu_name, cards, name, head, context, need) if need <= allowed else None


def tier_of(recipe: Recipe, *, hundredths: int, power: tuple[int, int], replicas: int = 1, **expected: float) -> Tier:
    """Return the tier that runs a recipe on that many hundredths of a card."""
    known = catalogue()
    gpu, model = known.gpus[recipe.gpu], known.models[recipe.model]
    share = hundredths / 100
    whole = recipe.cards > 0
    return Tier(
        power=power,
        gpu=recipe.gpu,
        gpus=share,
        # Four tiers on one card must also fit the few CPUs that machines with one card have.
        cpus=0.5 if not whole else 2 if share == 1 else 4,
        replicas=Replicas(min=0, max=replicas),
        price_usd_per_hour=round((gpu.price_usd_per_hour or 0) * share, 3),
        active_watts=round(gpu.active_watts * share),
        idle_watts=round(gpu.idle_watts * share),
        max_ongoing_requests=_requests(gpu, whole=whole),
        cold_start_s=_cold_start_s(model),
        chain=tuple(_chain(recipe, model, gpu, whole=whole, share=share)),
        expected_ttft_ms=expected.get("ttft_ms"),
        expected_tokens_per_s=expected.get("tokens_per_s"),
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
