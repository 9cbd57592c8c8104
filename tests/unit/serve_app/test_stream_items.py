"""What a replica sends of an engine's stream: token events encoded, the engine's errors as data, and it is closed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

import pytest

from serve_app.engine.deployment import StreamItem, stream_items
from serve_app.engine.interface import Admitted, Engine, EngineError, EngineItem, Finished, SpecStats, Token
from serve_app.errors import Failure
from serve_app.events import token_events
from tests.support.requests import generation
from tests.support.streams import Script, Wait

ADMITTED = Admitted(prompt_tokens=4, max_tokens=16, active_step="small-ngram")
STEPS = [[Token("Pa", 1, None, False), Token("ris", 2, -0.5, True)], [Token("!", 3, None, False)]]
EVENTS: list[StreamItem] = [token_events(step) for step in STEPS]
FINISHED = Finished("stop", 4, 3, queue_ms=0.0, spec=SpecStats())
OUT_OF_MEMORY = EngineError("engine_failed", "out of memory", status=500, retryable=True)


class ScriptedEngine:
    """An engine whose only stream is a script."""

    def __init__(self, items: Sequence[EngineItem | Wait | Exception]) -> None:
        self.script: Script[EngineItem] = Script(items)
        self.asked: list[object] = []

    def generate(self, request: object) -> AsyncGenerator[EngineItem, None]:
        self.asked.append(request)
        return self.script.stream()

    def stream(self, request: Any = None) -> AsyncGenerator[StreamItem, None]:
        return stream_items(cast(Engine, self), request or generation())


async def test_each_step_of_tokens_is_one_item_of_whole_events_and_the_rest_goes_as_it_is() -> None:
    engine, request = ScriptedEngine([ADMITTED, *STEPS, FINISHED]), generation()
    assert [item async for item in engine.stream(request)] == [ADMITTED, *EVENTS, FINISHED]
    assert engine.asked == [request]
    assert engine.script.closed


@pytest.mark.parametrize("before", [0, 1, 3], ids=["at once", "admitted", "midway"])
async def test_an_engines_error_is_a_failure_as_the_last_item(before: int) -> None:
    items: list[EngineItem] = [ADMITTED, *STEPS]
    sent: list[StreamItem] = [ADMITTED, *EVENTS]
    engine = ScriptedEngine([*items[:before], OUT_OF_MEMORY])
    failure = Failure("engine_failed", "out of memory", 500, True)
    assert [item async for item in engine.stream()] == [*sent[:before], failure]
    assert engine.script.closed


async def test_a_bug_in_the_engine_is_raised() -> None:
    engine = ScriptedEngine([ADMITTED, RuntimeError("a bug")])
    stream = engine.stream()
    assert await anext(stream) == ADMITTED
    with pytest.raises(RuntimeError, match="a bug"):
        await anext(stream)
    assert engine.script.closed


async def test_closing_it_midway_closes_the_engines_stream_at_once() -> None:
    engine = ScriptedEngine([ADMITTED, *STEPS, FINISHED])
    stream = engine.stream()
    await anext(stream)
    assert await anext(stream) == EVENTS[0]
    await stream.aclose()
    assert engine.script.closed
    assert engine.script.taken == [ADMITTED, STEPS[0]]
