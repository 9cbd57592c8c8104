"""A replica whose engine has died ends by itself, after the requests under way have got their errors."""

from __future__ import annotations

import asyncio
from typing import cast

from serve_app.engine.engine_watch import end_with_engine
from serve_app.engine.interface import Engine


class Mortal:
    """An engine that dies on demand, in a replica with requests under way."""

    def __init__(self, under_way: int) -> None:
        self.under_way = under_way
        self.death = asyncio.Event()
        self.events: list[str] = []
        self.replica = asyncio.ensure_future(
            end_with_engine("eco#1", cast(Engine, self), lambda: self.under_way, lambda: self.events.append("ended"))
        )

    async def died(self) -> None:
        await self.death.wait()

    async def shutdown(self) -> None:
        self.events.append("shut down")


async def test_the_replica_of_a_living_engine_goes_on() -> None:
    engine = Mortal(0)
    await asyncio.sleep(3600)
    assert engine.events == []
    engine.replica.cancel()


async def test_an_idle_replica_ends_with_its_engine_at_once_after_cleaning_up() -> None:
    engine = Mortal(0)
    engine.death.set()
    began_s = asyncio.get_running_loop().time()
    await engine.replica
    assert asyncio.get_running_loop().time() == began_s
    assert engine.events == ["shut down", "ended"]


async def test_requests_under_way_get_their_error_before_the_replica_ends() -> None:
    engine = Mortal(2)
    engine.death.set()
    await asyncio.sleep(0.5)
    assert engine.events == ["shut down"]
    engine.under_way = 0
    await asyncio.sleep(0.1)
    assert engine.events == ["shut down", "ended"]


async def test_the_replica_does_not_wait_long_for_a_request_that_takes_no_error() -> None:
    engine = Mortal(1)
    engine.death.set()
    await asyncio.sleep(3)
    assert engine.events == ["shut down", "ended"]
