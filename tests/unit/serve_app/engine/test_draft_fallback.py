"""Own drafts are given up when they are surely under their floor; the engine of a replica is kept on the choice."""

from __future__ import annotations

import logging

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cluster.pool.messages import DraftOrder
from router.registry import ChainEntry, DraftsChoice, Speculation
from serve_app.engine.draft_fallback import MEMORY_TOKENS, DraftChoice, DraftKeeper
from serve_app.engine.drift import Window
from serve_app.engine.interface import DraftCount, EngineError
from serve_app.engine.stub import StubEngine

ENTRY = ChainEntry(
    name="draft",
    target="t",
    max_model_len=64,
    speculation=Speculation(method="draft_model", draft="d", k_max=3, floor=0.2),
)
MIN_TOKENS = 1000
FLOOR = 0.2
POOR, GOOD = DraftCount(5000, 100), DraftCount(5000, 4000)

totals = st.integers(1, 100_000).flatmap(lambda drafted: st.tuples(st.just(drafted), st.integers(0, drafted)))


# --- the choice ---


def test_poor_drafts_are_given_up_with_the_reason_in_words() -> None:
    choice = DraftChoice().after(2431, 194, FLOOR, MIN_TOKENS)
    assert choice.drafts == "ngram"
    assert choice.reason == "acceptance of the own drafts is 0.080 lately, under 0.2"


def test_drafts_that_may_be_poor_by_chance_are_kept() -> None:
    # Runs of 8 are single trials: 0.18 is 1.8 standard deviations under 0.2 with 10,000 tokens, and 5 with 80,000.
    assert DraftChoice().after(10_000, 1800, FLOOR, MIN_TOKENS).drafts == "own"
    assert DraftChoice().after(80_000, 14_400, FLOOR, MIN_TOKENS).drafts == "ngram"


@given(totals, st.floats(0, 1))
@example((1618, 1618), 1.0)
def test_drafts_at_or_over_the_floor_are_never_given_up(total: tuple[int, int], floor: float) -> None:
    drafted, accepted = total
    if accepted / drafted >= floor:
        assert DraftChoice().after(drafted, accepted, floor, MIN_TOKENS).drafts == "own"


@given(st.integers(0, MIN_TOKENS - 1))
def test_nothing_is_judged_before_enough_was_seen(drafted: int) -> None:
    assert DraftChoice().after(drafted, 0, 1.0, MIN_TOKENS).drafts == "own"


@given(totals, st.floats(0, 1))
def test_n_gram_drafting_stays_until_an_operator_orders_otherwise(total: tuple[int, int], floor: float) -> None:
    gone = DraftChoice("ngram", "poor")
    assert gone.after(*total, floor, MIN_TOKENS) == gone


@pytest.mark.parametrize("drafts", ["own", "ngram", "auto"])
@pytest.mark.parametrize("before", [DraftChoice(), DraftChoice("ngram", "poor")])
def test_an_order_is_followed(before: DraftChoice, drafts: DraftsChoice) -> None:
    assert before.ordered(drafts) == DraftChoice(drafts, "ordered by the operator")


def test_own_drafts_that_were_ordered_back_are_judged_afresh() -> None:
    back = DraftChoice().after(999, 0, FLOOR, MIN_TOKENS).ordered("own")
    assert back.own == Window()
    assert back.after(2000, 900, FLOOR, MIN_TOKENS).drafts == "own"
    assert back.after(2000, 10, FLOOR, MIN_TOKENS).drafts == "ngram"


def test_a_draft_that_was_good_for_long_and_breaks_is_given_up_within_its_memory() -> None:
    choice = DraftChoice()
    for _ in range(10_000):
        choice = choice.after(100, 50, FLOOR, MIN_TOKENS)
    broken = 0
    while choice.drafts == "own":
        choice = choice.after(100, 0, FLOOR, MIN_TOKENS)
        broken += 100
    # Faded by e^-x, 0.5 is under 0.2 after ln(2.5) = 0.92 memories; a little more makes it sure.
    assert 0.92 * MEMORY_TOKENS <= broken <= 1.2 * MEMORY_TOKENS


# --- the engine of a replica ---


class Engine(StubEngine):
    """Has the given counts; remembers the switches."""

    def __init__(self, own: DraftCount) -> None:
        super().__init__(ENTRY, 0)
        self.own = own
        self.switches: list[DraftsChoice] = []
        self.fails = False

    def own_drafts(self) -> DraftCount:
        return self.own

    async def use_drafts(self, drafts: DraftsChoice) -> None:
        if self.fails:
            raise EngineError("engine_failed", "broken", status=500, retryable=True)
        self.switches.append(drafts)


def keeper(engine: Engine) -> DraftKeeper:
    return DraftKeeper("eco", engine, FLOOR, MIN_TOKENS)


async def test_good_drafts_are_left_alone() -> None:
    engine = Engine(GOOD)
    kept = keeper(engine)
    await kept.judge()
    assert engine.switches == []
    assert kept.choice.drafts == "own"


async def test_without_a_floor_poor_drafts_stay_and_an_order_is_followed() -> None:
    engine = Engine(POOR)
    kept = DraftKeeper("eco", engine, None, MIN_TOKENS, DraftChoice("auto"))
    await kept.judge()
    assert (engine.switches, kept.choice) == ([], DraftChoice("auto"))
    await kept.obey(DraftOrder("own", given_s=1.0))
    assert (engine.switches, kept.choice.drafts) == (["own"], "own")


async def test_an_engine_switches_once_and_logs_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "ray.serve")
    engine = Engine(POOR)
    kept = keeper(engine)
    for _ in range(3):
        await kept.judge()
    assert engine.switches == ["ngram"]
    (message,) = caplog.messages
    assert message == "tier eco: ngram drafts from now on: acceptance of the own drafts is 0.020 lately, under 0.2"


async def test_an_order_is_followed_once_and_the_same_order_given_again_once_more() -> None:
    engine = Engine(POOR)
    kept = keeper(engine)
    await kept.judge()
    order = DraftOrder("own", 1.0)
    await kept.obey(order)
    engine.own = DraftCount(10_000, 200)  # still poor
    await kept.judge()
    await kept.obey(order)
    assert engine.switches == ["ngram", "own", "ngram"]
    await kept.obey(DraftOrder("own", 2.0))
    assert engine.switches == ["ngram", "own", "ngram", "own"]


async def test_no_order_changes_nothing() -> None:
    engine = Engine(GOOD)
    kept = keeper(engine)
    await kept.obey(None)
    await kept.obey(DraftOrder("own", 1.0))
    assert engine.switches == []


async def test_a_switch_that_a_broken_engine_refused_is_tried_again() -> None:
    engine = Engine(GOOD)
    kept = keeper(engine)
    engine.fails = True
    await kept.obey(DraftOrder("ngram", 1.0))
    assert kept.choice.drafts == "own"
    engine.fails = False
    await kept.obey(DraftOrder("ngram", 1.0))
    assert (kept.choice.drafts, engine.switches) == ("ngram", ["ngram"])


async def test_a_failure_that_stays_the_same_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "ray.serve")
    engine = Engine(GOOD)
    kept = keeper(engine)
    engine.fails = True
    for _ in range(3):
        await kept.obey(DraftOrder("ngram", 1.0))
    assert caplog.messages == ["tier eco: drafts not changed: broken"]


async def test_an_engine_whose_own_drafts_are_ordered_back_is_not_judged_by_its_past() -> None:
    engine = Engine(POOR)
    kept = keeper(engine)
    await kept.judge()
    await kept.obey(DraftOrder("own", 1.0))
    await kept.judge()
    assert kept.choice.drafts == "own"
