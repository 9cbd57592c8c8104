"""The engine deployment: one class, deployed once per tier.

It adds to the engine that it holds: the fallback chain at start, reports to the GPU pool, token events encoded where
the tokens are (an ingress replica only passes bytes on), failures as data, health, an end together with its engine, and
a bounded drain.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from cluster.observability.meter import Meter
from cluster.observability.totals import Snapshot, snapshot
from cluster.pool.messages import REPORT_EVERY_S, DraftOrder, ReplicaReport
from cluster.supervision import Supervised, troubles
from cluster.weights import missing_reason, model_path
from router.registry import ChainEntry, TierName
from serve_app.api.errors import Failure
from serve_app.config import AppConfig
from serve_app.engine.card_lock import card_to_itself
from serve_app.engine.draft_fallback import DraftChoice, DraftKeeper
from serve_app.engine.energy.card_file import shared_folder
from serve_app.engine.energy.meter import EnergyMeter, Share
from serve_app.engine.engine_watch import STALLED_AFTER_S, end_with_engine, kill_when_stalled
from serve_app.engine.fallback_chain import EntryFailure, NoEntryWorksError, Started, bring_up, start_first
from serve_app.engine.interface import Engine, EngineStartError, GenerationRequest
from serve_app.engine.kept_log import serves_log_kept
from serve_app.engine.metrics import AcceptanceMetrics, BusyMetrics, LoadSignals
from serve_app.engine.stream_items import http_items, stream_items
from serve_app.engine.stub import StubEngine
from serve_app.engine.vllm.compat import VLLM_VERSION
from serve_app.fairness.claims import claiming
from serve_app.pool.metrics_reports import ReplicaMetrics
from serve_app.transport.asgi_call import HttpCall
from serve_app.transport.channel import ReplyTo, send_items
from serve_app.transport.heartbeat import BEAT_EVERY_S, HeartbeatThread
from serve_app.transport.ray_errors import RAY_ERRORS

logger = logging.getLogger("ray.serve")
_ANSWER_WITHIN_S = 10.0
"""Longest wait for the pool to take a report, s."""
_STOP_WAIT_S = 120.0
"""Longest wait of a stopping replica for another engine that starts on its card, s."""
_ROUND_WITHIN_S = 60.0
"""A round of the background work that takes longer is taken to hang, s."""


class EngineDeployment:
    """One replica of one tier.

    Args:
        tier: its name in the registry.
        config: the whole config.
        pool: handle of the pool deployment.

    Raises:
        NoEntryWorksError: at start, when no entry of the chain works.
    """

    # Serve awaits an async constructor; engines start in a thread meanwhile, so that reports go out.
    async def __init__(self, tier: TierName, config: AppConfig, pool: DeploymentHandle) -> None:  # type: ignore[misc]
        self._tier_name = tier
        self._config = config
        self._pool = pool
        self._replica_id = serve.get_replica_context().replica_id.unique_id
        self._drafts: DraftKeeper | None = None
        began_s = time.monotonic()
        try:
            self._started: Started[Engine] = await self._start_engine()
        except NoEntryWorksError as error:
            logger.error("%s", error)
            await self._report("failed", None, error.failures)
            raise
        for failure in self._started.failures:
            logger.warning("tier %s: skipped entry %s: %s", tier, failure.entry, failure.reason)
        self._engine = self._started.engine
        self._http: ASGIApp = await self._engine.http_app()
        logger.info("tier %s serves entry %s after %.1f s", tier, self._started.entry.name, time.monotonic() - began_s)
        speculation = self._started.entry.speculation
        if speculation is not None and speculation.drafts_both_ways:
            min_tokens, choice = config.speculation.fallback_min_tokens, DraftChoice(speculation.default_drafts)
            self._drafts = DraftKeeper(tier, self._engine, speculation.floor, min_tokens, choice)
        self._signals = LoadSignals(time.time(), time.time)
        hardware = config.tiers[tier]
        modelled = {"busy": hardware.active_watts, "idle": hardware.idle_watts} if hardware.gpus else {}
        self._energy = self._energy_meter()
        self._metrics = ReplicaMetrics("engine", pool, self._replica_id, self._count, self._engines_metrics)
        self._acceptance = AcceptanceMetrics(tier, config.speculation, self._metrics.meter)
        self._busy = BusyMetrics(tier, modelled, self._metrics.meter)
        self._background = (
            Supervised("reports", self._report_running, within_s=_ROUND_WITHIN_S),
            Supervised("acceptance and drafts", self._judge_drafts, within_s=_ROUND_WITHIN_S),
            Supervised("engine watch", self._end_with_engine),
            Supervised("stall watch", self._kill_when_stalled),
            Supervised("pulse", self._pulse),
            *([Supervised("energy", self._measure_energy, within_s=_ROUND_WITHIN_S)] if self._energy else ()),
            self._metrics.reports.work,
        )
        self._heartbeat = HeartbeatThread(STALLED_AFTER_S)
        self._heartbeat.start()
        await self._report_and_obey()
        for work in self._background:
            work.start()

    async def generate(self, request: GenerationRequest, reply_to: ReplyTo) -> Failure | None:
        """Answer one request. Its items go over the token channel; `send_items` says what is returned."""
        with self._answering(reply_to), claiming(request.claim):
            return await send_items(reply_to, self._replica_id, stream_items(self._engine, request))

    async def http(self, call: HttpCall, reply_to: ReplyTo) -> Failure | None:
        """Answer one request of the `/v1` routes with the engine's own HTTP application; otherwise as `generate`."""
        with self._answering(reply_to), claiming(call.claim):
            return await send_items(reply_to, self._replica_id, http_items(self._engine, self._http, call))

    async def wake(self) -> None:
        """Return at once: the call needed a replica, so the tier has one."""

    @contextlib.contextmanager
    def _answering(self, reply_to: ReplyTo) -> Iterator[None]:
        """Count a request, and send the heartbeat to its ingress meanwhile."""
        with self._signals.request(reply_to.called_s), self._heartbeat.stream_to(reply_to.beats(self._replica_id)):
            yield

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the load signals for the scaling policy; Serve calls this several times a second."""
        return self._signals.stats(self._engine.load())

    async def check_health(self) -> None:
        """Raise when Serve has to replace this replica.

        That is when the engine is dead, or when the background work has failed for so long that only another replica
        may help.
        """
        await self._engine.check_health()
        for work in self._background:
            work.raise_if_hopeless()

    async def __del__(self) -> None:
        # Serve calls this when the replica stops, after the drain; also after a constructor that failed.
        if hasattr(self, "_background"):
            await self._metrics.reports.send_last()
            for work in self._background:
                work.stop()
            self._heartbeat.stop()
            async with card_to_itself(self._config.tiers[self._tier_name].gpus, at_most_s=_STOP_WAIT_S):
                await self._engine.shutdown()
            if self._energy is not None:
                await asyncio.to_thread(self._energy.leave)

    async def _start_engine(self) -> Started[Engine]:
        reporting: set[asyncio.Future[object]] = set()

        def on_progress(entry: ChainEntry, failures: Sequence[EntryFailure]) -> None:
            # Not awaited: the start must not wait for the pool.
            reporting.add(asyncio.ensure_future(self._report("loading", entry.name, failures)))

        async def start(entry: ChainEntry) -> Engine:
            async with card_to_itself(tier.gpus):
                return await bring_up(lambda: start_blocking(entry))

        tier = self._config.tiers[self._tier_name]
        chain = tier.chain
        mock = self._config.inference_mode == "mock"
        start_blocking = self._start_stub if mock else self._start_vllm
        missing_weights = _nothing_missing if mock else self._missing_weights
        return await start_first(self._tier_name, chain, missing_weights, start, on_progress)

    def _start_stub(self, entry: ChainEntry) -> Engine:
        if entry.name in self._config.stub.failing_entries:
            raise EngineStartError("the stub is configured not to start")
        return StubEngine(entry, self._config.stub.tokens_per_s, obeys_directives=True)

    def _start_vllm(self, entry: ChainEntry) -> Engine:
        # The import takes seconds, and only this process needs it.
        try:
            from serve_app.engine.vllm.engine import start_vllm
        except ImportError as error:
            raise EngineStartError(f"engine replicas are written for vLLM {VLLM_VERSION}: {error}") from error

        tier = self._config.tiers[self._tier_name]
        with serves_log_kept():
            return start_vllm(self._tier_name, tier, entry, self._config.speculation, self._model_path)

    def _model_path(self, model: str) -> Path:
        return model_path(Path(self._config.models_dir), model)

    def _missing_weights(self, entry: ChainEntry) -> str | None:
        needed = [entry.target] + ([entry.speculation.draft] if entry.speculation and entry.speculation.draft else [])
        reasons = [missing_reason(Path(self._config.models_dir), model) for model in needed]
        return next((reason for reason in reasons if reason), None)

    def _energy_meter(self) -> EnergyMeter | None:
        """Return what measures the engine's energy; None: it has no GPU."""
        tier = self._config.tiers[self._tier_name]
        if not tier.gpus or self._config.inference_mode == "mock":
            return None
        from serve_app.engine.vllm.nvml import NvmlCounters  # with vLLM, as its engine

        part = min(1.0, tier.gpus)
        share = Share(f"{self._tier_name}/{self._replica_id}", part, tier.idle_watts / tier.gpus)
        totals = self._engine.totals()
        meter = EnergyMeter(
            share,
            lambda: NvmlCounters(tier.gpus),
            shared_folder(),
            busy_s=self._engine.busy_now_s(),
            left_s=totals.left_s + totals.late_s,
        )
        self._engine.use_meter(meter)
        return meter

    async def _measure_energy(self) -> None:
        assert self._energy is not None
        totals = self._engine.totals()
        await self._energy.round(self._engine.busy_now_s(), totals.left_s + totals.late_s)
        await asyncio.sleep(REPORT_EVERY_S)

    async def _judge_drafts(self) -> None:
        await asyncio.sleep(REPORT_EVERY_S)
        self._count(self._metrics.meter)
        if self._drafts is not None:
            await self._drafts.judge()

    def _count(self, meter: Meter) -> None:
        """Bring the metrics up to date with the engine."""
        self._acceptance.publish(self._engine.categories())
        joules = self._energy.joules if self._energy is not None else None
        self._busy.publish(self._engine.totals().busy_s, self._engine.up_s(), joules)
        if self._drafts is not None:
            self._acceptance.publish_drafts(self._drafts.choice.drafts)

    def _engines_metrics(self) -> Snapshot:
        return snapshot(self._engine.metrics(), {"tier": self._tier_name})

    async def _end_with_engine(self) -> None:
        # `ray.actor.exit_actor` may only be called in a method that Ray called.
        await end_with_engine(self._replica_id, self._engine, lambda: self._signals.under_way, lambda: os._exit(1))

    async def _kill_when_stalled(self) -> None:
        await kill_when_stalled(self._replica_id, self._engine)

    async def _pulse(self) -> None:
        await asyncio.sleep(BEAT_EVERY_S)
        self._heartbeat.pulse()

    async def _report_running(self) -> None:
        await asyncio.sleep(REPORT_EVERY_S)
        await self._report_and_obey()

    async def _report_and_obey(self) -> None:
        order = await self._report("running", self._started.entry.name, self._started.failures)
        if self._drafts is not None:
            await self._drafts.obey(order)

    def _with_engine(self, report: ReplicaReport) -> ReplicaReport:
        """Return the report with what the running engine says."""
        load, speculation = self._engine.load(), self._started.entry.speculation
        return replace(
            report,
            engine_running=load.running,
            engine_waiting=load.waiting,
            queue_wait_ms=self._signals.stats(load)["queue_wait_ms"],
            drafts=self._drafts.choice.drafts if self._drafts else speculation.default_drafts if speculation else None,
            drafts_reason=self._drafts.choice.reason if self._drafts else None,
            learned=self._engine.learned(),
            watts=self._energy.watts if self._energy is not None else None,
            troubles=tuple(troubles(self._background).items()),
        )

    async def _report(self, state: str, entry: str | None, failures: Sequence[EntryFailure]) -> DraftOrder | None:
        report = ReplicaReport(
            self._tier_name,
            self._replica_id,
            state,  # type: ignore[arg-type]
            entry,
            tuple((failure.entry, failure.reason) for failure in failures),
        )
        if hasattr(self, "_background"):
            report = self._with_engine(report)
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                order: DraftOrder | None = await self._pool.report.remote(report)
        except RAY_ERRORS as error:
            # The next report follows within a second.
            logger.warning("tier %s: the pool took no report: %s", self._tier_name, error)
            return None
        return order


def _nothing_missing(entry: ChainEntry) -> str | None:
    """Return None: a stub has no weights."""
    return None
