"""The ingress with stub engines on a loopback port, for a browser: no Ray, tiers as a test sets them, scripts."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bench.load.client import HOST
from bench.load.servers import free_port, get_status
from router.observation import TierState
from router.registry import TIER_NAMES, TierName
from serve_app.auth.keys import KeyList, KeyRing, utc_now
from serve_app.config import load_config
from serve_app.engine.interface import GenerationRequest
from serve_app.engine.stream_items import StreamItem, stream_items
from serve_app.transport.client import GenerationStream
from serve_app.transport.stream import LocalStream
from tests.support.app_config import FixedPool
from tests.support.local_ingress import LocalIngress, LocalTiers
from tests.support.streams import Wait

SCRIPT: Final = "script:"
"""A prompt that begins so is answered by the script of that name."""
CUT: Final = ConnectionResetError("the script cuts the connection")
FREED_WITHIN_S: Final = 10.0
"""The second that the design allows, on a machine that is ten times slower."""
POLL_S: Final = 0.02
Part = bytes | Wait | ConnectionResetError
Script = Sequence[Part]


class ColdTiers(LocalTiers):
    """Stub engines that answer once the pool shows their tier warm, as replicas do."""

    def __init__(self, server: PageServer) -> None:
        super().__init__(server.ingress.config)
        self._server = server

    def generate(self, tier: TierName, request: GenerationRequest) -> GenerationStream:
        async def items() -> AsyncGenerator[StreamItem, None]:
            while not self._server.pool.observation.tier(tier).warm:  # noqa: ASYNC110 (a test's thread sets it)
                await asyncio.sleep(POLL_S)
            async for item in stream_items(self._engines[tier], request):
                yield item

        return LocalStream(items())

    @property
    def running(self) -> int:
        """Requests in all engines."""
        return sum(engine.load().running for engine in self._engines.values())


@dataclass
class Scripted:
    """ASGI: answers prompts that name a script, and counts answers of scripts that are open."""

    app: ASGIApp
    scripts: dict[str, Script] = field(default_factory=dict)
    asked: list[dict[str, Any]] = field(default_factory=list)
    """The bodies of all requests to `/api/inference`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/api/inference":
            await self.app(scope, receive, send)
            return
        raw = b""
        more = True
        while more:
            message = await receive()
            raw += message.get("body", b"")
            more = message.get("more_body", False)
        body = json.loads(raw)
        self.asked.append(body)
        if body["prompt"].startswith(SCRIPT):
            await _play(self.scripts[body["prompt"].removeprefix(SCRIPT)], send)
            return
        first: list[Message] = [{"type": "http.request", "body": raw, "more_body": False}]

        async def replay() -> Message:
            return first.pop() if first else await receive()

        await self.app(scope, replay, send)


async def _play(script: Script, send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for part in script:
        if isinstance(part, Wait):
            await asyncio.sleep(part.seconds)
        elif isinstance(part, bytes):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        else:
            raise part
    await send({"type": "http.response.body", "body": b"", "more_body": False})


class PageServer:
    """A running server. Every tier is warm until a test says otherwise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, keys_file: Path | None = None) -> None:
        args: dict[str, Any] = {"profile": "local", "inference_mode": "mock"}
        if keys_file is not None:
            args["auth"] = {"mode": "keys", "keys_file": str(keys_file)}
        config = load_config(args, {}, lambda: ("local", "for tests"))
        self.ingress = LocalIngress(config, monkeypatch)
        self.tiers = ColdTiers(self)
        self.ingress.use(self.tiers)
        self.door = Scripted(self.ingress.app)
        self.port = free_port()

    @property
    def pool(self) -> FixedPool:
        return self.ingress.pool

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/"

    def start(self) -> None:
        """Listen, in a thread."""
        config = uvicorn.Config(self.door, HOST, self.port, lifespan="off", log_level="critical")
        self._web = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._web.run, name="page server")
        self._thread.start()
        while get_status(self.port, "/healthz") != 200:
            assert self._thread.is_alive()

    def stop(self) -> None:
        """End every connection."""
        self._web.should_exit = self._web.force_exit = True
        self._thread.join()

    def set_keys(self, listed: KeyList) -> None:
        """Let the holders of these keys in, as if the file had changed."""
        keys = self.ingress.ingress._keys
        assert keys is not None
        keys.ring = KeyRing.of(listed, utc_now())

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Nobody listens on its port meanwhile."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def wait_for_no_requests(self) -> None:
        """Wait until no engine has a request any more. A client that left must free it within a second."""
        began = time.monotonic()
        while self.tiers.running:
            assert time.monotonic() - began < FREED_WITHIN_S, f"{self.tiers.running} requests still run"
            time.sleep(POLL_S)

    def reset(self) -> None:
        """Make all tiers warm, and forget what was asked."""
        for name in TIER_NAMES:
            self.pool.set(name, TierState(running=1, queue_wait_ms=12.0, active_entry="ngram"))
        self.door.asked.clear()


@contextmanager
def page_server(keys_file: Path | None = None) -> Iterator[PageServer]:
    """Run a server in a thread of its own; with a keys file, it asks for one of its keys."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        server = PageServer(monkeypatch, keys_file)
        server.start()
        try:
            server.reset()
            yield server
        finally:
            server.stop()
