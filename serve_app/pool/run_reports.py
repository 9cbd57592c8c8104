"""Reports of finished runs, from an ingress replica to the pool, which keeps the record.

A request only appends to a queue. A background task sends the queue as one batch. While the pool is away, the newest
reports are kept, up to a bound. A batch whose answer is lost is sent again and may count twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from ray.serve.handle import DeploymentHandle

from cluster.supervision import Supervised
from router.plan import Plan
from router.runs.summary import FINISH_REASONS, RunReport
from serve_app.transport.ray_errors import RAY_ERRORS

REPORT_EVERY_S: Final = 0.5
"""How long an ingress replica collects reports before it sends them, s: at most two calls a second, while the record
stays as new as the load."""
MOST_WAITING: Final = 2000
"""So many reports are kept for a pool that does not answer."""
_ANSWER_WITHIN_S: Final = 10.0


def run_report(plan: Plan, metrics: Mapping[str, Any]) -> RunReport:
    """Return the report of a finished request, from its plan and the data of its `metrics` event."""
    reason = metrics["finish_reason"]
    return RunReport(
        tier=plan.tier,
        category=plan.classification.category,
        ttft_ms=metrics["ttft_ms"],
        queue_ms=metrics["queue_ms"],
        total_ms=metrics["total_ms"],
        tokens_per_s=metrics["tokens_per_sec"],
        completion_tokens=metrics["completion_tokens"],
        draft_tokens=metrics["spec"]["draft_tokens"],
        accepted_tokens=metrics["spec"]["accepted_tokens"],
        energy_wh=metrics["energy"]["wh"],
        cost_usd=metrics["cost_usd"],
        finish_reason=next((known for known in FINISH_REASONS if known == reason), "other"),
    )


class RunReporter:
    """Sends reports in batches while `work` is started.

    Args:
        pool: handle of the `GpuPool` deployment.
    """

    def __init__(self, pool: DeploymentHandle) -> None:
        self._pool = pool
        self._waiting = deque[RunReport](maxlen=MOST_WAITING)
        self._some = asyncio.Event()
        self.work = Supervised("ingress: reports of runs", self._collect_and_send, away=RAY_ERRORS)

    def add(self, report: RunReport) -> None:
        """Add a report; never waits."""
        self._waiting.append(report)
        self._some.set()

    async def _collect_and_send(self) -> None:
        await self._some.wait()
        await asyncio.sleep(REPORT_EVERY_S)
        await self.send()

    async def send(self) -> None:
        """Send all waiting reports now; on failure they wait for the next call.

        Raises:
            RAY_ERRORS: the pool is away.
        """
        batch, sent = list(self._waiting), False
        self._waiting.clear()
        self._some.clear()
        if not batch:
            return
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                await self._pool.report_runs.remote(batch)
            sent = True
        finally:
            if not sent:
                self._waiting = deque([*batch, *self._waiting], maxlen=MOST_WAITING)
                self._some.set()
