"""Requests to an engine, with what a test does not care about filled in."""

from __future__ import annotations

from typing import Any

from router.registry import ChainEntry
from router.request import Message
from router.spec_params import NO_DRAFTS, SpecParams
from serve_app.engine.interface import GenerationRequest

ENTRY = ChainEntry(name="first", target="m", max_model_len=2048)


def drafting(k: int) -> SpecParams:
    return SpecParams(k=k, tau=0.0)


def generation(text: str = "Hello", **over: Any) -> GenerationRequest:
    """A request for at most 16 tokens without speculation."""
    values: dict[str, Any] = {
        "request_id": "r1",
        "messages": (Message(role="user", content=text),),
        "max_tokens": 16,
        "max_tokens_is_explicit": False,
        "temperature": 0.0,
        "top_p": 1.0,
        "seed": None,
        "stop": (),
        "logprobs": False,
        "spec": NO_DRAFTS,
    }
    return GenerationRequest(**(values | over))
