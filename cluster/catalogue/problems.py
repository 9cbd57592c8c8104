"""What the catalogue says cannot work in a profile, one line for each problem. Pure; no card is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cluster.catalogue.memory import default_utilization, entry_budget, memory_problems
from cluster.catalogue.types import GIB, Catalogue, Eagle3Head, Gpu, Model, catalogue
from router.registry import ONLY_ON_V1, ChainEntry, Profile, Tier

_SHRINKS: Final = {"fp8": 2, "experts_int8": 2, "bitsandbytes": 4, "torchao": 4}
"""Methods of vLLM that may quantise 16-bit weights while they load, and how much smaller these are then."""


def profile_problems(profile: Profile) -> list[str]:
    """Return one line for each thing in the profile that cannot work, as far as the catalogue knows."""
    known = catalogue()
    lines = []
    for name, tier in profile.tiers.items():
        gpu = known.gpus.get(tier.gpu or "")
        if tier.gpu is not None and gpu is None:
            lines.append(
                f"tiers.{name}.gpu: got {tier.gpu!r}, which the catalogue does not know, so nothing of this tier was "
                f"checked; known are {', '.join(known.gpus)}"
            )
            continue
        for entry in tier.chain:
            where = f"tiers.{name}.chain, entry {entry.name!r}"
            lines += [f"{where}: {problem}" for problem in _of_entry(entry, tier, gpu, profile, known)]
    return lines + memory_problems(profile)


def _of_entry(entry: ChainEntry, tier: Tier, gpu: Gpu | None, profile: Profile, known: Catalogue) -> Iterator[str]:
    target = known.models.get(entry.target)
    if target is not None:
        yield from _context(entry, target)
        yield from _head(entry, target, known)
    if gpu is None:
        return
    yield from _sequences(entry, tier)
    share = entry.engine_args.get("gpu_memory_utilization")
    most = default_utilization(tier, known)
    if tier.gpus < 1 and isinstance(share, int | float) and share > most:
        yield (
            f"engine_args.gpu_memory_utilization: got {share:g}, must be at most {most:g}, the tier's share of a card "
            f"(gpus: {tier.gpus:g}) less its CUDA context, as others have the rest"
        )
    draft = entry.speculation.draft if entry.speculation else None
    if target is not None:
        yield from _split("target", entry.target, target, tier.tensor_parallel)
        yield from _format("target", entry.target, target, tier, gpu)
    if draft is not None and (model := known.models.get(draft)) is not None:
        yield from _split("draft", draft, model, tier.tensor_parallel)
        yield from _format("draft", draft, model, tier, gpu)
    elif draft is not None and draft in known.eagle3_heads:
        yield from _split("draft", draft, known.eagle3_heads[draft], tier.tensor_parallel)
    if entry_budget(entry, tier, known) is None:
        yield from _size(entry, tier, gpu, profile, known)


def _sequences(entry: ChainEntry, tier: Tier) -> Iterator[str]:
    """Yield that a batch is too small for the drafts: vLLM's V2 runner needs more sequences (`compat.py`)."""
    speculation, most = entry.speculation, tier.most_sequences(entry)
    if speculation is None or entry.runner == "v1" or speculation.method in ONLY_ON_V1:
        return
    if most <= speculation.k_max:
        key = "max_num_seqs" if "max_num_seqs" in entry.engine_args else "max_ongoing_requests"
        yield f"{key}: got {most}, must be more than speculation.k_max ({speculation.k_max})"


def _context(entry: ChainEntry, target: Model) -> Iterator[str]:
    # `hf_overrides` may stretch the context (YaRN).
    if entry.max_model_len > target.context and "hf_overrides" not in entry.engine_args:
        yield (
            f"max_model_len: got {entry.max_model_len}, must be at most {target.context}, the context of {entry.target}"
        )


def _head(entry: ChainEntry, target: Model, known: Catalogue) -> Iterator[str]:
    draft = entry.speculation.draft if entry.speculation else None
    if draft is None or draft not in known.eagle3_heads or draft == target.eagle3:
        return
    made_for = [name for name, model in known.models.items() if model.eagle3 == draft]
    yield (
        f"speculation.draft: got {draft!r}, an EAGLE-3 head made for {' and '.join(made_for)}, not for {entry.target}, "
        + (f"whose head is {target.eagle3!r}" if target.eagle3 else "of which no head is known")
    )


def _split(what: str, name: str, model: Model | Eagle3Head, parallel: int) -> Iterator[str]:
    """Yield why a model cannot be split over that many cards."""
    most = model.max_parallel if isinstance(model, Model) else parallel
    if parallel > most:
        yield f"gpus: got {parallel}, must be at most {most} for {what} {name}, which cannot be split over more cards"
    elif model.heads % parallel:
        yield f"gpus: got {parallel}, must divide the {model.heads} attention heads of {what} {name}"
    elif model.kv_heads % parallel and parallel % model.kv_heads:
        yield f"gpus: got {parallel}, must divide the {model.kv_heads} KV heads of {what} {name}, or be a multiple"


def _format(what: str, name: str, model: Model, tier: Tier, gpu: Gpu) -> Iterator[str]:
    if gpu.capability < model.capability:
        yield (
            f"{what}: got {name!r}, whose weights ({model.weights}) need a GPU of compute capability "
            f"{model.capability:.1f} or higher; {tier.gpu} has {gpu.capability:.1f}"
        )


def _size(entry: ChainEntry, tier: Tier, gpu: Gpu, profile: Profile, known: Catalogue) -> Iterator[str]:
    """Yield that the weights alone are too much, where the catalogue does not know all of them."""
    share = entry.engine_args.get("gpu_memory_utilization")
    if not isinstance(share, int | float):
        share = default_utilization(tier, known)
    has_gib = share * gpu.memory_gib * tier.tensor_parallel
    source = profile.models.get(entry.target)
    if entry.target in known.models or source is None:
        return
    need_gib = source.size_gb * 1e9 / GIB / _SHRINKS.get(entry.quantization or "", 1)
    if need_gib > has_gib:
        yield (
            f"models.{entry.target}.size_gb: got {source.size_gb:g}, so the weights alone need {need_gib:.1f} GiB of "
            f"{has_gib:.1f} GiB on {tier.gpus:g} x {tier.gpu}"
        )
