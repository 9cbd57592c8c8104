"""The pool counts the open requests while the application is stopping."""

from __future__ import annotations

import asyncio

from cluster.pool.drain import DrainState


async def test_a_waiter_returns_as_soon_as_it_is_closed() -> None:
    requests = DrainState()
    asking = asyncio.ensure_future(requests.closed(60))
    await asyncio.sleep(0)
    assert not asking.done()
    requests.close()
    assert await asyncio.wait_for(asking, 1)
    assert await requests.closed(0)


async def test_a_waiter_returns_after_its_time() -> None:
    assert not await DrainState().closed(0.01)


async def test_the_newest_count_of_each_replica_is_kept() -> None:
    requests = DrainState()
    requests.report("a", 3)
    requests.report("b", 0)
    requests.report("a", 2)
    assert requests.counts() == {"a": 2, "b": 0}


async def test_a_replica_that_no_longer_reports_is_forgotten() -> None:
    now_s = 0.0
    requests = DrainState(lambda: now_s)
    requests.report("dead", 7)
    now_s = 4.0
    requests.report("alive", 1)
    now_s = 6.0
    assert requests.counts() == {"alive": 1}
