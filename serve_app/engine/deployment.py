"""The engine deployment: one class, deployed once per tier.

What it adds over the engine it holds: the fallback chain at start, reports to the GPU pool view, token events encoded
where the tokens are (an ingress replica only passes bytes on), failures as data, health, an end with its engine, and a
bounded drain.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from cluster.pool.messages import REPORT_EVERY_S, DraftOrder, ReplicaReport
from cluster.supervised import Supervised, troubles
from cluster.weights import missing_reason, model_path
from router.registry import ChainEntry, TierName
from serve_app.api.errors import Failure
from serve_app.api.events import token_events
from serve_app.config import AppConfig
from serve_app.engine.acceptance_metrics import AcceptanceMetrics, RaySink
from serve_app.engine.chain import EntryFailure, NoEntryWorksError, Started, bring_up, start_first
from serve_app.engine.dead_engine import end_with_engine
from serve_app.engine.draft_fallback import DraftKeeper
from serve_app.engine.interface import (
    Admitted,
    Engine,
    EngineError,
    EngineStartError,
    Finished,
    GenerationRequest,
)
from serve_app.engine.load_signals import LoadSignals
from serve_app.engine.stub import StubEngine
from serve_app.engine.vllm.compat import REPLICA_NEEDS
from serve_app.engine.vllm.early_errors import errors_first
from serve_app.transport.asgi_call import HttpCall, ResponseStart, call_asgi
from serve_app.transport.channel import ReplyTo, send_items
from serve_app.transport.ray_errors import RAY_ERRORS

logger = logging.getLogger("ray.serve")
_ANSWER_WITHIN_S = 10.0
"""Longest wait for the pool to take a report, s."""
_ROUND_WITHIN_S = 60.0
"""What the replica does beside its requests hangs when one round of it takes longer, s."""

StreamItem = Admitted | bytes | Finished | Failure
"""What a replica streams to the ingress: `bytes` are whole `token` events."""


async def stream_items(engine: Engine, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
    """One request at the engine: `Admitted`, token events, then `Finished`; or `Failure` at any point, last."""
    try:
        async with contextlib.aclosing(engine.generate(request)) as items:
            async for item in items:
                yield token_events(item) if isinstance(item, list) else item
    except EngineError as error:
        yield Failure.of(error)
    except Exception:
        # Ours or vLLM's fault, of any kind. The replica is still there, so it says so itself.
        logger.exception("request %s failed in the engine", request.request_id)
        yield _failure(engine)


async def openai_items(
    engine: Engine, app: ASGIApp, call: HttpCall
) -> AsyncGenerator[ResponseStart | bytes | Failure, None]:
    """One request at the engine's OpenAI application: its answer; or `Failure` at any point, last."""
    try:
        async with contextlib.aclosing(errors_first(call_asgi(app, call))) as items:
            async for item in items:
                if isinstance(item, ResponseStart) and item.status >= 500 and engine.dead:
                    yield _failure(engine)  # vLLM's 500 does not say that it may be asked again
                    return
                yield item
    except Exception:
        # vLLM's application answers with an error where it can; what it lets through is any kind.
        logger.exception("the engine's OpenAI application failed")
        yield _failure(engine)


def _failure(engine: Engine) -> Failure:
    if engine.dead:
        return Failure("engine_dead", "the engine has died", status=503, retryable=True)
    return Failure("engine_failed", "the engine failed", status=500, retryable=True)


class EngineDeployment:
    """One replica of one tier.

    Args:
        tier: its name in the registry.
        config: the whole config.
        pool: handle of the GPU pool view.

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
            logger.warning("tier %s: left entry %s: %s", tier, failure.entry, failure.reason)
        self._engine = self._started.engine
        self._openai: ASGIApp = await self._engine.openai_app()
        logger.info("tier %s serves entry %s after %.1f s", tier, self._started.entry.name, time.monotonic() - began_s)
        speculation = self._started.entry.speculation
        if speculation is not None and speculation.floor is not None:
            min_tokens = config.speculation.fallback_min_tokens
            self._drafts = DraftKeeper(tier, self._engine, speculation.floor, min_tokens)
        self._signals = LoadSignals(time.time(), time.time)
        self._acceptance = AcceptanceMetrics(tier, config.speculation, RaySink())
        self._beside = (
            Supervised("reports", self._report_running, within_s=_ROUND_WITHIN_S),
            Supervised("acceptance and drafts", self._judge_drafts, within_s=_ROUND_WITHIN_S),
            Supervised("end with the engine", self._end_with_engine),
        )
        await self._tell_pool()
        for work in self._beside:
            work.start()

    async def generate(self, request: GenerationRequest, reply_to: ReplyTo) -> Failure | None:
        """One request. Its items go over the token channel; see `token_channel.send_items` for what is returned."""
        with self._signals.request(reply_to.asked_s):
            return await send_items(reply_to, stream_items(self._engine, request))

    async def openai(self, call: HttpCall, reply_to: ReplyTo) -> Failure | None:
        """One request to the engine's own OpenAI-compatible application; else as `generate`."""
        with self._signals.request(reply_to.asked_s):
            return await send_items(reply_to, openai_items(self._engine, self._openai, call))

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Serve asks several times a second, for the scaling policy."""
        return self._signals.stats(self._engine.load())

    async def check_health(self) -> None:
        """Serve asks; raises when the engine is dead, or what is done beside the requests has failed for so long that
        only another replica may help, and Serve replaces this one."""
        await self._engine.check_health()
        for work in self._beside:
            work.raise_if_hopeless()

    async def __del__(self) -> None:
        # Serve calls this when the replica stops, after the drain; also after a constructor that failed.
        if hasattr(self, "_beside"):
            for work in self._beside:
                work.stop()
            await self._engine.shutdown()

    async def _start_engine(self) -> Started[Engine]:
        telling: set[asyncio.Future[object]] = set()

        def on_progress(entry: ChainEntry, failures: Sequence[EntryFailure]) -> None:
            # Not waited for: a start is in more of a hurry than the view.
            telling.add(asyncio.ensure_future(self._report("loading", entry.name, failures)))

        async def start(entry: ChainEntry) -> Engine:
            return await bring_up(lambda: start_blocking(entry))

        chain = self._config.tiers[self._tier_name].chain
        mock = self._config.inference_mode == "mock"
        start_blocking = self._start_stub if mock else self._start_vllm
        missing_weights = _nothing_missing if mock else self._missing_weights
        return await start_first(self._tier_name, chain, missing_weights, start, on_progress)

    def _start_stub(self, entry: ChainEntry) -> Engine:
        if entry.name in self._config.stub.failing_entries:
            raise EngineStartError("the stub was told not to start")
        return StubEngine(entry, self._config.stub.tokens_per_s, obeys_directives=True)

    def _start_vllm(self, entry: ChainEntry) -> Engine:
        # The import costs seconds and belongs to this process alone.
        try:
            from serve_app.engine.vllm.engine import start_vllm
        except ImportError as error:
            raise EngineStartError(f"engine replicas are written for vLLM {REPLICA_NEEDS}: {error}") from error

        tier = self._config.tiers[self._tier_name]
        return start_vllm(self._tier_name, tier, entry, self._config.speculation, self._model_path)

    def _model_path(self, model: str) -> Path:
        return model_path(Path(self._config.models_dir), model)

    def _missing_weights(self, entry: ChainEntry) -> str | None:
        needed = [entry.target] + ([entry.speculation.draft] if entry.speculation and entry.speculation.draft else [])
        reasons = [missing_reason(Path(self._config.models_dir), model) for model in needed]
        return next((reason for reason in reasons if reason), None)

    async def _judge_drafts(self) -> None:
        await asyncio.sleep(REPORT_EVERY_S)
        self._acceptance.publish(self._engine.categories())
        if self._drafts is not None:
            await self._drafts.judge()
            self._acceptance.publish_drafts(self._drafts.choice.drafts)

    async def _end_with_engine(self) -> None:
        # Not by `ray.actor.exit_actor`, which only a method that Ray called may use.
        await end_with_engine(self._replica_id, self._engine, lambda: self._signals.under_way, lambda: os._exit(1))

    async def _report_running(self) -> None:
        await asyncio.sleep(REPORT_EVERY_S)
        await self._tell_pool()

    async def _tell_pool(self) -> None:
        order = await self._report("running", self._started.entry.name, self._started.failures)
        if self._drafts is not None:
            await self._drafts.obey(order)

    async def _report(self, state: str, entry: str | None, failures: Sequence[EntryFailure]) -> DraftOrder | None:
        load = self._engine.load() if hasattr(self, "_engine") else None
        report = ReplicaReport(
            self._tier_name,
            self._replica_id,
            state,  # type: ignore[arg-type]
            entry,
            tuple((failure.entry, failure.reason) for failure in failures),
            load.running if load else 0,
            load.waiting if load else 0,
            self._signals.stats(load)["queue_wait_ms"] if load else 0.0,
            self._drafts.choice.drafts if self._drafts else None,
            self._drafts.choice.reason if self._drafts else None,
            tuple(troubles(self._beside).items()) if hasattr(self, "_beside") else (),
        )
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                order: DraftOrder | None = await self._pool.report.remote(report)
        except RAY_ERRORS as error:
            # A report is only a view; the next one follows within a second.
            logger.warning("tier %s: the pool view took no report: %s", self._tier_name, error)
            return None
        return order


def _nothing_missing(entry: ChainEntry) -> str | None:
    """A stub has no weights."""
    return None
