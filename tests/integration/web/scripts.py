"""Scripted answers: the events of a real one of the stub engine, with parts put in."""

from __future__ import annotations

from typing import Any

from serve_app.api.sse import event
from tests.support.api import Api
from tests.support.page_server import PageServer

Event = tuple[str, dict[str, Any]]


def real_events(server: PageServer, **body: Any) -> list[Event]:
    """All events of an answer with one token a word of `The dial turns`, by the stub engine."""
    with Api(server.url.removesuffix("/")) as api:
        return api.infer(**({"prompt": "Hello. stub:tokens=3", "mode": "manual", "power": 10} | body)).events


def opening(server: PageServer) -> bytes:
    """Everything before the first token."""
    return b"".join(event(kind, data) for kind, data in real_events(server) if kind in ("config", "trace", "reasoning"))


def closing(server: PageServer) -> bytes:
    """`metrics` and `done`."""
    return b"".join(event(kind, data) for kind, data in real_events(server) if kind in ("metrics", "done"))


def token(text: str, *, accepted: bool = False, k: int = 0) -> bytes:
    return event("token", {"text": text, "token_id": 1, "logprob": None, "spec_accepted": accepted, "spec_k": k})
