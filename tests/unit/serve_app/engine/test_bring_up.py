"""An engine is up when it has answered; whatever fails before that is a reason to try the next entry."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import cast

import pytest

from router.registry import ChainEntry
from serve_app.engine.fallback_chain import EntryFailure, bring_up, start_first
from serve_app.engine.interface import (
    Admitted,
    Engine,
    EngineError,
    EngineItem,
    EngineStartError,
    GenerationRequest,
)
from tests.support.real_loops import REAL_LOOPS

pytestmark = REAL_LOOPS

CHAIN = tuple(ChainEntry(name=name, target="m", max_model_len=64) for name in ("best", "good"))


class Candidate:
    """An engine that starts, and then answers, or fails at its application or its answer."""

    def __init__(self, no_app: Exception | None = None, no_answer: Exception | None = None) -> None:
        self.no_app, self.no_answer = no_app, no_answer
        self.answered = self.shut_down = False

    async def http_app(self) -> None:
        if self.no_app is not None:
            raise self.no_app

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EngineItem, None]:
        yield Admitted()
        if self.no_answer is not None:
            raise self.no_answer
        self.answered = True

    async def shutdown(self) -> None:
        self.shut_down = True


async def brought_up(candidate: Candidate) -> Engine:
    return await bring_up(lambda: cast(Engine, candidate))


async def test_an_engine_is_up_when_it_has_answered() -> None:
    candidate = Candidate()
    assert await brought_up(candidate) is cast(Engine, candidate)
    assert candidate.answered
    assert not candidate.shut_down


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (Candidate(no_app=ValueError("chat_template: no such file")), "ValueError: chat_template: no such file"),
        (Candidate(no_app=KeyError("no-such-parser")), "KeyError: 'no-such-parser'"),
        (
            Candidate(no_answer=EngineError("bad_request", "the template is wrong", status=400, retryable=False)),
            "the template is wrong",
        ),
        (Candidate(no_answer=ZeroDivisionError("in a kernel")), "ZeroDivisionError: in a kernel"),
    ],
    ids=["template", "parser", "answer refused", "bug"],
)
async def test_a_failure_after_the_engines_start_is_a_start_error_too_and_shuts_it_down(
    candidate: Candidate, reason: str
) -> None:
    with pytest.raises(EngineStartError) as error:
        await brought_up(candidate)
    assert str(error.value) == reason
    assert candidate.shut_down


@pytest.mark.parametrize("kind", [ValueError, RuntimeError, AttributeError, TypeError, OSError, TimeoutError])
async def test_whatever_a_start_raises_is_a_start_error(kind: type[Exception]) -> None:
    def start() -> Engine:
        raise kind("no")

    with pytest.raises(EngineStartError, match=f"^{kind.__name__}: no$"):
        await bring_up(start)


async def test_a_chain_goes_on_after_an_entry_that_started_and_did_not_answer() -> None:
    first, second = Candidate(no_answer=RuntimeError("out of memory")), Candidate()
    by_step = {"best": first, "good": second}

    async def start(entry: ChainEntry) -> Engine:
        return await brought_up(by_step[entry.name])

    started = await start_first("eco", CHAIN, lambda _: None, start, lambda *_: None)
    assert started.engine is cast(Engine, second)
    assert started.failures == (EntryFailure("best", "RuntimeError: out of memory"),)
    assert (first.shut_down, second.shut_down) == (True, False)
