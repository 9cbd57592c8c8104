import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.load.sse import (
    TOKEN_MARKER,
    CountingReader,
    EventReader,
    EventSplitter,
    MarkerCounter,
    added_gaps_s,
)


def _event(kind: str, **data: object) -> bytes:
    return b"data: " + json.dumps({"type": kind, "data": data}, separators=(",", ":")).encode() + b"\n\n"


def _pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


BODY = b"".join(
    [
        _event("config", tier="eco"),
        b": ping\n\n",
        _event("token", text="Ünï"),
        _event("token", text='"type":"token"'),  # escaped in JSON, so it does not count
        _event("metrics", completion_tokens=2),
        _event("done", request_id="r"),
    ]
)
cuts = st.lists(st.integers(0, 10_000), max_size=20)


@given(cuts)
def test_markers_cut_by_two_reads_count_once(edges: list[int]) -> None:
    counter = MarkerCounter(TOKEN_MARKER)
    assert sum(counter.feed(piece) for piece in _pieces(BODY, edges)) == 2


@given(cuts)
def test_events_cut_by_two_reads_are_joined(edges: list[int]) -> None:
    splitter = EventSplitter()
    kinds = [json.loads(payload)["type"] for piece in _pieces(BODY, edges) for payload in splitter.feed(piece)]
    assert kinds == ["config", "token", "token", "metrics", "done"]


@given(cuts)
def test_a_counting_reader_sees_the_tokens_and_the_end(edges: list[int]) -> None:
    reader = CountingReader()
    for moment, piece in enumerate(_pieces(BODY, edges)):
        reader.feed(piece, float(moment))
    assert sum(count for _, count in reader.arrivals) == 2
    assert (reader.ended, reader.error) == (True, None)


def test_a_counting_reader_reports_an_error_event() -> None:
    reader = CountingReader()
    reader.feed(_event("error", code="engine_failed", message="no"), 0.0)
    assert (reader.ended, reader.error) == (True, "error event")


def test_an_event_reader_times_the_first_token_with_text() -> None:
    reader = EventReader("inference")
    for moment, event in enumerate(
        [_event("config"), _event("token", text=""), _event("token", text="a"), _event("metrics", completion_tokens=2)]
    ):
        reader.feed(event, float(moment))
    assert reader.first_text_s == 2
    assert reader.token_times_s == [1, 2]
    assert (reader.text, reader.completion_tokens, reader.ended) == ("a", 2, False)
    assert reader.kinds_s["config"] == 0


def test_an_event_reader_reads_openai_chunks_with_role_usage_and_end() -> None:
    reader = EventReader("openai")
    chunks: list[object] = [
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"content": "two tokens"}}]},
        {"choices": [], "usage": {"completion_tokens": 2}},
    ]
    for moment, chunk in enumerate(chunks):
        reader.feed(b"data: " + json.dumps(chunk).encode() + b"\n\n", float(moment))
    reader.feed(b"data: [DONE]\n\n", 3.0)
    assert reader.first_text_s == 1
    assert (reader.text, reader.completion_tokens, reader.ended, reader.error) == ("two tokens", 2, True, None)


def test_an_event_reader_keeps_the_error() -> None:
    ours, openai = EventReader("inference"), EventReader("openai")
    ours.feed(_event("error", code="timeout", message="too slow"), 0.0)
    openai.feed(b'data: {"error": {"message": "no such model"}}\n\n', 0.0)
    assert ours.error == "timeout: too slow"
    assert openai.error is not None
    assert "no such model" in openai.error


def test_added_gaps_exclude_the_engines_own_gap() -> None:
    arrivals = [(1.0, 1), (1.025, 1), (1.045, 2)]  # 25 ms, 20 ms, then one in the same read
    assert added_gaps_s(arrivals, expected_gap_s=0.02) == pytest.approx([0.005, 0.0, -0.02])
