"""Engines on one card start one at a time: the lock between real processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from serve_app.engine.card_lock import card_to_itself, visible_cards

# Real time, as processes wait for each other; on the loop that Ray installs in its workers.
pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])

HOLDER = """
import asyncio, sys
from pathlib import Path
from serve_app.engine.card_lock import card_to_itself

async def main(cards, folder):
    async with card_to_itself(0.4, environment={"CUDA_VISIBLE_DEVICES": cards}, folder=Path(folder)):
        print("held", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
    print("free", flush=True)
    await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main(*sys.argv[1:]))
"""


def holder(folder: Path, cards: str = "0") -> subprocess.Popen[str]:
    """A process that holds the lock of these cards until it is told to go on, and ends when told again."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", HOLDER, cards, str(folder)], stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


async def held_after(folder: Path, within_s: float, *, gpus: float = 0.4, cards: str = "0") -> bool:
    """Whether this process gets the lock within that time."""

    async def take() -> None:
        async with card_to_itself(gpus, environment={"CUDA_VISIBLE_DEVICES": cards}, folder=folder):
            pass

    try:
        await asyncio.wait_for(take(), within_s)
    except TimeoutError:
        return False
    return True


async def test_a_second_engine_waits_until_the_first_has_answered(tmp_path: Path) -> None:
    first = holder(tmp_path)
    try:
        assert not await held_after(tmp_path, 0.3)
        first.stdin.write("\n")  # type: ignore[union-attr]
        first.stdin.flush()  # type: ignore[union-attr]
        assert await held_after(tmp_path, 30)
        assert first.poll() is None  # it let the lock go, not the kernel
    finally:
        first.kill()
        first.wait()


async def test_the_lock_of_an_engine_that_is_killed_is_free(tmp_path: Path) -> None:
    first = holder(tmp_path)
    first.kill()
    first.wait()
    assert await held_after(tmp_path, 30)


async def test_engines_on_other_cards_and_with_whole_cards_do_not_wait(tmp_path: Path) -> None:
    first = holder(tmp_path, cards="0")
    try:
        assert await held_after(tmp_path, 5, cards="1")
        assert await held_after(tmp_path, 5, gpus=1)
        assert await held_after(tmp_path, 5, gpus=0, cards="")
        assert not await held_after(tmp_path, 0.3, cards="0,1")
    finally:
        first.kill()
        first.wait()


async def test_a_stopping_engine_waits_no_longer_than_it_may(tmp_path: Path) -> None:
    first = holder(tmp_path)
    try:
        began = time.monotonic()
        async with card_to_itself(0.4, at_most_s=0.3, environment={"CUDA_VISIBLE_DEVICES": "0"}, folder=tmp_path):
            assert 0.3 <= time.monotonic() - began < 10
    finally:
        first.kill()
        first.wait()


@pytest.mark.parametrize(
    ("value", "cards"), [("1,0", ["0", "1"]), ("", []), ("GPU-8d3c", ["GPU-8d3c"])], ids=["two", "none", "uuid"]
)
async def test_cards_are_those_that_ray_lets_the_process_see(value: str, cards: list[str]) -> None:
    assert visible_cards({"CUDA_VISIBLE_DEVICES": value}) == cards
    assert visible_cards({}) == []
