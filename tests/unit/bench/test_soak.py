"""`bench.soak` counts what readers lose."""

from __future__ import annotations

import json

import pytest

from bench.soak import Tally, TokenReader


def read(*ids: int, logprobs: tuple[float, ...] = (), counted: int | None = None, end: str = "done") -> TokenReader:
    """A stream of these tokens, half a second apart."""
    reader = TokenReader()
    given = logprobs or (-0.5,) * len(ids)
    events = [
        {"type": "token", "data": {"text": "x", "token_id": token_id, "logprob": logprob}}
        for token_id, logprob in zip(ids, given, strict=True)
    ]
    if end == "done":
        events.append({"type": "metrics", "data": {"completion_tokens": len(ids) if counted is None else counted}})
    if end:
        events.append({"type": end, "data": {"code": "replica_lost", "message": "gone"}})
    for number, event in enumerate(events):
        reader.feed(f"data: {json.dumps(event)}\n\n".encode(), number / 2)
    return reader


WHOLE = read(1, 2, 3)


@pytest.mark.parametrize(
    ("stream", "counts"),
    [
        (read(1, 2, 3), (0, 0, 0, 0)),
        (read(1, 2, end="error"), (1, 0, 0, 0)),
        (read(1, 2, 3, end=""), (1, 0, 0, 0)),
        (read(1, 2, 2, 3, counted=3), (0, 1, 1, 0)),
        (read(1, 2, counted=3), (0, 1, 1, 0)),
        (read(1, 7, 8), (0, 0, 1, 1)),
        (read(1, 7, 8, logprobs=(-0.5, -0.6, -0.5)), (0, 0, 1, 0)),
    ],
    ids=["whole", "error", "no end", "a token twice", "a token missing", "a tie", "another token"],
)
def test_each_fault_is_counted_by_its_kind(stream: TokenReader, counts: tuple[int, ...]) -> None:
    tally = Tally()
    tally.add(stream, WHOLE)
    assert (tally.lost, tally.doubled, tally.differing, tally.ties) == counts
    assert tally.streams == 1


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
