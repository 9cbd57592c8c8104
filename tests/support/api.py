"""A client of the application for tests: plain HTTP, and the events of `/api/inference`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final

import httpx

Json = dict[str, Any]


@dataclass
class Answer:
    """The events of one stream, in order."""

    events: list[tuple[str, Json]] = field(default_factory=list)

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]

    def all(self, kind: str) -> list[Json]:
        return [data for name, data in self.events if name == kind]

    def one(self, kind: str) -> Json:
        found = self.all(kind)
        assert len(found) == 1, f"{len(found)} {kind} events in {self.kinds}"
        return found[0]

    @property
    def text(self) -> str:
        return "".join(token["text"] for token in self.all("token"))


PATIENCE_S: Final = 300.0
"""How long a test waits for what must come. It says nothing about speed: a busy machine may be ten times slower."""


class Api:
    """The application at a URL."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self._http = httpx.Client(base_url=base_url, timeout=PATIENCE_S)

    def __enter__(self) -> Api:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._http.close()

    def get(self, path: str) -> httpx.Response:
        return self._http.get(path)

    def post(self, path: str, body: Any) -> httpx.Response:
        content = body if isinstance(body, (str, bytes)) else json.dumps(body)
        return self._http.post(path, content=content, headers={"content-type": "application/json"})

    def post_as(self, path: str, body: Json, headers: Mapping[str, str]) -> httpx.Response:
        """A request with a client's own headers."""
        return self._http.post(path, json=body, headers=dict(headers))

    def send(self, method: str, path: str, content: bytes = b"", **headers: str) -> httpx.Response:
        """Any request; `_` in a header's name stands for `-`."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._http.request(method, path, content=content, headers=given)

    @contextmanager
    def stream(self, path: str, body: Json, headers: Mapping[str, str] | None = None) -> Iterator[httpx.Response]:
        """A response under way; leaving the block closes the connection as a client that goes away does."""
        with self._http.stream("POST", path, json=body, headers=dict(headers or {})) as response:
            yield response

    def infer(self, **body: Any) -> Answer:
        """All events of one `/api/inference` request."""
        with self.stream("/api/inference", body) as response:
            assert response.status_code == 200, response.read()
            return Answer(list(events(response.iter_bytes())))

    def tier(self, name: str) -> Json:
        """The tier's entry of `/api/tiers`."""
        tiers: list[Json] = self.get("/api/tiers").json()["tiers"]
        [found] = [tier for tier in tiers if tier["name"] == name]
        return found

    def wait_for(self, holds: Callable[[Api], bool], timeout_s: float = PATIENCE_S) -> float:
        """Seconds until the condition held.

        `timeout_s` is given only where a later time would be a fault.

        Raises:
            AssertionError: it did not in time.
        """
        began = time.monotonic()
        while not holds(self):
            assert time.monotonic() - began < timeout_s, f"did not hold within {timeout_s} s"
            time.sleep(0.05)
        return time.monotonic() - began


def events(chunks: Iterator[bytes]) -> Iterator[tuple[str, Json]]:
    """(type, data) of each event in a byte stream; comments are passed over, anything else is refused."""
    buffer = b""
    for chunk in chunks:
        buffer += chunk
        while b"\n\n" in buffer:
            block, buffer = buffer.split(b"\n\n", 1)
            if block.startswith(b":"):
                continue
            assert block.startswith(b"data: "), block
            parsed = json.loads(block[6:])
            yield parsed["type"], parsed["data"]
    assert buffer == b"", f"the stream ended inside an event: {buffer!r}"
