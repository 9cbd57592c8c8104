"""How long the speculation controller thinks: CPU time of `decide` and `observe` at one step of the engine.

The closed loop in virtual time (`bench/closed_loop`), on step times of an 8B model on an H100. Every request is `auto`.

    python -m bench.controller [--quick] [--json FILE]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from itertools import product
from typing import Final

from bench.closed_loop.loop import Auto, simulate
from bench.closed_loop.shapes import Shape
from bench.closed_loop.texts import TEXTS, texts
from bench.reporting.options import parser
from bench.reporting.report import Value, print_report, provenance, write_json
from bench.reporting.stats import percentile
from serve_app.speculation.controller import StepResult

H100_MS: Final = ((1, 6.17), (8, 6.49), (32, 7.79), (128, 10.67), (512, 22), (1024, 40), (2048, 80))
SHAPES: Final = (
    Shape(name="a graph for each K", step_ms=H100_MS, graph="per_k", piecewise_ms=1.5, draft_ms=0.3),
    Shape(name="no graphs", step_ms=H100_MS, draft_ms=0.3),
)
TEXT: Final = "mixed"
REQUESTS: Final = (1, 32, 128)
TOKENS: Final = 170
"""Output tokens of each request that runs at a time."""


class Timed(Auto):
    """The controller, with the CPU time that each call took."""

    def __init__(self, inner: Auto) -> None:
        super().__init__(inner.controller)
        self.decide_ms: list[float] = []
        self.observe_ms: list[float] = []

    def decide(self, decoding: Sequence[str]) -> dict[str, int]:
        """See `Policy`."""
        began = time.thread_time()
        decided = self.controller.decide(decoding, 0)
        self.decide_ms.append((time.thread_time() - began) * 1000)
        return {request: decision.k for request, decision in decided.items()}

    def observe(self, result: StepResult) -> None:
        """See `Policy`."""
        began = time.thread_time()
        self.controller.observe(result)
        self.observe_ms.append((time.thread_time() - began) * 1000)


def measure(shape: Shape, requests: int, tokens: int) -> dict[str, Value]:
    """Return one row of the report: a batch of that many requests until each has made about that many tokens."""
    policy = Timed(Auto.of(shape))
    queue = texts(TEXTS[TEXT], requests * tokens, requests, shape.k_max)
    simulate(shape, queue, requests, requests * tokens, policy)
    both = [one + other for one, other in zip(policy.decide_ms[1:], policy.observe_ms, strict=True)]
    return {
        "engine": shape.name,
        "requests": requests,
        "steps": len(policy.decide_ms),
        "decide_mean_ms": sum(policy.decide_ms) / len(policy.decide_ms),
        "observe_mean_ms": sum(policy.observe_ms) / len(policy.observe_ms),
        "both_mean_ms": sum(both) / len(both),
        "both_p99_ms": percentile(both, 99),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    args = parser("bench.controller", __doc__, "a tenth of the steps").parse_args(argv)
    made_by = provenance()
    tokens = TOKENS // 10 if args.quick else TOKENS
    rows = [measure(shape, requests, tokens) for shape, requests in product(SHAPES, REQUESTS)]
    print_report("CPU time of the speculation controller", rows, made_by)
    if args.json:
        write_json(args.json, {"rows": rows}, made_by)
    return 0


if __name__ == "__main__":
    sys.exit(main())
