"""The ingress with stub engines in one process, without Ray and without a socket."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import httpx2
import pytest
from ray import serve
from starlette.types import ASGIApp

from cluster.pool.allowances import Allowances, Grant, Statement
from router.observation import TierState
from router.registry import TIER_NAMES, TierName
from router.runs.summary import HandedOver, RunReport
from serve_app.api.ingress import Ingress
from serve_app.api.request_metrics import RequestMetrics
from serve_app.config import AppConfig
from serve_app.engine.interface import Engine, GenerationRequest
from serve_app.engine.stream_items import http_items, stream_items
from serve_app.engine.stub import StubEngine
from serve_app.engine.stub_http import stub_app
from serve_app.transport.asgi_call import HttpCall
from serve_app.transport.client import GenerationStream, ResponseStream
from serve_app.transport.stream import LocalStream
from tests.support.app_config import FixedPool
from tests.support.recorded_meter import RecordedMeter


class LocalTiers:
    """Stands for `TierClient`: each tier has one stub engine."""

    def __init__(self, config: AppConfig) -> None:
        self.asked: list[tuple[TierName, GenerationRequest]] = []
        """Of `/api/inference`, in order."""
        self.called: list[HttpCall] = []
        """Of `/v1`, in order."""
        self.woken: list[TierName] = []
        """Tiers that are waited for."""
        self._engines = {name: StubEngine(config.entry(name, None), 0, obeys_directives=True) for name in TIER_NAMES}

    def generate(self, tier: TierName, request: GenerationRequest) -> GenerationStream:
        self.asked.append((tier, request))
        return LocalStream(stream_items(self._engines[tier], request))

    def wake(self, tier: TierName) -> Callable[[], None]:
        self.woken.append(tier)
        return partial(self.woken.remove, tier)

    def http(self, tier: TierName, call: HttpCall) -> ResponseStream:
        self.called.append(call)
        engine = self._engines[tier]
        return LocalStream(http_items(cast(Engine, engine), stub_app(engine, engine.entry), call))


class LocalIngress:
    """The ingress of a config with warm tiers."""

    def __init__(self, config: AppConfig, monkeypatch: pytest.MonkeyPatch) -> None:
        context = SimpleNamespace(replica_id=SimpleNamespace(unique_id="replica-1"))
        monkeypatch.setattr(serve, "get_replica_context", lambda: context)
        self._folder = tempfile.TemporaryDirectory()
        self.log_folder = Path(self._folder.name)
        monkeypatch.setattr("serve_app.api.ingress.get_serve_logs_dir", lambda: self._folder.name)
        ingress = Ingress(config, cast(Any, None), {})
        self.config = config
        self.pool = FixedPool({name: TierState(running=1) for name in TIER_NAMES})
        self._ingress = ingress
        self.tiers = LocalTiers(config)
        self.use(self.tiers)
        ingress._pool = self.pool
        self.allowances, loop = Allowances(), asyncio.get_running_loop

        async def statement(number: int, statements: Sequence[Statement]) -> list[Grant]:
            return self.allowances.lease("replica-1", number, statements, loop().time())

        ingress._desk._call = statement
        self.reports: list[RunReport | HandedOver] = []
        ingress._runs = cast(Any, SimpleNamespace(add=self.reports.append, work=ingress._runs.work))
        self.ingress, self.meter = ingress, RecordedMeter()
        ingress._counted = RequestMetrics(self.meter)
        self.app: ASGIApp = ingress.__serve_build_asgi_app__()

    def use(self, tiers: LocalTiers) -> None:
        """Let these engines answer."""
        self._ingress._tiers = cast(Any, tiers)

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://localhost")

    def sdk_http(self) -> httpx2.AsyncClient:
        """The client that the SDKs take."""
        return httpx2.AsyncClient(transport=httpx2.ASGITransport(self.app))

    async def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> httpx.Response:
        async with self.http() as http:
            return await http.post(path, json=body, headers=dict(headers or {}))
