"""Read an SSE body as it arrives: parse every event, or only count token events under high load."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

Dialect = Literal["inference", "openai"]

TOKEN_MARKER: Final = b'"type":"token"'
"""Part of a token event's compact JSON. A token's text cannot contain it, as JSON escapes quotes."""
END_MARKERS: Final = (b'"type":"done"', b'"type":"error"')


class MarkerCounter:
    """Counts a marker in a byte stream, even if two reads cut it."""

    __slots__ = ("_keep", "_marker", "_tail")

    def __init__(self, marker: bytes) -> None:
        self._marker = marker
        self._keep = len(marker) - 1
        self._tail = b""

    def feed(self, data: bytes) -> int:
        """Return how many markers end in `data`."""
        joined = self._tail + data
        self._tail = joined[-self._keep :] if self._keep else b""
        return joined.count(self._marker)


class EventSplitter:
    """Splits a byte stream into the `data:` payloads of its SSE events; skips comments and other fields."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the payloads of the events that end in `data`."""
        *events, self._rest = (self._rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
            if lines:
                yield b"\n".join(lines)


@dataclass(frozen=True, slots=True)
class Piece:
    """One event, as the benchmarks need it."""

    text: str = ""
    """Answer text; empty for a token without own text (half a character)."""
    token: bool = False
    """Whether the event carries answer text or a token."""
    completion_tokens: int | None = None
    """The server's final count."""
    end: bool = False
    error: str | None = None
    kind: str = ""
    """Event type in the inference dialect."""


def read_inference(payload: bytes) -> Piece:
    """Read an event of `POST /api/inference`."""
    event: dict[str, Any] = json.loads(payload)
    kind, data = event["type"], event["data"]
    match kind:
        case "token":
            return Piece(kind=kind, text=data["text"], token=True)
        case "metrics":
            return Piece(kind=kind, completion_tokens=data["completion_tokens"])
        case "done":
            return Piece(kind=kind, end=True)
        case "error":
            return Piece(kind=kind, end=True, error=f"{data['code']}: {data['message']}")
        case _:
            return Piece(kind=kind)


def read_openai(payload: bytes) -> Piece:
    """Read a chunk of a streamed `/v1/chat/completions` with `stream_options.include_usage`."""
    if payload == b"[DONE]":
        return Piece(end=True)
    chunk: dict[str, Any] = json.loads(payload)
    if "error" in chunk:
        return Piece(end=True, error=json.dumps(chunk["error"]))
    usage = chunk.get("usage") or {}
    text = "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
    return Piece(text=text, token=bool(text), completion_tokens=usage.get("completion_tokens"))


class BodyReader(Protocol):
    """Consumer of a response body."""

    ended: bool
    """Whether the terminal event has arrived."""
    error: str | None
    """The error of the terminal event, if any."""

    def feed(self, data: bytes, now_s: float) -> None:
        """Take body bytes that arrived at `now_s` (monotonic clock)."""


class EventReader:
    """Parses every event: time to first text, time of every token, the server's token count."""

    def __init__(self, dialect: Dialect) -> None:
        self.ended = False
        self.error: str | None = None
        self.first_text_s: float | None = None
        self.kinds_s: dict[str, float] = {}
        """When each event type first arrived."""
        self.token_times_s: list[float] = []
        self.completion_tokens: int | None = None
        self.text = ""
        self._splitter = EventSplitter()
        self._read = read_inference if dialect == "inference" else read_openai

    def feed(self, data: bytes, now_s: float) -> None:
        """Take body bytes that arrived at `now_s`."""
        for payload in self._splitter.feed(data):
            piece = self._read(payload)
            self.kinds_s.setdefault(piece.kind, now_s)
            if piece.token:
                self.token_times_s.append(now_s)
                self.text += piece.text
                if piece.text and self.first_text_s is None:
                    self.first_text_s = now_s
            if piece.completion_tokens is not None:
                self.completion_tokens = piece.completion_tokens
            self.ended = self.ended or piece.end
            self.error = self.error or piece.error


class CountingReader:
    """Counts token events without parsing them: one (time, tokens) entry per read with any."""

    def __init__(self) -> None:
        self.ended = False
        self.error: str | None = None
        self.arrivals: list[tuple[float, int]] = []
        self._tokens = MarkerCounter(TOKEN_MARKER)
        self._ends = tuple(MarkerCounter(marker) for marker in END_MARKERS)

    def feed(self, data: bytes, now_s: float) -> None:
        """Take body bytes that arrived at `now_s`."""
        count = self._tokens.feed(data)
        if count:
            self.arrivals.append((now_s, count))
        done, failed = (marker.feed(data) for marker in self._ends)
        if done or failed:
            self.ended = True
        if failed:
            self.error = "error event"


def added_gaps_s(arrivals: list[tuple[float, int]], expected_gap_s: float) -> list[float]:
    """Return for every token after the first how much more than `expected_gap_s` it came after its predecessor.

    Tokens of one read came 0 s after each other.
    """
    gaps: list[float] = []
    previous: float | None = None
    for time_s, count in arrivals:
        if previous is not None:
            gaps.append(time_s - previous - expected_gap_s)
        gaps.extend([-expected_gap_s] * (count - 1))
        previous = time_s
    return gaps
