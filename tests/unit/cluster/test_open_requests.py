"""What the pool knows while its application is being stopped."""

from __future__ import annotations

import asyncio

from cluster.open_requests import OpenRequests


async def test_who_asks_hears_at_once_that_it_was_closed() -> None:
    requests = OpenRequests()
    asking = asyncio.ensure_future(requests.closed(60))
    await asyncio.sleep(0)
    assert not asking.done()
    requests.close()
    assert await asyncio.wait_for(asking, 1)
    assert await requests.closed(0)


async def test_who_asks_is_not_kept_for_ever() -> None:
    assert not await OpenRequests().closed(0.01)


async def test_the_newest_count_of_each_replica_stands() -> None:
    requests = OpenRequests()
    requests.report("a", 3)
    requests.report("b", 0)
    requests.report("a", 2)
    assert requests.counts() == {"a": 2, "b": 0}


async def test_a_replica_that_no_longer_reports_is_not_waited_for() -> None:
    now_s = 0.0
    requests = OpenRequests(lambda: now_s)
    requests.report("dead", 7)
    now_s = 4.0
    requests.report("alive", 1)
    now_s = 6.0
    assert requests.counts() == {"alive": 1}
