"""The fallback chain keeps the first entry that works and every reason of those that did not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from router.registry import ChainEntry
from serve_app.engine.fallback_chain import EntryFailure, NoEntryWorksError, Started, start_first
from serve_app.engine.interface import EngineStartError

CHAIN = tuple(ChainEntry(name=name, target="m", max_model_len=64) for name in ("best", "good", "plain"))


class Starter:
    """Starts entries, or fails, as set up; remembers what was tried and reported."""

    def __init__(self, missing: Mapping[str, str], broken: Mapping[str, str]) -> None:
        self.missing, self.broken = missing, broken
        self.started: list[str] = []
        self.progress: list[tuple[str, list[str]]] = []

    async def run(self) -> Started[str]:
        return await start_first("eco", CHAIN, lambda entry: self.missing.get(entry.name), self.start, self.on_progress)

    async def start(self, entry: ChainEntry) -> str:
        self.started.append(entry.name)
        if entry.name in self.broken:
            raise EngineStartError(self.broken[entry.name])
        return f"engine of {entry.name}"

    def on_progress(self, entry: ChainEntry, failures: Sequence[EntryFailure]) -> None:
        self.progress.append((entry.name, [str(failure) for failure in failures]))


async def test_the_first_entry_that_works_is_kept_and_later_ones_are_not_tried() -> None:
    starter = Starter({}, {})
    assert await starter.run() == Started("engine of best", CHAIN[0], ())
    assert starter.started == ["best"]


async def test_entries_that_fail_are_skipped_with_their_reasons_in_order() -> None:
    starter = Starter({"best": "weights of m are missing"}, {"good": "no memory for the KV cache"})
    started = await starter.run()
    assert (started.engine, started.entry) == ("engine of plain", CHAIN[2])
    assert started.failures == (
        EntryFailure("best", "weights of m are missing"),
        EntryFailure("good", "no memory for the KV cache"),
    )


async def test_an_entry_without_weights_is_not_started() -> None:
    starter = Starter({"best": "missing"}, {})
    await starter.run()
    assert starter.started == ["good"]


async def test_progress_names_each_entry_before_it_starts_with_the_failures_so_far() -> None:
    starter = Starter({"best": "missing"}, {"good": "no memory"})
    await starter.run()
    assert starter.progress == [
        ("best", []),
        ("good", ["best: missing"]),
        ("plain", ["best: missing", "good: no memory"]),
    ]


async def test_when_none_works_one_message_has_all_the_reasons() -> None:
    starter = Starter({"plain": "missing"}, {"best": "no memory", "good": "unknown method"})
    with pytest.raises(NoEntryWorksError) as error:
        await starter.run()
    assert str(error.value) == ("no entry of tier eco works: best: no memory; good: unknown method; plain: missing")
    assert [failure.entry for failure in error.value.failures] == ["best", "good", "plain"]


async def test_an_error_that_is_not_about_starting_is_not_swallowed() -> None:
    async def broken(entry: ChainEntry) -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await start_first("eco", CHAIN, lambda _: None, broken, lambda *_: None)
