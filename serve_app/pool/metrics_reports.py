"""A replica's metrics: its meter, and its reports to the pool, which has the totals of all replicas."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from ray.serve.handle import DeploymentHandle

from cluster.observability.meter import LocalMeter, Meter, Meters, RayMeter
from cluster.observability.series import Writer
from cluster.observability.totals import MetricsReport, Snapshot, gauges, growth, snapshot
from cluster.supervision import Supervised
from serve_app.transport.ray_errors import RAY_ERRORS

_ANSWER_WITHIN_S: Final = 10.0
"""Longest wait for the pool to take a report, which it holds for a moment, s."""
_LAST_WITHIN_S: Final = 2.0
"""Longest wait for the pool to take the last reports, s: the replica stops."""


class MetricsReports:
    """Reports what a replica counts while `work` is started.

    Args:
        pool: handle of the `GpuPool` deployment.
        replica_id: of this replica.
        look: returns its metrics as they are now.
    """

    def __init__(self, pool: DeploymentHandle, replica_id: str, look: Callable[[], Snapshot]) -> None:
        self._pool = pool
        self._replica_id = replica_id
        self._look = look
        self._asked = 0
        self._number = 0
        self._sent: Snapshot = {}
        """As of the newest report that arrived."""
        self._on_its_way: tuple[MetricsReport, Snapshot] | None = None
        self.work = Supervised("reports of metrics", self._report, away=RAY_ERRORS)

    async def send_last(self) -> None:
        """Report once more, as the replica stops. A pool that is away gets nothing."""
        self.work.stop()
        with contextlib.suppress(*RAY_ERRORS):
            async with asyncio.timeout(_LAST_WITHIN_S):
                if self._on_its_way is not None:
                    await self._send(lambda report: self._pool.report_last_metrics.remote(report))
                await self._send(lambda report: self._pool.report_last_metrics.remote(report))

    async def _report(self) -> None:
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            self._asked = await self._send(lambda report: self._pool.report_metrics.remote(report))

    async def _send(self, call: Callable[[MetricsReport], Awaitable[int]]) -> int:
        """Send a report: the one before again, if it is not known to have arrived."""
        if self._on_its_way is None:
            now = self._look()
            self._number += 1
            added = growth(now, self._sent)
            self._on_its_way = MetricsReport(self._replica_id, self._number, self._asked, added, gauges(now)), now
        report, looked = self._on_its_way
        asked = await call(report)
        self._sent, self._on_its_way = looked, None
        return asked


class ReplicaMetrics:
    """The metrics of one replica.

    Args:
        writer: its kind.
        pool: handle of the `GpuPool` deployment.
        replica_id: its id.
        refresh: sets the gauges that follow something, before each report.
        others: returns metrics that are not in our catalogue.
    """

    def __init__(
        self,
        writer: Writer,
        pool: DeploymentHandle,
        replica_id: str,
        refresh: Callable[[Meter], None],
        others: Callable[[], Snapshot] = dict,
    ) -> None:
        ray, local = RayMeter(writer), LocalMeter(writer)
        self.meter: Meter = Meters((ray, local))

        def look() -> Snapshot:
            refresh(self.meter)
            ray.refresh()
            return {**snapshot(local.registry.collect()), **others()}

        self.reports = MetricsReports(pool, replica_id, look)
