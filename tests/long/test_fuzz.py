"""10,000 fuzzed requests: documented answers only, nothing hangs, nothing is left."""

from __future__ import annotations

from bench.fuzz import REQUESTS, fuzz, left, settings
from bench.load.servers import application, running


def test_10000_fuzzed_requests_get_documented_answers_and_leave_nothing_behind() -> None:
    server = application({"/": settings()})
    with running(server):
        tally, held = fuzz(server, REQUESTS, seed=1)
    assert list(tally.distinct_faults()) == []
    assert sum(tally.requests.values()) == REQUESTS
    assert left(held) == []
