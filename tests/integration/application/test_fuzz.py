"""The short form of `bench.fuzz`: fuzzed requests through HAProxy, and what is left of them.

It wakes tiers that tests of other files want cold.
"""

from __future__ import annotations

import asyncio
from typing import Final

from bench.fuzzing.footprint import footprint
from bench.fuzzing.requests import draw_cases
from bench.fuzzing.run import Tally, send_all
from bench.load.servers import Server
from tests.support.api import PATIENCE_S, Api
from tests.support.raw_http import assert_alive

REQUESTS: Final = 400
SEED: Final = 20


def test_400_fuzzed_requests_get_documented_answers_and_leave_nothing_behind(server: Server, api: Api) -> None:
    tally = Tally()
    asyncio.run(send_all(draw_cases(REQUESTS, SEED), server.port, tally, PATIENCE_S))

    assert list(tally.distinct_faults()) == []
    assert sum(tally.requests.values()) == REQUESTS
    held = footprint(server, REQUESTS)
    assert (held.open_requests, held.engine_requests) == (0, 0)
    assert_alive(api)
