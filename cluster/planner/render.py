"""A plan as a profile's YAML, to be read and edited by people. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any, Final

import yaml

from cluster.catalogue.types import Eagle3Head, Model, catalogue
from cluster.planner.plan import Plan
from cluster.planner.recipes import LARGE_GB
from cluster.planner.supply import written
from router.registry import ChainEntry, Tier

_WIDTH: Final = 118
_BASELINE: Final = """\
baseline:
  gpu: H100
  active_watts: 564
  price_usd_per_hour: 6.88
  ttft_s: 0.05
  tokens_per_s: 155
  source: 8B-shaped bf16 model on one H100 80GB, one stream, 2026-11-27; ML.ENERGY v3 median power; AWS p5 price
"""


def render(plan: Plan) -> str:
    """Return the plan as YAML with its reasons as comments."""
    cards = written(plan.cards)
    lines = [
        *_comment(
            f"Made by `power-lever profile --gpus {cards}`; edit it as you like. `power-lever check` says what does "
            "not fit. Prices and watts are those of one replica, of its share of a card where `gpus` is below 1 "
            "(cluster/catalogue/gpus.yaml has their sources: put your own). `expected_*` and prices of tokens are "
            "estimates by one formula for all (bench/results/estimates.md), without speculation and without neighbours "
            "on the card; past runs replace them. Nothing here was run on a GPU."
        ),
        *(line for note in plan.notes for line in _comment(note)),
        f"description: four tiers on {cards}",
        "",
        "models:",
        *_models(plan),
        "",
        _BASELINE,
        "tiers:",
    ]
    for name, tier in plan.tiers.items():
        lines += [f"  {name}:", *(line for reason in plan.reasons[name] for line in _comment(reason, indent=4))]
        lines += _tier(name, tier)
    return "\n".join(lines) + "\n"


def _models(plan: Plan) -> Iterator[str]:
    known = catalogue()
    names: dict[str, None] = {}
    for tier in plan.tiers.values():
        for entry in tier.chain:
            names[entry.target] = None
            if entry.speculation and entry.speculation.draft:
                names[entry.speculation.draft] = None
    sources: dict[str, Model | Eagle3Head] = {**known.models, **known.eagle3_heads}
    large = {name for name in names if name in known.models and known.models[name].weight_bytes / 1e9 >= LARGE_GB}
    large |= {head for name in large if (head := known.models[name].eagle3)}
    for name in names:
        source = sources[name]
        value: dict[str, Any] = {"source": "hub", "repo": source.repo}
        if source.revision != "main":
            value["revision"] = source.revision
        value["size_gb"] = round(source.weight_bytes / 1e9, 1)
        if name in large:
            value["large"] = True
        flow = _flow(value)
        one = f"  {name}: {flow}"
        yield from [one] if len(one) <= _WIDTH else [f"  {name}:", f"    {flow}"]


def _tier(name: str, tier: Tier) -> Iterator[str]:
    for key in ("power", "gpu", "gpus", "cpus", "replicas", "price_usd_per_hour"):
        yield f"    {key}: {_flow(_plain(getattr(tier, key)))}"
    for key in ("active_watts", "idle_watts", "limit_watts"):
        yield f"    {key}: {_flow(_plain(getattr(tier, key)))}"
    for key in ("max_ongoing_requests", "cold_start_s", "expected_ttft_ms", "expected_tokens_per_s"):
        yield f"    {key}: {_flow(_plain(getattr(tier, key)))}"
    yield "    chain:"
    anchor: dict[str, Any] | None = None
    for entry in tier.chain:
        yield from _entry(entry)
        if anchor is None:
            anchor = entry.engine_args
            yield f"        engine_args: &{name}"
            yield from (f"          {key}: {_flow(value)}" for key, value in anchor.items())
        elif entry.engine_args == anchor:
            yield f"        engine_args: *{name}"
        else:
            changed = {key: value for key, value in entry.engine_args.items() if anchor.get(key) != value}
            yield f"        engine_args: {{<<: *{name}, {_flow(changed)[1:]}"


def _entry(entry: ChainEntry) -> Iterator[str]:
    yield f"      - name: {entry.name}"
    yield f"        target: {entry.target}"
    yield f"        max_model_len: {entry.max_model_len}"
    if entry.speculation is not None:
        yield f"        speculation: {_flow(entry.speculation.model_dump(exclude_defaults=True, mode='json'))}"


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value.model_dump() if hasattr(value, "model_dump") else list(value) if isinstance(value, tuple) else value


def _flow(value: Any) -> str:
    if isinstance(value, str | int | float):
        return yaml.safe_dump(value).removesuffix("\n").removesuffix("\n...")
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000).strip()


def _comment(text: str, indent: int = 0) -> list[str]:
    pad = " " * indent
    return textwrap.wrap(text, _WIDTH, initial_indent=f"{pad}# ", subsequent_indent=f"{pad}# ", break_on_hyphens=False)
