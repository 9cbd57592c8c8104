"""What a client of each route gets, and how it compares with an undisturbed answer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import orjson

from bench.load.sse import EventSplitter

TIE: Final = 1e-3
"""Two tokens whose log-probabilities differ by less are as likely as each other."""
Json = dict[str, Any]


class TokenReader:
    """Keeps the tokens of a stream of `/api/inference`, when they came, and how it ended."""

    def __init__(self) -> None:
        self.heard_s = 0.0
        """When the last token came, or the reader began to wait for one; monotonic clock, s."""
        self.ended = False
        self.error: str | None = None
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.times_s: list[float] = []
        self.text = ""
        self.finish_reason: str | None = None
        self.ends = 0
        self.resumed = 0
        self.counted: int | None = None
        self.accepted = 0
        """Tokens that were drafted."""
        self.parts = 0
        """Tokens without a text of their own: parts of a character."""
        self._splitter = EventSplitter()

    def feed(self, data: bytes, now_s: float) -> None:
        """Take body bytes that arrived at `now_s` (monotonic clock)."""
        for payload in self._splitter.feed(data):
            event: Json = orjson.loads(payload)
            kind, given = event["type"], event["data"]
            if kind == "token":
                self.ids.append(given["token_id"])
                self.logprobs.append(given["logprob"])
                self.times_s.append(now_s)
                self.heard_s = now_s
                self.text += given["text"]
                self.accepted += given["spec_accepted"]
                self.parts += not given["text"]
            elif kind == "status":
                self.resumed += given["state"] == "resumed"
            elif kind == "metrics":
                self.counted, self.finish_reason = given["completion_tokens"], given["finish_reason"]
            elif kind in ("done", "error"):
                self.ends += 1
                self.ended = True
                if kind == "error":
                    self.error = f"{given['code']}: {given['message']}"

    @property
    def gap_s(self) -> float:
        """The longest time between two tokens, s."""
        return max((later - earlier for earlier, later in pairwise(self.times_s)), default=0.0)


class ChatReader:
    """Keeps the text of a stream of `/v1/chat/completions`, and how it ended."""

    def __init__(self) -> None:
        self.heard_s = 0.0
        """As of `TokenReader`."""
        self.ended = False
        self.error: str | None = None
        self.retryable = False
        self.text = ""
        self.ends = 0
        self._splitter = EventSplitter()

    def feed(self, data: bytes, now_s: float) -> None:
        """Take body bytes."""
        for payload in self._splitter.feed(data):
            if payload == b"[DONE]":
                self.ends += 1
                self.ended = True
                continue
            chunk: Json = orjson.loads(payload)
            if "error" in chunk:
                self.error = f"{chunk['error'].get('code')}: {chunk['error'].get('message')}"
                self.retryable = bool(chunk["error"].get("retryable"))
                continue
            self.heard_s = now_s
            self.text += "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])


@dataclass(slots=True)
class Tally:
    """What became of the streams."""

    streams: int = 0
    lost: int = 0
    refused: int = 0
    """Of the lost ones, those that had not begun."""
    doubled: int = 0
    differing: int = 0
    ties: int = 0
    largest_tie: float = 0.0
    """Difference of two log-probabilities."""
    resumed: int = 0
    max_gap_s: float = 0.0
    v1_streams: int = 0
    v1_cut: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, read: TokenReader, whole: TokenReader) -> None:
        """Add a stream that has ended.

        Args:
            read: what its client got.
            whole: of the same request, undisturbed.
        """
        self.streams += 1
        self.resumed += read.resumed
        self.max_gap_s = max(self.max_gap_s, read.gap_s)
        doubled = read.ends > 1 or (read.counted is not None and len(read.ids) != read.counted)
        self.doubled += doubled
        if read.error is not None or not read.ended:
            self._lose(read.error, begun=bool(read.ids))
        elif (read.ids, read.text, read.finish_reason) != (whole.ids, whole.text, whole.finish_reason):
            self.differing += 1
            tie = None if doubled else tie_of(read, whole)
            if tie is not None and tie < TIE:
                self.ties += 1
                self.largest_tie = max(self.largest_tie, tie)

    def add_chat(self, read: ChatReader, whole: ChatReader) -> None:
        """Add a stream of `/v1`: one that has begun may end with an error, once, after which the client may retry."""
        self.v1_streams += 1
        self.doubled += read.ends > 1
        if read.error is not None and read.ended and read.text and read.retryable:
            self.v1_cut += 1
        elif read.error is not None or not read.ended:
            self._lose(f"/v1: {read.error}", begun=bool(read.text))
        elif read.text != whole.text:
            self.differing += 1

    def _lose(self, error: str | None, *, begun: bool) -> None:
        self.lost += 1
        self.refused += not begun
        self.errors[error or "no end"] += 1


def tie_of(read: TokenReader, whole: TokenReader) -> float | None:
    """Return by how much the log-probabilities differ where two answers part; None: one is the other's beginning."""
    pairs = enumerate(zip(read.ids, whole.ids, strict=False))
    first = next((position for position, (ours, theirs) in pairs if ours != theirs), None)
    return None if first is None else abs(read.logprobs[first] - whole.logprobs[first])
