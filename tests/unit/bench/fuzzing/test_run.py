"""What a run of fuzzed requests counts, and what it says is left in the server."""

from __future__ import annotations

from bench.fuzz import left, results
from bench.fuzzing.case import Case
from bench.fuzzing.exchange import Answer, Exchange
from bench.fuzzing.footprint import Footprint
from bench.fuzzing.run import Tally

ID = (b"x-request-id", b"r1")


def held(requests: int, mb: float, *, pool: float = 10.0, fds: int = 50, open_requests: int = 0) -> Footprint:
    memory = {"ingress": mb / 2, "engines": mb / 2, "HAProxy": 0.0, "pool": pool}
    return Footprint(requests, open_requests, 0, memory, {"ingress": fds, "HAProxy": 5})


STEADY = [held(0, 300), held(2000, 400), held(4000, 410), held(6000, 412), held(8000, 413), held(10_000, 414)]


def test_answers_are_counted_by_kind_and_status_and_faults_name_their_request() -> None:
    tally = Tally()
    valid = Case("valid", (b"GET / HTTP/1.1",), "/", "GET", must_serve=True)
    tally.add(0, Exchange(valid, [Answer(200, (ID,), b"", complete=True)], took_s=2.0))
    tally.add(1, Exchange(valid, [Answer(500, (ID,), b"oops", complete=True)], took_s=1.0))
    tally.add(2, Exchange(Case("client leaves", (b"x",), must_answer=False)))
    tally.add(3, Exchange(Case("broken HTTP", (b"y",)), hung=True))
    *_, total = tally.rows()
    assert total == {
        **{"kind": "all", "requests": 4, "2xx, 3xx": 1, "4xx": 0, "503": 0, "other 5xx": 1, "no answer": 2, "hangs": 1},
    }
    assert list(tally.distinct_faults()) == [
        "1 x 500 oops; request 1: b'GET / HTTP/1.1'",
        "1 x no end in time; request 3: b'y'",
    ]
    figures = results(tally, STEADY)
    assert figures["slowest_s"] == 2.0
    assert (figures["mb_warm"], figures["mb_after"], figures["open_after"]) == (400, 414, 0)
    assert figures["growth_mb"] == 12  # 412 is the least of the last three, 400 of the first two


def test_a_server_that_keeps_its_size_has_nothing_left() -> None:
    assert left(STEADY) == []


def test_the_pools_records_are_no_leak() -> None:
    assert left([*STEADY[:-1], held(10_000, 414, pool=70.0)]) == []


def test_memory_that_goes_up_and_down_is_no_growth_and_that_which_stays_up_is() -> None:
    sizes = (300, 400, 440, 415, 440, 430)
    assert left([held(2000 * number, mb) for number, mb in enumerate(sizes)]) == []
    sizes = (300, 400, 410, 421, 430, 440)
    assert left([held(2000 * number, mb) for number, mb in enumerate(sizes)]) == ["21 MB more than in the first half"]


def test_open_requests_and_descriptors_are_left() -> None:
    assert left([*STEADY[:-1], held(10_000, 414, open_requests=2)]) == [
        "2 requests are open at the ingress, 0 in the engines"
    ]
    assert left([*STEADY[:-1], held(10_000, 414, fds=59)]) == ["9 more file descriptors than after 2000 requests"]


def test_a_short_run_says_nothing_about_memory() -> None:
    assert left([held(0, 300), held(500, 400)]) == []
