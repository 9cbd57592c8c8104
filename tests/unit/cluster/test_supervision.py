"""Background tasks survive their errors and say what is wrong. Time is virtual."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from cluster.supervision import HOPELESS_AFTER_S, MOST_PAUSE_S, Supervised, troubles


class Rounds:
    """Work of which each round lasts a second, then ends as scripted; after the script all succeed."""

    def __init__(self, *script: BaseException | None, then: BaseException | None = None) -> None:
        self.script = list(script)
        self.then = then
        self.began_s = asyncio.get_running_loop().time()
        self.ended_s: list[float] = []

    async def __call__(self) -> None:
        await asyncio.sleep(1)
        self.ended_s.append(asyncio.get_running_loop().time() - self.began_s)
        error = self.script.pop(0) if self.script else self.then
        if error is not None:
            raise error


async def after(seconds: float, work: Callable[[], Awaitable[None]], **options: object) -> Supervised:
    supervised = Supervised("refresh", work, **options)  # type: ignore[arg-type]
    supervised.start()
    await asyncio.sleep(seconds)
    return supervised


@pytest.mark.parametrize("error", [KeyError("odd"), TimeoutError(), asyncio.CancelledError()])
async def test_after_a_failed_round_and_a_pause_the_next_one_follows(error: BaseException) -> None:
    rounds = Rounds(None, error, error, None)
    supervised = await after(10.2, rounds)
    assert rounds.ended_s[:6] == [1, 2, 3.5, 5.5, 6.5, 7.5]
    assert supervised.trouble() is None
    supervised.stop()


async def test_pauses_double_up_to_a_bound_until_a_round_succeeds() -> None:
    rounds = Rounds(*[OSError("no")] * 6, None, OSError("no"), None)
    supervised = await after(60, rounds)
    pauses = [there - here - 1 for here, there in zip(rounds.ended_s[:9], rounds.ended_s[1:9], strict=False)]
    assert pauses == [0.5, 1, 2, 4, MOST_PAUSE_S, MOST_PAUSE_S, 0, 0.5]
    supervised.stop()


async def test_trouble_is_shown_until_a_round_succeeds() -> None:
    rounds = Rounds(OSError("the disk is full"), OSError("the disk is full"), None)
    supervised = await after(3, rounds)
    assert troubles([supervised]) == {"refresh": "2 failed rounds in 2 s, the last: OSError: the disk is full"}
    await asyncio.sleep(2)
    assert troubles([supervised]) == {}
    supervised.stop()


async def test_a_round_that_hangs_is_cancelled_and_the_next_one_follows() -> None:
    began: list[None] = []

    async def hang_once() -> None:
        began.append(None)
        await asyncio.sleep(10_000 if len(began) == 1 else 1)

    supervised = await after(10, hang_once, within_s=5)
    assert len(began) > 3
    assert supervised.trouble() is None
    supervised.stop()


async def test_only_a_task_that_fails_for_minutes_makes_its_process_unhealthy() -> None:
    supervised = await after(HOPELESS_AFTER_S - 10, Rounds(then=KeyError("odd")))
    supervised.raise_if_hopeless()
    await asyncio.sleep(20)
    with pytest.raises(RuntimeError, match=r"refresh: \d+ failed rounds in \d+ s, the last: KeyError: 'odd'"):
        supervised.raise_if_hopeless()
    supervised.stop()


async def test_an_absent_peer_makes_no_process_unhealthy_and_is_logged_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    supervised = await after(10 * HOPELESS_AFTER_S, Rounds(then=ConnectionError("gone")), away=(OSError,))
    supervised.raise_if_hopeless()
    assert supervised.trouble() is not None
    assert {record.exc_info for record in caplog.records} == {None}
    supervised.stop()


async def test_errors_are_logged_with_a_traceback_but_not_in_every_round(caplog: pytest.LogCaptureFixture) -> None:
    supervised = await after(100, Rounds(then=KeyError("odd")))
    supervised.stop()
    first, *others = caplog.records
    assert (first.levelno, first.getMessage()) == (logging.WARNING, "refresh: KeyError: 'odd'")
    assert first.exc_info is not None
    assert others == []


async def test_a_task_that_never_waits_lets_the_others_run() -> None:
    rounds = 0

    async def busy() -> None:
        nonlocal rounds
        rounds += 1
        if rounds >= 100:
            await asyncio.sleep(1)

    supervised = Supervised("busy", busy)
    supervised.start()
    await asyncio.sleep(0)
    assert 0 < rounds < 100
    supervised.stop()


async def test_a_stopped_task_ends_without_trouble() -> None:
    rounds = Rounds()
    supervised = await after(2.5, rounds)
    supervised.stop()
    await asyncio.sleep(5)
    assert len(rounds.ended_s) == 2
    assert supervised.trouble() is None
    supervised.raise_if_hopeless()
