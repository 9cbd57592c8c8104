"""Decision records stay for an hour, within a bound on their bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cluster.pool.decisions import KEPT_S, Decisions, KeptDecision


def test_a_record_can_be_read_for_an_hour() -> None:
    kept = Decisions()
    kept.add([KeptDecision("a", b"1")], now_s=10)
    kept.add([KeptDecision("b", b"2")], now_s=20)
    assert (kept.get("a", 10 + KEPT_S), kept.get("b", 10 + KEPT_S)) == (b"1", b"2")
    assert (kept.get("a", 11 + KEPT_S), kept.get("b", 11 + KEPT_S)) == (None, b"2")
    assert kept.get("never", 11 + KEPT_S) is None


def test_a_batch_that_is_sent_twice_counts_once() -> None:
    kept = Decisions(most_bytes=10)
    for _ in range(3):
        kept.add([KeptDecision("a", b"12345")], now_s=0)
    kept.add([KeptDecision("b", b"12345")], now_s=0)
    assert (kept.get("a", 0), kept.get("b", 0)) == (b"12345", b"12345")


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40)), max_size=40), st.integers(50, 200))
def test_the_newest_records_within_the_bound_stay_and_the_oldest_go(
    records: list[tuple[int, int]], most_bytes: int
) -> None:
    kept = Decisions(most_bytes)
    sizes: dict[str, int] = {}
    for name, size in records:
        kept.add([KeptDecision(str(name), b"x" * size)], now_s=0)
        if kept.get(str(name), 0) == b"x" * size and str(name) not in sizes:
            sizes[str(name)] = size
        sizes = {known: size for known, size in sizes.items() if kept.get(known, 0) is not None}
        assert sum(len(kept.get(known, 0) or b"") for known in map(str, range(31))) <= most_bytes
    assert not records or kept.get(str(records[-1][0]), 0) is not None
