"""Does `auto` decide well on engines that we do not have? The closed loop in virtual time, on given cost surfaces.

A cell is a shape (an engine's step times, `bench/closed_loop/shapes.py`), a kind of text and a batch size that is kept
full. In each cell a controller that has seen nothing decides for requests that are all `auto`, and learns from noisy
step times. It is compared with every static K on the same engine, and with `off`, the engine without speculation, on
the same texts: whether a draft would be accepted at an output position is fixed beforehand.

    python -m bench.speculation_sim --shapes FILE [--json FILE] [--seeds 3] [--steps 1.0] [--only NAME ...]

Goals: `to_best_static` at least 0.97 in every cell, `to_off` at least 0.97 wherever `best_static_to_off` is, and the
advice `no_drafts` wherever it is not. JSON: {"cells": [{"shape", "text", "batch", "to_best_static", "best_static",
"best_static_to_off", "to_off", "advice"}]}.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from itertools import product
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.closed_loop.loop import Auto, Outcome, Static, simulate
from bench.closed_loop.shapes import Shape, read_shapes
from bench.closed_loop.texts import TEXTS, Text, texts
from bench.reporting.options import parser
from bench.reporting.report import print_report, provenance, write_json
from router.errors import ConfigError

SHOWN_TEXTS: Final = ("0.2", "0.5", "0.8", "bursty", "mixed")
TOKENS: Final[Mapping[int, int]] = {1: 1500, 8: 350, 32: 320, 128: 170}
"""By batch size: output tokens for each of the requests that run at a time. Twice as many for text 0.8."""
GOAL: Final = 0.97


class Cell(NamedTuple):
    """One cell of the report. Ratios are of output tokens per second, over all seeds."""

    shape: str
    text: str
    batch: int
    to_best_static: float
    best_static: int
    best_static_to_off: float
    to_off: float
    advice: str | None
    """What the controller advises at the end, of most seeds."""

    @property
    def met(self) -> bool:
        """Whether the cell reaches the goals."""
        pays = self.best_static_to_off >= GOAL
        return self.to_best_static >= GOAL and (not pays or self.to_off >= GOAL) and pays == (self.advice is None)


class Run(NamedTuple):
    """What is simulated: one kind of text at one batch size."""

    text: str
    batch: int
    steps: float
    """Length of the run, times the usual one."""
    seed: int

    @property
    def tokens(self) -> int:
        """Output tokens, at least one."""
        return max(1, round(self.steps * self.batch * TOKENS[self.batch] * (2.0 if self.text == "0.8" else 1.0)))

    def queue(self, shape: Shape) -> list[Text]:
        """Return its texts."""
        return texts(TEXTS[self.text], self.tokens, self.batch, shape.k_max, ngram=shape.ngram, seed=self.seed)


@lru_cache(maxsize=256)
def static_outcomes(run: Run, k_max: int, ngram: bool) -> tuple[Outcome, ...]:
    """Return the outcome of each static K. The steps are the same on every engine."""
    any_shape = Shape(name="any", k_max=k_max, step_ms=((1, 1),), ngram=ngram)
    queue = run.queue(any_shape)
    return tuple(simulate(any_shape, queue, run.batch, run.tokens, Static(k)) for k in range(k_max + 1))


def cell(shape: Shape, runs: Sequence[Run], *, apart: bool) -> Cell:
    """Simulate one cell; its runs differ in their seed."""
    auto_s = off_s = 0.0
    tokens = 0
    static_s = [0.0] * (shape.k_max + 1)
    advices = list[str | None]()
    for run in runs:
        policy = Auto.of(shape)
        auto = simulate(shape, run.queue(shape), run.batch, run.tokens, policy, apart=apart, seed=run.seed + 1)
        statics = static_outcomes(run, shape.k_max, shape.ngram)
        # Runs end within a step of the same number of tokens: times are compared for equally many.
        tokens += run.tokens
        auto_s += run.tokens / auto.rate(shape)
        off_s += run.tokens / statics[0].off_rate(shape)
        for k, outcome in enumerate(statics):
            static_s[k] += run.tokens / outcome.rate(shape)
        advices.append(policy.controller.learned().advice)
    best = min(range(shape.k_max + 1), key=static_s.__getitem__)
    return Cell(
        shape.name,
        runs[0].text,
        runs[0].batch,
        to_best_static=static_s[best] / auto_s,
        best_static=best,
        best_static_to_off=off_s / static_s[best],
        to_off=off_s / auto_s,
        advice=max(advices, key=advices.count),
    )


def _cells(shapes: Sequence[Shape], runs: Sequence[Run], apart: bool) -> list[Cell]:
    return [cell(shape, runs, apart=apart) for shape in shapes]


def simulate_all(
    shapes: Sequence[Shape], *, seeds: int = 3, steps: float = 1.0, apart: bool = True, processes: int | None = None
) -> list[Cell]:
    """Simulate every cell of the shapes.

    Args:
        shapes: the engines.
        seeds: runs of each cell, of different texts and noise.
        steps: length of a run, times the usual one.
        apart: whether workers measure verifying and drafting apart.
        processes: how many work at a time; None: one for each core.
    """
    # Largest batches first: they take longest.
    grid = [
        [Run(text, batch, steps, seed) for seed in range(seeds)]
        for batch, text in product(sorted(TOKENS, reverse=True), SHOWN_TEXTS)
    ]
    with ProcessPoolExecutor(processes or len(os.sched_getaffinity(0))) as pool:
        found = [each for cells in pool.map(_cells, [shapes] * len(grid), grid, [apart] * len(grid)) for each in cells]
    names = [shape.name for shape in shapes]
    return sorted(found, key=lambda each: (names.index(each.shape), SHOWN_TEXTS.index(each.text), each.batch))


def summary_rows(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Return for each shape its worst cells, and how many miss a goal."""
    rows = []
    for name in dict.fromkeys(each.shape for each in cells):
        own = [each for each in cells if each.shape == name]
        paying = [each.to_off for each in own if each.best_static_to_off >= GOAL]
        rows.append(
            {
                "shape": name,
                "worst_to_best_static": min(each.to_best_static for each in own),
                "worst_to_off": min(each.to_off for each in own),
                "worst_to_off_where_drafts_pay": min(paying, default=None),
                "under_best_static": sum(each.to_best_static < GOAL for each in own),
                "under_off": sum(each.to_off < GOAL for each in own),
                "no_static_reaches_off": len(own) - len(paying),
                "advised_no_drafts": sum(each.advice is not None for each in own),
                "missed": sum(not each.met for each in own),
            }
        )
    return rows


def _chosen(shapes: Sequence[Shape], names: Sequence[str] | None, path: Path) -> Sequence[Shape]:
    if names is None:
        return shapes
    known = [shape.name for shape in shapes]
    wrong = [name for name in names if name not in known]
    if wrong:
        raise ConfigError(f"--only: {path} has {', '.join(known)}, got {', '.join(map(repr, wrong))}")
    return [shape for shape in shapes if shape.name in names]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 2 if the shapes or the options are wrong."""
    options = parser("bench.speculation_sim", __doc__, "one seed")
    options.add_argument("--shapes", type=Path, required=True, metavar="FILE", help="YAML file of cost surfaces")
    options.add_argument("--seeds", type=int, default=3, metavar="N", help="runs of each cell")
    options.add_argument("--steps", type=float, default=1.0, metavar="X", help="length of the runs, times the usual")
    options.add_argument("--only", nargs="+", metavar="NAME", help="only these shapes")
    options.add_argument("--whole-steps", action="store_true", help="workers do not measure drafting apart")
    args = options.parse_args(argv)
    made_by = provenance()
    try:
        if args.seeds < 1:
            raise ConfigError(f"--seeds: must be at least 1, got {args.seeds}")
        if not 0 < args.steps < inf:
            raise ConfigError(f"--steps: must be a positive number, got {args.steps}")
        shapes = _chosen(read_shapes(args.shapes), args.only, args.shapes)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    cells = simulate_all(shapes, seeds=1 if args.quick else args.seeds, steps=args.steps, apart=not args.whole_steps)
    rows = [each._asdict() for each in cells]
    shown = [{**row, "met": "yes" if each.met else "no"} for row, each in zip(rows, cells, strict=True)]
    print_report("Every cell", shown, made_by)
    print_report("By shape", summary_rows(cells), made_by)
    if args.json:
        write_json(args.json, {"cells": rows}, made_by)
    return 0


if __name__ == "__main__":
    sys.exit(main())
