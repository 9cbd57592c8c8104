"""A replica whose engine has died ends by itself, after the requests under way have got their errors; so does one whose
engine stalls."""

from __future__ import annotations

import asyncio
from typing import cast

from serve_app.engine.engine_watch import STALLED_AFTER_S, Silence, end_with_engine, kill_when_stalled
from serve_app.engine.interface import Engine, EngineLoad


class Mortal:
    """An engine that dies on demand, in a replica with requests under way."""

    def __init__(self, under_way: int) -> None:
        self.under_way = under_way
        self.death = asyncio.Event()
        self.events: list[str] = []
        self.requests = 0
        self.steps = 0
        self.replica = asyncio.ensure_future(
            end_with_engine("eco#1", cast(Engine, self), lambda: self.under_way, lambda: self.events.append("ended"))
        )

    async def died(self) -> None:
        await self.death.wait()

    async def shutdown(self) -> None:
        self.events.append("shut down")

    def kill(self) -> None:
        self.events.append("killed")
        self.death.set()

    def load(self) -> EngineLoad:
        return EngineLoad(running=0, waiting=self.requests)

    def last_step_s(self) -> float:
        return float(self.steps)


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


async def test_an_engine_that_has_work_and_has_finished_no_step_for_five_minutes_is_killed_and_its_replica_ends() -> (
    None
):
    engine = Mortal(0)
    watching = asyncio.ensure_future(kill_when_stalled("eco#1", cast(Engine, engine)))
    engine.requests = 1
    for _ in range(10):
        await asyncio.sleep(STALLED_AFTER_S - 2)
        engine.steps += 1
    await asyncio.sleep(STALLED_AFTER_S - 2)
    assert engine.events == []
    await asyncio.sleep(5)
    assert engine.events == ["killed", "shut down", "ended"]
    await watching
    await engine.replica


async def test_an_engine_without_work_is_not_killed() -> None:
    engine = Mortal(0)
    watching = asyncio.ensure_future(kill_when_stalled("eco#1", cast(Engine, engine)))
    await asyncio.sleep(24 * 3600)
    assert engine.events == []
    watching.cancel()
    engine.replica.cancel()


def looks(silence: Silence, seconds: int, *, working: bool, last_step_s: float = 1.0, from_s: float = 0.0) -> float:
    """Look once a second; return what was said last."""
    said = [silence.look(from_s + each, last_step_s, working=working) for each in range(seconds + 1)]
    return said[-1]


def test_requests_that_give_up_do_not_end_an_engines_silence_and_time_without_any_does_not_count() -> None:
    silence = Silence()
    assert looks(silence, 240, working=True) == 240
    assert looks(silence, 1000, working=False, from_s=240) == 240
    assert looks(silence, 60, working=True, from_s=1240) == 300
    assert silence.look(1301, 2.0, working=True) == 0.0  # a step


def test_time_in_which_this_process_was_stopped_is_no_silence_of_the_engine() -> None:
    silence = Silence()
    silence.look(0.0, 1.0, working=True)
    assert silence.look(1000.0, 1.0, working=True) == 2.0
