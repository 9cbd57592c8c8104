"""Does speculation pay? Families of prompts x batch sizes x {off, K = 2, 5, 8, auto} on real engines.

Two engines with the same arguments run side by side: `off` has no speculative configuration at all, the other drafts
by n-gram lookup with k_max 8 (`--drafts early-exit`: with the early-exit draft model). A round sends the same prompts
five times in a row, once with each setting, in an order that rotates from round to round, so that all settings share
the machine's other load. Before a round both engines see its prompts once, so that these are in the prefix cache: the
benchmark measures decoding, and TTFT is that of a cached prompt.

`batch` requests are under way at a time; the next begins when one ends. tokens_per_s is the output speed while all
places decode: from the last first token of those that began together (their prefill, all at once, takes 2 to 4 s of a
wave of ten) until a place stays empty. After that come ever smaller batches of the requests that speculate least, and
the slowest one decides how long, whatever the setting (translation, batch 8: the last answer ended after 6.2, 6.3 and
6.0 s with K = 5, 8 and auto, the mean one after 4.8, 5.0 and 4.7 s). ratio_to_off is tokens_per_s over that of `off`.
Sampling is greedy, and the router classifies the prompts, so the controller sees the product's categories. Goals: auto
at least 0.97 of the best static K and of off in every cell; at least 2 times off on copying JSON at batch 1.

    python -m bench.speculation [--prompts DIR] [--drafts early-exit] [--json FILE] [--quick]
    python -m bench.speculation --batches 8 --more-rounds 3 --update --json x.json  # some cells again, with less noise

With `--json x.json` the report is also written to x.md, and its plot to x.svg. standard_error is that of
auto_to_best_static, from the ratios of the rounds. The best of three static K is by chance further above its true speed
than auto is, and the more so the larger that error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from statistics import stdev
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

from bench.engine.engines import Ask, Batch, EngineGoneError, EngineProcess, Reply, engine_process
from bench.engine.prompts import COPYING, PromptError, copying_prompts, cycled, read_families
from bench.reporting.options import parser
from bench.reporting.plot import grouped_bars
from bench.reporting.report import REPOSITORY, Value, markdown_table, print_report, provenance, write_json
from bench.reporting.stats import percentile
from cluster.profiles.reading import read_profile, validate_profile
from cluster.weights import models_dir
from cluster.weights.folder import model_path
from router.registry import ChainEntry, Profile, Speculation, Tier

OFF: Final = "off"
AUTO: Final = "auto"
STATIC: Final[Mapping[str, int]] = {"K=2": 2, "K=5": 5, "K=8": 8}
DEPTHS: Final[Mapping[str, int | Literal["auto"]]] = {**STATIC, AUTO: "auto"}
"""Settings of the engine that drafts."""
SETTINGS: Final = (OFF, *DEPTHS)
ROUNDS: Final[Mapping[int, int]] = {1: 5, 8: 5, 32: 2}
"""By batch size. With five rounds each setting is first once, second once, and so on."""
PROMPTS: Final[Mapping[int, int]] = {1: 2, 8: 12, 32: 40}
"""Prompts of one round, by batch size."""
QUICK_ROUNDS: Final[Mapping[int, int]] = {1: 2, 8: 1}
QUICK_FAMILIES: Final = ("chat", COPYING)
MAX_TOKENS: Final = 48
ENGINE_ARGUMENTS: Final = {
    "kv_cache_memory_bytes": 3 * 2**30,  # fits the longest family's 32 prompts and answers without preemptions
    "block_size": 32,  # the CPU build's 128 would leave most prompts out of the prefix cache
}
"""Arguments of both engines, on top of the tier's."""
DRAFTS: Final = ("ngram", "early-exit")
GOAL_RATIO: Final = 0.97
GOAL_COPYING: Final = 2.0


@dataclass(slots=True)
class Cell:
    """The measurements of one setting, for a family's prompts at one batch size."""

    batches: list[Batch] = field(default_factory=list)

    @property
    def replies(self) -> list[Reply]:
        """Replies of all rounds."""
        return [reply for batch in self.batches for reply in batch.replies]

    @property
    def tokens_per_s(self) -> float:
        """Output speed of all rounds together."""
        return sum(batch.full_tokens for batch in self.batches) / sum(batch.full_s for batch in self.batches)

    @property
    def acceptance_rate(self) -> float | None:
        """Share of the verified draft tokens that were accepted (0-1); None: there were none."""
        drafted = sum(reply.draft_tokens for reply in self.replies)
        return sum(reply.accepted_tokens for reply in self.replies) / drafted if drafted else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens that a verification step yields, the target's own included; None: there was none."""
        steps = sum(len(reply.verifications) for reply in self.replies)
        return 1 + sum(reply.accepted_tokens for reply in self.replies) / steps if steps else None


Cells = dict[tuple[str, int, str], Cell]
"""By family, batch size and setting."""
Row = dict[str, Any]


def cell_rows(cells: Cells, measured: str = "") -> list[Row]:
    """Return the report's rows, with the date of the measurement and the speed of each round."""
    rows: list[Row] = []
    for (family, batch, setting), cell in cells.items():
        ttft_s = [reply.ttft_s for reply in cell.replies]
        itl_s = [gap for reply in cell.replies for gap in reply.itl_s]
        per_round = [
            ours.tokens_per_s / off.tokens_per_s
            for ours, off in zip(cell.batches, cells[family, batch, OFF].batches, strict=True)
        ]
        rows.append(
            {
                "family": family,
                "batch": batch,
                "setting": setting,
                "tokens_per_s": cell.tokens_per_s,
                "ratio_to_off": cell.tokens_per_s / cells[family, batch, OFF].tokens_per_s,
                "lowest": min(per_round),
                "highest": max(per_round),
                "acceptance_rate": cell.acceptance_rate,
                "mean_acceptance_length": cell.mean_acceptance_length,
                "ttft_p50_ms": 1000 * percentile(ttft_s, 50),
                "ttft_p99_ms": 1000 * percentile(ttft_s, 99),
                "itl_p50_ms": 1000 * percentile(itl_s, 50),
                "itl_p99_ms": 1000 * percentile(itl_s, 99),
                "measured": measured,
                "per_round": [batch.tokens_per_s for batch in cell.batches],
            }
        )
    return rows


def goal_rows(rows: Sequence[Row]) -> list[dict[str, Value]]:
    """Return auto against the best static K and against off, for every family and batch size."""
    goals: list[dict[str, Value]] = []
    for family, batch in dict.fromkeys((row["family"], row["batch"]) for row in rows):
        cell = {row["setting"]: row for row in rows if (row["family"], row["batch"]) == (family, batch)}
        speed = {setting: cell[setting]["tokens_per_s"] for setting in SETTINGS}
        best = max(STATIC, key=speed.__getitem__)
        to_best, to_off = speed[AUTO] / speed[best], speed[AUTO] / speed[OFF]
        goal_to_off = GOAL_COPYING if (family, batch) == (COPYING, 1) else GOAL_RATIO
        goals.append(
            {
                "family": family,
                "batch": batch,
                "best_static": best,
                "auto_to_best_static": to_best,
                "standard_error": _standard_error(cell[AUTO]["per_round"], cell[best]["per_round"]),
                "auto_to_off": to_off,
                "met": "yes" if to_best >= GOAL_RATIO and to_off >= goal_to_off else "no",
            }
        )
    return goals


def _standard_error(speeds: Sequence[float], others: Sequence[float]) -> float | None:
    """Return the standard error of the mean ratio over the rounds; None with fewer than three rounds."""
    ratios = [ours / other for ours, other in zip(speeds, others, strict=True)]
    return stdev(ratios) / sqrt(len(ratios)) if len(ratios) >= 3 else None


def updated(before: Sequence[Row], after: Sequence[Row]) -> list[Row]:
    """Return the rows before, replaced by new ones of the same cell; rows of new cells come last."""
    return list((_by_cell(before) | _by_cell(after)).values())


def _by_cell(rows: Sequence[Row]) -> dict[tuple[str, int, str], Row]:
    return {(row["family"], row["batch"], row["setting"]): row for row in rows}


def measure(
    off: EngineProcess,
    drafting: EngineProcess,
    family: str,
    prompts: Sequence[str],
    rounds: Mapping[int, int],
    tokens: int,
) -> Cells:
    """Measure the cells of one family, round by round."""
    cells: Cells = {(family, batch, setting): Cell() for batch in rounds for setting in SETTINGS}
    for batch, count in rounds.items():
        for number in range(count):
            print(f"{family}, batch {batch}, round {number + 1} of {count}", file=sys.stderr)
            sent = cycled(prompts, number * PROMPTS[batch], PROMPTS[batch])
            for engine in (off, drafting):
                ask(engine, sent, batch, 0, 1)
            for place in range(len(SETTINGS)):
                setting = SETTINGS[(place + number) % len(SETTINGS)]
                engine, k = (off, 0) if setting == OFF else (drafting, DEPTHS[setting])
                cells[family, batch, setting].batches.append(ask(engine, sent, batch, k, tokens))
    return cells


def ask(engine: EngineProcess, prompts: Sequence[str], batch: int, k: int | Literal["auto"], tokens: int) -> Batch:
    """Send all prompts, `batch` at a time, greedily, at one depth."""
    return engine.ask([Ask(prompt, k, max_tokens=tokens) for prompt in prompts], timeout_s=900, at_once=batch)


def entries_of(profile: Profile, drafts: str) -> tuple[Tier, ChainEntry, ChainEntry]:
    """Return a CPU tier, its entry without speculation, and the same entry with drafts."""
    tier = profile.tiers["ultra"]
    plain = tier.chain[-1]
    plain = plain.model_copy(update={"engine_args": {**plain.engine_args, **ENGINE_ARGUMENTS}, "speculation": None})
    draft = next(key for key, source in profile.models.items() if source.source == "early_exit")
    k_max = max(STATIC.values())
    speculation = (
        Speculation(method="ngram", k_max=k_max)
        if drafts == "ngram"
        else Speculation(method="draft_model", draft=draft, k_max=k_max)
    )
    return tier, plain, plain.model_copy(update={"name": drafts, "speculation": speculation})


def write_report(path: Path, rows: Sequence[Row], drafts: str, made_by: Mapping[str, Any]) -> None:
    """Write the Markdown report, and its plot beside it."""
    families = list(dict.fromkeys(row["family"] for row in rows))
    ratios = {cell: row["ratio_to_off"] for cell, row in _by_cell(rows).items()}
    panels = {
        f"batch {batch}": {setting: [ratios.get((family, batch, setting)) for family in families] for setting in DEPTHS}
        for batch in sorted({row["batch"] for row in rows})
    }
    title = f"Output speed with {drafts} drafts over an engine without speculation"
    grouped_bars(path.with_suffix(".svg"), title, panels, families, "ratio to off", 1.0)
    machine = made_by["machine"]
    path.write_text(
        f"# {title}\n\n`{made_by['command']}` on {machine['cpu']}, {machine['cores']} cores; "
        f"{made_by['git']}; {made_by['date']}. How it is measured: the head of `bench/speculation.py`.\n\n"
        f"![{title}]({path.with_suffix('.svg').name})\n\n## auto against the goals\n\n"
        f"{markdown_table(goal_rows(rows))}\n\n## Every cell\n\n{markdown_table(_shown(rows))}\n",
        encoding="utf-8",
    )


def _shown(rows: Sequence[Row]) -> list[Row]:
    return [{key: value for key, value in row.items() if key != "per_round"} for row in rows]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 2 if prompts cannot be read, 1 if an engine ended."""
    options = parser("bench.speculation", __doc__, "two families, batches 1 and 8, few rounds")
    options.add_argument(
        "--prompts",
        type=Path,
        default=REPOSITORY.parent / "shared" / "data",
        metavar="DIR",
        help="folder of *.jsonl files with `family` and `turns`",
    )
    options.add_argument("--drafts", choices=DRAFTS, default="ngram", help="how drafts are made")
    options.add_argument("--families", nargs="+", metavar="NAME", help="only these families")
    options.add_argument("--batches", nargs="+", type=int, choices=ROUNDS, metavar="N", help="only these batch sizes")
    options.add_argument("--more-rounds", type=int, default=1, metavar="N", help="so many times the rounds of a cell")
    options.add_argument("--update", action="store_true", help="keep the other cells of the --json file")
    options.add_argument("--max-tokens", type=int, default=MAX_TOKENS, metavar="N", help="longest answer, tokens")
    args = options.parse_args(argv)
    if args.update and not (args.json and args.json.is_file()):
        options.error(f"--update needs a --json file that is there, got {args.json}")
    made_by = provenance()
    usual = QUICK_ROUNDS if args.quick else ROUNDS
    rounds = {batch: args.more_rounds * usual.get(batch, 1) for batch in args.batches or usual}
    try:
        families = {**read_families(args.prompts), COPYING: copying_prompts(64)}
    except PromptError as error:
        print(error, file=sys.stderr)
        return 2
    chosen = args.families or (QUICK_FAMILIES if args.quick else families)
    if unknown := [name for name in chosen if name not in families]:
        print(f"no prompts of {unknown}; there are {sorted(families)}", file=sys.stderr)
        return 2
    rows: list[Row] = json.loads(args.json.read_text(encoding="utf-8"))["cells"] if args.update else []
    profile = validate_profile(Profile, read_profile("local"), where="profile local")
    tier, plain, drafting = entries_of(profile, args.drafts)
    with ExitStack() as engines:
        logs = Path(engines.enter_context(TemporaryDirectory()))
        models = {name: model_path(models_dir({}), name) for name in profile.models}
        off, drafter = [
            engines.enter_context(engine_process(entry, tier, models, logs / entry.name)) for entry in (plain, drafting)
        ]
        for family in chosen:
            try:
                cells = measure(off, drafter, family, families[family], rounds, args.max_tokens)
            except EngineGoneError as error:
                print(error, file=sys.stderr)
                return 1
            rows = updated(rows, cell_rows(cells, f"{made_by['date']}, {made_by['git']}"))
            if args.json:  # after each family, so that a long run that is cut short leaves results
                write_json(args.json, {"cells": rows, "goals": goal_rows(rows), "drafts": args.drafts}, made_by)
                write_report(args.json.with_suffix(".md"), rows, args.drafts, made_by)
    print_report(f"Speculation with {args.drafts} drafts", _shown(rows), made_by)
    print(f"\n{markdown_table(goal_rows(rows))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
