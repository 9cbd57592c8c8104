"""`bench.soak` counts what readers lose."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench.soak.readers import ChatReader, Tally, TokenReader
from bench.soak.run import stop_in


def read(
    *ids: int,
    logprobs: tuple[float, ...] = (),
    counted: int | None = None,
    ends: tuple[str, ...] = ("done",),
    text: str = "x",
    finish_reason: str = "length",
) -> TokenReader:
    """A stream of these tokens, half a second apart."""
    reader = TokenReader()
    given = logprobs or (-0.5,) * len(ids)
    events: list[dict[str, Any]] = [
        {"type": "token", "data": {"text": text, "token_id": token_id, "logprob": logprob, "spec_accepted": False}}
        for token_id, logprob in zip(ids, given, strict=True)
    ]
    if "done" in ends:
        count = len(ids) if counted is None else counted
        events.append({"type": "metrics", "data": {"completion_tokens": count, "finish_reason": finish_reason}})
    events += [{"type": end, "data": {"code": "replica_lost", "message": "gone"}} for end in ends]
    for number, event in enumerate(events):
        reader.feed(f"data: {json.dumps(event)}\n\n".encode(), number / 2)
    return reader


def chat(*texts: str, error: dict[str, Any] | None = None, ends: int = 1) -> ChatReader:
    """A stream of `/v1` with these pieces."""
    reader = ChatReader()
    chunks: list[dict[str, Any]] = [{"choices": [{"delta": {"content": text}}]} for text in texts]
    if error is not None:
        chunks.append({"error": error})
    for payload in [*map(json.dumps, chunks), *["[DONE]"] * ends]:
        reader.feed(f"data: {payload}\n\n".encode(), 0.0)
    return reader


WHOLE = read(1, 2, 3)
RETRY = {"code": "replica_lost", "message": "gone", "retryable": True}


@pytest.mark.parametrize(
    ("stream", "counts"),
    [
        (read(1, 2, 3), (0, 0, 0, 0)),
        (read(1, 2, ends=("error",)), (1, 0, 0, 0)),
        (read(1, 2, 3, ends=()), (1, 0, 0, 0)),
        (read(1, 2, 3, ends=("done", "done")), (0, 1, 0, 0)),
        (read(1, 2, 3, ends=("done", "error")), (1, 1, 0, 0)),
        (read(1, 2, 2, 3, counted=3), (0, 1, 1, 0)),
        (read(1, 2, counted=3), (0, 1, 1, 0)),
        (read(1, 2), (0, 0, 1, 0)),
        (read(1, 2, 3, text="y"), (0, 0, 1, 0)),
        (read(1, 2, 3, finish_reason="stop"), (0, 0, 1, 0)),
        (read(1, 7, 8), (0, 0, 1, 1)),
        (read(1, 7, 8, logprobs=(-0.5, -0.6, -0.5)), (0, 0, 1, 0)),
    ],
    ids=[
        *("whole", "error", "no end", "two ends", "an error after the end", "a token twice", "a token missing"),
        *("shorter", "another text", "another finish reason", "a tie", "another token"),
    ],
)
def test_each_fault_is_counted_by_its_kind(stream: TokenReader, counts: tuple[int, ...]) -> None:
    tally = Tally()
    tally.add(stream, WHOLE)
    assert (tally.lost, tally.doubled, tally.differing, tally.ties) == counts
    assert tally.streams == 1


def test_lost_streams_that_had_not_begun_were_refused() -> None:
    tally = Tally()
    for stream in (read(ends=("error",)), read(1, 2, ends=("error",)), read(ends=())):
        tally.add(stream, WHOLE)
    for answer in (chat(error=RETRY), chat("a", error=RETRY, ends=0)):
        tally.add_chat(answer, chat("a", "b"))
    assert (tally.lost, tally.refused) == (5, 3)


def test_the_largest_tie_is_kept() -> None:
    tally = Tally()
    for logprob in (-0.5, -0.5004, -0.5002):
        tally.add(read(1, 7, 8, logprobs=(-0.5, logprob, -0.5)), WHOLE)
    assert (tally.ties, round(tally.largest_tie, 6)) == (3, 0.0004)


@pytest.mark.parametrize(
    ("stream", "counts"),
    [
        (chat("a", "b"), (0, 0, 0, 0)),
        (chat("a", error=RETRY), (1, 0, 0, 0)),
        (chat(error=RETRY), (0, 1, 0, 0)),
        (chat("a", error=RETRY | {"retryable": False}), (0, 1, 0, 0)),
        (chat("a", error=RETRY, ends=0), (0, 1, 0, 0)),
        (chat("a", "b", ends=2), (0, 0, 1, 0)),
        (chat("a", "c"), (0, 0, 0, 1)),
    ],
    ids=["whole", "cut", "an error first", "a final error", "no end", "two ends", "another text"],
)
def test_a_stream_of_v1_that_has_begun_may_be_cut_once(stream: ChatReader, counts: tuple[int, ...]) -> None:
    tally = Tally()
    tally.add_chat(stream, chat("a", "b"))
    assert (tally.v1_cut, tally.lost, tally.doubled, tally.differing) == counts
    assert (tally.v1_streams, tally.streams) == (1, 0)


def test_a_stop_string_is_a_piece_of_the_second_half_that_comes_once() -> None:
    assert stop_in("one two three four five six") == " four fi"
    assert stop_in("again and again and again and again and ") is None


def test_the_longest_gap_is_kept() -> None:
    tally = Tally()
    late = read(1, 2)
    late.times_s = [0.0, 0.5, 9.0, 9.5]
    tally.add(late, WHOLE)
    tally.add(WHOLE, WHOLE)
    assert tally.max_gap_s == 8.5


def test_that_another_replica_went_on_is_counted() -> None:
    reader = TokenReader()
    for state in ("queued", "resumed", "resumed"):
        reader.feed(f'data: {{"type": "status", "data": {{"state": "{state}"}}}}\n\n'.encode(), 0.0)
    assert reader.resumed == 2
