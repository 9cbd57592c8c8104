"""`docs/metrics.md`, from the catalogue. A test compares the two.

python -m cluster.observability.page > docs/metrics.md
"""

from __future__ import annotations

import sys
from typing import Final

from cluster.observability.series import CATALOGUE, LABELS, WRITERS, Series, Writer, written_by

_HEADER: Final = """\
# Metrics

Every series of this application. Generated: `python -m cluster.observability.page > docs/metrics.md`. How to look at
them: [operations.md](operations.md#metrics).

- **Ray's metrics ports**, one a node, have each series with the prefix `ray_` (`ray_power_lever_requests_total`) and a
  label `WorkerId` for the process; sum over it (`sum by (tier) (...)`). They follow after up to 10 s. There, a
  histogram's `_sum` is made of the middles of its buckets: use quantiles, and counters for means.
- **`GET /metrics`** of the ingress has the totals of all replicas, exact and at once, whichever replica is asked, but
  for the series of Serve's controller. A counter does not fall when a replica goes. All begin at 0 when the pool
  restarts.
- **vLLM's own** are beside ours: as `ray_vllm_...` at Ray's ports, and as `vllm:...` at `/metrics`, with a label `tier`
  (`vllm bench serve` and AIPerf read them there). Of several replicas, numbers of requests are added up, and of other
  gauges the largest is shown. At Ray's ports, a gauge of an engine that rests vanishes after 20 s.

"""
_WRITERS: Final[dict[Writer, str]] = {
    "ingress": "Requests, plans and what answers took (each ingress replica)",
    "engine": "Engines (each engine replica)",
    "pool": "Tiers (the GPU pool, which has one replica)",
    "controller": "Scaling (Serve's controller; only at Ray's ports)",
}


def metrics_page() -> str:
    """Return the page: a table for each kind of process, and the values of the labels."""
    parts = [_HEADER]
    for writer in WRITERS:
        rows = ["| series | kind | unit | labels | meaning |", "| --- | --- | --- | --- | --- |"]
        rows += [_row(series) for series in written_by(writer)]
        parts.append(f"## {_WRITERS[writer]}\n\n" + "\n".join(rows) + "\n\n")
    used = {label for series in CATALOGUE for label in series.labels}
    rows = ["| label | values |", "| --- | --- |"]
    rows += [
        f"| `{label}` | {', '.join(f'`{value}`' for value in LABELS[label])} |" for label in LABELS if label in used
    ]
    parts.append("## Labels\n\nNo label has other values.\n\n" + "\n".join(rows) + "\n")
    return "".join(parts)


def _row(series: Series) -> str:
    labels = ", ".join(f"`{label}`" for label in series.labels) or "-"
    return f"| `{series.name}` | {series.kind} | {series.unit} | {labels} | {series.help} |"


if __name__ == "__main__":
    sys.stdout.write(metrics_page())
