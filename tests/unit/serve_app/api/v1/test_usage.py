"""What an answer took is in each `usage` of a response, whichever API has made it, and nothing else changes."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from serve_app.api.v1.usage import with_used

TOOK = {"tier": "eco", "busy_s": 0.5}
USAGE = {"completion_tokens": 3}
TOLD = USAGE | {"power_lever": TOOK}


def sse(data: dict[str, Any], event: str = "") -> bytes:
    return (f"event: {event}\n" if event else "").encode() + b"data: " + orjson.dumps(data) + b"\n\n"


@pytest.mark.parametrize(
    ("piece", "told"),
    [
        (orjson.dumps({"id": "x", "usage": USAGE}), orjson.dumps({"id": "x", "usage": TOLD})),
        (
            sse({"choices": []}) + sse({"choices": [], "usage": USAGE}) + b"data: [DONE]\n\n",
            sse({"choices": []}) + sse({"choices": [], "usage": TOLD}) + b"data: [DONE]\n\n",
        ),
        (
            sse({"type": "message_delta", "usage": USAGE}, "message_delta"),
            sse({"type": "message_delta", "usage": TOLD}, "message_delta"),
        ),
        (
            sse({"type": "response.completed", "response": {"id": "r", "usage": USAGE}}, "response.completed"),
            sse({"type": "response.completed", "response": {"id": "r", "usage": TOLD}}, "response.completed"),
        ),
    ],
    ids=["whole", "chat stream", "message stream", "response stream"],
)
def test_each_usage_says_what_the_answer_took(piece: bytes, told: bytes) -> None:
    assert with_used(piece, TOOK) == told


@pytest.mark.parametrize(
    "piece",
    [
        b"",
        b": ping\n\n",
        b"data: [DONE]\n\n",
        b'{"usage": {"a": 1}',  # a body that came in pieces
        sse({"choices": [{"text": '"usage"'}], "usage": None}),
        b'data: ["usage"]\n\n',
        '{"text": "\u00fcber \\"usage\\"", "n": 1e2}'.encode(),
    ],
)
def test_what_has_no_usage_is_the_same_to_the_byte(piece: bytes) -> None:
    assert with_used(piece, TOOK) == piece
