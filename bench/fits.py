"""Print which entry of which profile runs how on which card: `python -m bench.fits > docs/profiles/README.md`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from cluster.catalogue.memory import entry_budget
from cluster.catalogue.speed import expected, step_ms, usd_per_million
from cluster.planner.recipes import BATCH
from cluster.profiles.reading import load_profile
from router.registry import ChainEntry, Profile, Tier
from serve_app.engine.vllm.runner import runner_for

ROOT: Final = Path(__file__).parents[1]
_HEAD: Final = f"""\
# Profiles for GPUs

Examples of `power-lever profile --gpus ...`, made again and compared by a test, and what each entry of them and of the
profile `gpu` needs. **Nothing here was run on a GPU.** Memory is arithmetic for each card (cluster/catalogue/memory.py:
weights, draft, CUDA graphs, activations, a KV cache for one full context and for 16 mean requests) against what the
entry may have. Speed is estimated without speculation, alone on the card, by one formula for all
([all estimates](../../bench/results/estimates.md)): `tokens/s` for one stream, `USD` for 10^6 tokens at a batch of
{BATCH} and the price of the tier's part of its cards. The runner is vLLM's V1 or V2, read in its source. This page is
made by `python -m bench.fits > docs/profiles/README.md`.

| profile | for |
| --- | --- |
"""
_FILES: Final = ("one-l4", "one-h100", "eight-h100", "four-a10g", "mixed")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the page."""
    argparse.ArgumentParser(prog="python -m bench.fits", description=__doc__).parse_args(argv)
    lines = [f"| [{name}.yaml]({name}.yaml) | {load_profile(_path(name)).description} |" for name in _FILES]
    shipped = load_profile("gpu")
    lines.append(f"| [gpu.yaml](../../cluster/profiles/gpu.yaml) | {shipped.description} |")
    profiles = {name: load_profile(_path(name)) for name in _FILES} | {"gpu": shipped}
    for name, profile in profiles.items():
        lines += ["", f"## {name}", "", *table(profile)]
    print(_HEAD + "\n".join(lines))
    return 0


def table(profile: Profile) -> Iterator[str]:
    """Yield the lines of a profile's table."""
    yield "| tier | entry | on | model | drafts | runner | context | needs, GiB | has, GiB | tokens/s | USD |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for name, tier in profile.tiers.items():
        for entry in tier.chain:
            yield f"| {name} | {entry.name} | {tier.gpus:g} x {tier.gpu} | {' | '.join(_cells(tier, entry))} |"


def _cells(tier: Tier, entry: ChainEntry) -> Iterator[str]:
    speculation = entry.speculation
    budget = entry_budget(entry, tier)
    gpu, parallel = tier.gpu or "", tier.tensor_parallel
    yield entry.target
    yield f"{speculation.method}, up to {speculation.k_max}" if speculation else "none"
    yield runner_for(entry, on_gpu=True)
    yield str(entry.max_model_len)
    yield from (f"{budget.total:.1f}", f"{budget.allowed:.1f}") if budget else ("?", "?")
    yield f"{expected(entry.target, gpu, parallel).tokens_per_s:.0f}"
    yield f"{usd_per_million(tier.price_usd_per_hour, step_ms(entry.target, gpu, parallel, BATCH), BATCH):.2g}"


def _path(name: str) -> str:
    return str(ROOT / f"docs/profiles/{name}.yaml")


if __name__ == "__main__":
    sys.exit(main())
