"""What 10^6 output tokens cost: measured on this machine, estimated for GPUs, and by the list prices of hosted models.

measured   the engines of a profile's tiers, each in a process of its own, with 1, 8 and 32 requests at a time: the
           tier's price per hour over the output speed. `busy_usd_per_million` counts the engine's busy time alone.
           Answers of 64 tokens to short prompts, which are paid for too.
estimated  the tiers of the profile `gpu` without speculation, by the formula of cluster/catalogue/speed.py. Nothing of
           it was run: docs/gpus.md says what is known.
hosted     list prices (sustainability/factors.yaml), read where `source` says, without discounts. A tier's model and a
           hosted one of another name do not answer alike.

A replica costs its price while it is idle, too: at a utilization of a tenth a token costs ten times as much. Hosted
prices have all that in them, and a margin.

    python -m bench.cost [--quick] [--profile FILE] [--json FILE]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.engine.engines import Ask, Batch, EngineGoneError, engine_process
from bench.reporting.options import parser
from bench.reporting.report import Value, print_report, provenance, write_json
from cluster.catalogue.speed import step_ms, usd_per_million
from cluster.catalogue.types import catalogue
from cluster.profiles.reading import load_profile
from cluster.weights import missing_reason, models_dir
from cluster.weights.folder import model_path
from router.errors import ConfigError
from router.registry import Profile, Tier
from sustainability.factors import HostedPrice, load_factors
from sustainability.units import SECONDS_PER_HOUR

BATCHES: Final = (1, 8, 32)
TOKENS: Final = 64
MILLION: Final = 1_000_000
PROMPT: Final = "Tell me a story about a fox that counts the stars."
Row = dict[str, Value]


def cost_usd_per_million(price_usd_per_hour: float, seconds: float, tokens: int) -> float:
    """Return the price of 10^6 tokens: USD/h / 3600 s/h * s / tokens * 10^6."""
    return price_usd_per_hour / SECONDS_PER_HOUR * seconds / tokens * MILLION


def measured_row(name: str, entry: str, tier: Tier, size: int, batch: Batch) -> Row:
    """Return a measured tier's row."""
    price, tokens = tier.price_usd_per_hour, batch.tokens
    return {
        "tier": name,
        "entry": entry,
        "batch": size,
        "price_usd_per_hour": price,
        "tokens_per_s": tokens / batch.seconds,
        "usd_per_million": cost_usd_per_million(price, batch.seconds, tokens),
        "busy_usd_per_million": cost_usd_per_million(price, batch.busy.busy_s, tokens),
    }


def measured(profile: Profile, quick: bool) -> Iterator[Row]:
    """Yield the rows of each tier's first entry whose weights are there; equal engines are measured once."""
    folder = models_dir(os.environ)
    seen: dict[str, list[Row]] = {}
    with TemporaryDirectory() as logs:
        for name, tier in profile.tiers.items():
            for entry in tier.chain:
                drafts = [entry.speculation.draft] if entry.speculation and entry.speculation.draft else []
                models = {model: model_path(folder, model) for model in (entry.target, *drafts)}
                if any(missing_reason(folder, model) for model in models):
                    continue
                key = f"{entry.model_dump_json()} {tier.gpus} {tier.price_usd_per_hour}"
                if key not in seen:
                    print(f"{name}/{entry.name}: starting", file=sys.stderr)
                    with engine_process(entry, tier, models, Path(logs) / f"{name}.log") as engine:
                        engine.ask([Ask(PROMPT, max_tokens=TOKENS)] * 8)
                        seen[key] = []
                        for size in BATCHES:
                            asks = [Ask(PROMPT, max_tokens=TOKENS)] * (size if quick else 2 * size)
                            batch = engine.ask(asks, at_once=size)
                            seen[key].append(measured_row(name, entry.name, tier, size, batch))
                yield from ({**row, "tier": name} for row in seen[key])
                break


def estimated() -> Iterator[Row]:
    """Yield a row for each tier of the profile `gpu` and its first entry's model, at each batch size."""
    for name, tier in load_profile("gpu").tiers.items():
        model, gpu = tier.chain[0].target, tier.gpu or ""
        confidence = catalogue().gpus[gpu].price_confidence
        for size in BATCHES:
            step = step_ms(model, gpu, tier.tensor_parallel, size)
            yield {
                "tier": name,
                "model": model,
                "on": f"{tier.gpus:g} x {gpu}",
                "batch": size,
                "price_usd_per_hour": tier.price_usd_per_hour,
                "price_confidence": confidence,
                "tokens_per_s": 1000 * size / step,
                "usd_per_million": usd_per_million(tier.price_usd_per_hour, step, size),
            }


def hosted_row(price: HostedPrice) -> Row:
    """Return a list price's row."""
    return {
        "provider": price.provider,
        "model": price.model,
        "usd_per_million": price.output_usd_per_million,
        "prompt_usd_per_million": price.input_usd_per_million,
        "date": price.date.isoformat(),
        "confidence": price.confidence,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 2 if the profile cannot be used or an engine fails."""
    options = parser("bench.cost", __doc__, "half as many requests")
    options.add_argument("--profile", default="local", metavar="FILE", help="to measure; default: %(default)s")
    args = options.parse_args(argv)
    made_by = provenance()
    try:
        rows = list(measured(load_profile(args.profile), args.quick))
    except (ConfigError, EngineGoneError) as error:
        print(error, file=sys.stderr)
        return 2
    hosted = [
        hosted_row(price) for price in sorted(load_factors().hosted, key=lambda each: each.output_usd_per_million)
    ]
    estimates = list(estimated())
    print_report(f"Measured: USD for 10^6 output tokens, profile {args.profile}", rows, made_by)
    print_report("Estimated, not run: the profile gpu without speculation", estimates, made_by)
    print_report("Hosted models: list prices", hosted, made_by)
    if args.json:
        write_json(args.json, {"rows": rows, "estimated": estimates, "hosted": hosted}, made_by)
    return 0


if __name__ == "__main__":
    sys.exit(main())
