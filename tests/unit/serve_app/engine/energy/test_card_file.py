"""Engines on a card share its state in a file, under a lock of the kernel's."""

from __future__ import annotations

import fcntl
import multiprocessing
import time
from pathlib import Path

import pytest

from serve_app.engine.energy.card_file import locked_card
from serve_app.engine.energy.counters import CounterError
from sustainability.cards import Card

CARD = "GPU-1"


def add(folder: Path, times: int) -> None:
    for _ in range(times):
        with locked_card(folder, CARD, time.monotonic()) as card:
            card.lost_j += 1


def test_what_one_engine_writes_the_next_one_reads(tmp_path: Path) -> None:
    with locked_card(tmp_path / "new", CARD, 5.0) as card:
        card.join("a", 0.5, 1.0, 100.0, 50.0, 5.0)
    with locked_card(tmp_path / "new", CARD, 6.0) as card:
        assert card.report("a", 1.5, 150.0, None, 6.0)
        assert card.engines["a"].active_j + card.engines["a"].idle_j == pytest.approx(50)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_an_engine_that_left_is_still_known_to_the_next_reader(tmp_path: Path) -> None:
    with locked_card(tmp_path, CARD, 5.0) as card:
        card.join("a", 0.5, 1.0, 100.0, 50.0, 5.0)
        card.leave("a")
        written = card
    with locked_card(tmp_path, CARD, 6.0) as card:
        assert card == written


def test_no_change_of_two_processes_is_lost(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=add, args=(tmp_path, 200)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    with locked_card(tmp_path, CARD, time.monotonic()) as card:
        assert card.lost_j == 400


def test_a_block_that_fails_changes_nothing(tmp_path: Path) -> None:
    add(tmp_path, 1)
    with pytest.raises(ZeroDivisionError), locked_card(tmp_path, CARD, time.monotonic()) as card:
        card.lost_j = 1 / 0
    with locked_card(tmp_path, CARD, time.monotonic()) as card:
        assert card.lost_j == 1


@pytest.mark.parametrize("content", ["", "{", '{"engines": 3}', "[]"])
def test_a_file_that_cannot_be_understood_begins_anew(content: str, tmp_path: Path) -> None:
    (tmp_path / f"{CARD}.json").write_text(content, encoding="utf-8")
    with locked_card(tmp_path, CARD, 1.0) as card:
        assert card == Card()


def test_a_file_from_before_the_machines_last_start_begins_anew(tmp_path: Path) -> None:
    with locked_card(tmp_path, CARD, 9000.0) as card:
        card.join("a", 1.0, 0.0, 5.0, 50.0, 9000.0)
    with locked_card(tmp_path, CARD, 20.0) as card:
        assert card == Card()


def test_an_engine_that_holds_the_file_for_too_long_is_an_error_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve_app.engine.energy.card_file.LOCK_WITHIN_S", 0.05)
    with (tmp_path / f"{CARD}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(CounterError, match="another engine holds the file of a card's energy: GPU-1"):
            add(tmp_path, 1)


def test_a_folder_that_cannot_be_written_is_an_error_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CounterError, match="cannot be shared among their engines"):
        add(tmp_path / "file", 1)
