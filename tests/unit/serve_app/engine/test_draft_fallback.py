"""A replica keeps its engine on the drafts that are chosen for it."""

from __future__ import annotations

import logging

import pytest

from cluster.pool.messages import DraftOrder
from router.registry import ChainEntry, Drafts, Speculation
from serve_app.engine.draft_fallback import DraftKeeper
from serve_app.engine.interface import DraftCount, EngineError
from serve_app.engine.stub import StubEngine
from serve_app.speculation.settings import FallbackSettings

STEP = ChainEntry(
    name="draft",
    target="t",
    max_model_len=64,
    speculation=Speculation(method="draft_model", draft="d", k_max=3, floor=0.2),
)
POOR, GOOD = DraftCount(5000, 100), DraftCount(5000, 4000)


class Engine(StubEngine):
    """Counts as told, remembers what it is told."""

    def __init__(self, own: DraftCount) -> None:
        super().__init__(STEP, 0)
        self.own = own
        self.told: list[Drafts] = []
        self.fails = False

    def own_drafts(self) -> DraftCount:
        return self.own

    async def use_drafts(self, drafts: Drafts) -> None:
        if self.fails:
            raise EngineError("engine_failed", "broken", status=500, retryable=True)
        self.told.append(drafts)


def keeper(engine: Engine) -> DraftKeeper:
    return DraftKeeper("eco", engine, 0.2, FallbackSettings(min_tokens=1000))


async def test_good_drafts_are_left_alone() -> None:
    engine = Engine(GOOD)
    kept = keeper(engine)
    await kept.judge()
    assert engine.told == []
    assert kept.choice.drafts == "own"


async def test_an_engine_goes_over_once_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "ray.serve")
    engine = Engine(POOR)
    kept = keeper(engine)
    for _ in range(3):
        await kept.judge()
    assert engine.told == ["ngram"]
    (said,) = caplog.messages
    assert said == "tier eco: ngram drafts from now on: acceptance of the own drafts is 0.020 lately, under 0.2"


async def test_an_order_is_obeyed_once_and_the_same_order_given_again_once_more() -> None:
    engine = Engine(POOR)
    kept = keeper(engine)
    await kept.judge()
    order = DraftOrder("own", 1.0)
    await kept.obey(order)
    engine.own = DraftCount(10_000, 200)  # still poor
    await kept.judge()
    await kept.obey(order)
    assert engine.told == ["ngram", "own", "ngram"]
    await kept.obey(DraftOrder("own", 2.0))
    assert engine.told == ["ngram", "own", "ngram", "own"]


async def test_no_order_changes_nothing() -> None:
    engine = Engine(GOOD)
    kept = keeper(engine)
    await kept.obey(None)
    await kept.obey(DraftOrder("own", 1.0))
    assert engine.told == []


async def test_what_a_broken_engine_did_not_do_is_tried_again() -> None:
    engine = Engine(GOOD)
    kept = keeper(engine)
    engine.fails = True
    await kept.obey(DraftOrder("ngram", 1.0))
    assert kept.choice.drafts == "own"
    engine.fails = False
    await kept.obey(DraftOrder("ngram", 1.0))
    assert (kept.choice.drafts, engine.told) == ("ngram", ["ngram"])


async def test_a_failure_that_stays_the_same_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "ray.serve")
    engine = Engine(GOOD)
    kept = keeper(engine)
    engine.fails = True
    for _ in range(3):
        await kept.obey(DraftOrder("ngram", 1.0))
    assert caplog.messages == ["tier eco: drafts not changed: broken"]


async def test_drafts_that_are_asked_back_are_not_judged_by_what_they_did_before() -> None:
    engine = Engine(POOR)
    kept = keeper(engine)
    await kept.judge()
    await kept.obey(DraftOrder("own", 1.0))
    await kept.judge()
    assert kept.choice.drafts == "own"
