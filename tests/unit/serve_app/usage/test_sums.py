"""Sums of what requests took: the same total however they are grouped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from datetime import UTC, date, datetime
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.usage.lines import NOBODY, Entry, Part
from serve_app.usage.sums import PROPERTIES, Property, Sums, Wanted, key_words, summed

ADDED = ("requests", "errors", "left", "estimated", "prompt_tokens", "completion_tokens")
AMOUNTS = ("engine_s", "energy_wh", "cost_usd", "agent_usd")


def entry(
    *parts: Part,
    key: str = "a1",
    name: str = "alice",
    day: int = 1,
    outcome: str = "ok",
    tier: str = "eco",
    ttft_ms: float | None = 100.0,
    estimated: bool = False,
) -> Entry:
    at = datetime(2026, 11, day, 23, 59, tzinfo=UTC)
    parts = parts or (Part(tier, 5, 0.5, 0.01, 0.0001),)
    return Entry(at, key, name, "/api/inference", "math", outcome, tier, 7, 0.001, ttft_ms, estimated, parts)


def test_an_answer_that_climbed_counts_once_and_each_part_at_its_tier() -> None:
    climbed = entry(Part("eco", 3, 1.0, 0.1, 0.01), Part("ultra", 9, 2.0, 0.7, 0.5))
    groups = summed([climbed, entry()], ["tier"]).groups
    eco, ultra = groups[("eco",)], groups[("ultra",)]
    assert (eco.requests, eco.completion_tokens, eco.engine_s) == (2, 8, 1.5)
    assert (ultra.requests, ultra.completion_tokens, ultra.engine_s, ultra.cost_usd) == (0, 9, 2.0, 0.5)
    assert (eco.prompt_tokens, ultra.prompt_tokens) == (14, 0)


def test_the_order_of_the_properties_is_that_of_the_groups() -> None:
    entries = [entry(), entry(key="b2", name="bob", day=2), entry(key="b2", name="bob")]
    assert list(summed(entries, ["day", "key"]).groups) == [
        ("2026-11-01", "a1"),
        ("2026-11-01", "b2"),
        ("2026-11-02", "b2"),
    ]
    assert list(summed(entries, ["key"]).groups) == [("a1",), ("b2",)]


def test_errors_and_clients_that_left_are_told_apart() -> None:
    total = summed(
        [entry(), entry(outcome="client_left"), entry(outcome="engine_failed", estimated=True)], ["key"]
    ).total
    assert (total.requests, total.errors, total.left, total.estimated) == (3, 1, 1, 1)


@pytest.mark.parametrize(
    ("times", "median", "p95"),
    [
        ([], None, None),
        ([7.0], 7.0, 7.0),
        ([1.0, 2.0], 1.0, 2.0),
        ([3.0, 1.0, 2.0], 2.0, 3.0),
        ([float(ms) for ms in range(100, 0, -1)], 50.0, 95.0),
    ],
)
def test_half_the_requests_had_their_first_token_by_the_median(
    times: list[float], median: float | None, p95: float | None
) -> None:
    total = summed([entry(ttft_ms=time) for time in times] + [entry(ttft_ms=None)], ["key"]).total
    assert (total.ttft_ms(0.5), total.ttft_ms(0.95)) == (median, p95)


def test_first_and_last_day_are_days_of_utc_and_both_count() -> None:
    wanted = Wanted(date(2026, 11, 2), date(2026, 11, 3))
    assert [day for day in range(1, 6) if wanted.has(entry(day=day))] == [2, 3]


def test_a_key_is_wanted_by_its_name_or_its_id_and_nobody_by_a_dash() -> None:
    nobody = entry(key=NOBODY, name=NOBODY)
    assert [Wanted(key=key).has(entry()) for key in ("alice", "a1", "bob", NOBODY)] == [True, True, False, False]
    assert Wanted(key=NOBODY).has(nobody)


def test_a_key_is_shown_by_its_name_and_id_as_it_was_called_last() -> None:
    usage = summed([entry(name="old"), entry(name="alice"), entry(key=NOBODY, name=NOBODY)], ["key"])
    assert [key_words(key, usage.names) for (key,) in usage.groups] == ["-", "alice (a1)"]


WORDS = st.sampled_from(["x", "y", "z"])
AMOUNT = st.floats(0, 1e6)
PARTS = st.builds(Part, WORDS, st.integers(0, 10**6), AMOUNT, AMOUNT, AMOUNT)
ENTRIES = st.builds(
    Entry,
    st.datetimes(datetime(2026, 1, 1), datetime(2026, 1, 4), timezones=st.just(UTC)),
    WORDS,
    WORDS,
    WORDS,
    WORDS,
    st.sampled_from(["ok", "client_left", "overloaded"]),
    WORDS,
    st.integers(0, 10**6),
    AMOUNT,
    st.none() | AMOUNT,
    st.booleans(),
    st.lists(PARTS, max_size=3).map(tuple),
)
SOME_PROPERTIES = st.permutations(PROPERTIES).flatmap(
    lambda order: st.integers(1, len(order)).map(lambda count: order[:count])
)


@given(st.lists(ENTRIES, max_size=20), SOME_PROPERTIES)
def test_the_sums_of_any_grouping_add_up_to_those_of_all(entries: list[Entry], by: Sequence[Property]) -> None:
    usage = summed(entries, by)
    groups = list(usage.groups.values())
    for name in ADDED:
        assert sum(getattr(each, name) for each in groups) == getattr(usage.total, name), name
    for name in AMOUNTS:
        whole = getattr(usage.total, name)
        assert sum(getattr(each, name) for each in groups) == pytest.approx(whole, rel=1e-9, abs=1e-9), name
    assert usage.total.requests == len(entries)
    assert usage.total.engine_s == pytest.approx(sum(part.busy_s for one in entries for part in one.parts), abs=1e-9)
    times = sorted(one.ttft_ms for one in entries if one.ttft_ms is not None)
    assert sorted(chain.from_iterable(astuple(each)[-1] for each in groups)) == times


def test_nothing_sums_up_to_nothing() -> None:
    usage = summed([], ["key", "tier"])
    assert (usage.groups, usage.total) == ({}, Sums())
