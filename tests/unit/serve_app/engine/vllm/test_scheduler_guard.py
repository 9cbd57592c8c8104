"""Odd counts, odd requests, a fault of the controller: the engine goes on, at worst without drafts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.rate_limited_log import RateLimitedLog
from router.observation import NOTHING_LEARNED
from router.spec_params import SpecParams
from serve_app.engine.vllm.plain_costs import PlainCosts
from serve_app.engine.vllm.scheduler_guard import DepthGuard
from serve_app.speculation.batch import Decision, Reason
from serve_app.speculation.controller import DepthController, StepResult
from serve_app.speculation.cost import CostTable
from serve_app.speculation.settings import SpeculationSettings
from sustainability.shares import StepParts

K_MAX = 8
FIXED = SpecParams(k=5), "code"


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def guard() -> DepthGuard:
    return DepthGuard(K_MAX, SpeculationSettings(), RateLimitedLog(logging.getLogger("test"), 60.0, Clock()))


def depths(guard: DepthGuard, *requests: str) -> dict[str, int]:
    return {request: decision.k for request, decision in guard.decide(requests, 0).items()}


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_request_that_was_never_added_gets_no_drafts_and_takes_none_from_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    guarded = guard()
    guarded.add("a", *FIXED, seeded=False)
    assert depths(guarded, "a", "nobody") == {"a": 5, "nobody": 0}
    assert depths(guarded, "nobody") == {"nobody": 0}
    assert warnings(caplog) == ["requests that the speculation controller does not know get no drafts: nobody"]


@pytest.mark.parametrize(("decided", "used"), [(-1, 0), (0, 0), (K_MAX, K_MAX), (K_MAX + 1, K_MAX)])
def test_a_depth_that_vllms_buffers_do_not_hold_is_clamped(
    decided: int, used: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    decide = {"a": Decision(decided, Reason.AUTO_OFF), "b": Decision(3, Reason.AUTO_OFF)}
    monkeypatch.setattr(DepthController, "decide", lambda *args: dict(decide))
    assert depths(guard(), "a", "b") == {"a": used, "b": 3}
    assert len(caplog.records) == (decided != used)


@pytest.mark.parametrize(
    ("counts", "taken"),
    [
        ((1, 2), (1, 1)),
        ((-1, -1), (0, 0)),
        ((2, -1), (2, 0)),
        ((K_MAX + 1, K_MAX + 1), (K_MAX, K_MAX)),
        ((3, 2), (3, 2)),
    ],
)
def test_impossible_counts_are_taken_as_the_nearest_possible_ones(
    counts: tuple[int, int], taken: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    assert guard().possible({"a": counts, "b": (4, 4)}) == {"a": taken, "b": (4, 4)}
    assert len(caplog.records) == (counts != taken)


def fails_once(method: str) -> Callable[..., Any]:
    original, calls = getattr(DepthController, method), count()

    def call(*args: Any, **options: Any) -> Any:
        if next(calls) == 0:
            raise ZeroDivisionError("a fault of the controller")
        return original(*args, **options)

    return call


@pytest.mark.parametrize("method", ["add", "remove", "decide", "observe"])
def test_a_fault_of_the_controller_costs_what_it_learned_and_no_answer(
    method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    guarded = guard()
    guarded.add("a", *FIXED, seeded=False)
    monkeypatch.setattr(DepthController, method, fails_once(method))
    guarded.add("b", *FIXED, seeded=False)
    guarded.add("c", *FIXED, seeded=False)
    guarded.remove("c")
    first = depths(guarded, "a", "b")
    guarded.observe(StepResult(0.01, 2, 0, {"a": (0, 0)}, decoding=1, prefill=False))
    assert first == ({"a": 0, "b": 0} if method == "decide" else {"a": 5, "b": 5})
    assert depths(guarded, "a", "b") == {"a": 5, "b": 5}
    assert warnings(caplog) == [
        "the speculation controller failed and starts afresh: ZeroDivisionError: a fault of the controller"
    ]


def test_the_tau_of_a_request_is_its_own_and_none_after_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = guard()
    guarded.add("a", SpecParams(k=5, tau=0.5), "code", seeded=False)
    guarded.add("b", *FIXED, seeded=False)
    assert [guarded.tau(name) for name in ("a", "b", "nobody")] == [0.5, None, None]
    for method in ("tau", "learned"):
        monkeypatch.setattr(DepthController, method, fails_once(method))
    assert (guarded.tau("a"), guarded.learned()) == (None, NOTHING_LEARNED)
    assert depths(guarded, "a") == {"a": 5}


def test_a_fault_in_dividing_a_step_divides_it_equally(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = guard()
    step = StepResult(0.5, 2, 0, {"a": (0, 0)}, decoding=1, prefill=False)
    monkeypatch.setattr(DepthController, "parts_of", fails_once("parts_of"))
    assert guarded.parts_of(step) == StepParts(0.5)
    after = guarded.parts_of(step)
    assert after.verify_s + after.draft_s == pytest.approx(0.5)
    assert 0 < after.fixed < 1
    monkeypatch.setattr(DepthController, "step_s", fails_once("step_s"))
    assert guarded.step_s(4) == 0.0 < guarded.step_s(4)


def test_a_fault_in_the_costs_of_plain_steps_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    costs = PlainCosts(RateLimitedLog(logging.getLogger("test"), 60.0, Clock()))
    for _ in range(20):
        costs.parts_of(0.1, 1)
        costs.parts_of(0.2, 9)
    assert costs.parts_of(0.2, 9).fixed == pytest.approx(0.5, rel=0.05)
    assert costs.step_s(9) == pytest.approx(0.2, rel=0.05)
    monkeypatch.setattr(CostTable, "observe", lambda *_: 1 / 0)
    assert costs.parts_of(0.3, 9) == StepParts(0.3)
    assert warnings(caplog) == ["the costs of steps are learned anew: ZeroDivisionError: division by zero"]


def test_a_fault_at_every_step_leaves_every_step_without_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = guard()
    guarded.add("a", *FIXED, seeded=False)

    def always(*_: object) -> None:
        raise IndexError

    monkeypatch.setattr(DepthController, "decide", always)
    assert [depths(guarded, "a") for _ in range(3)] == [{"a": 0}] * 3


def test_requests_that_have_ended_do_not_come_back_when_the_controller_starts_afresh() -> None:
    guarded = guard()
    guarded.add("a", *FIXED, seeded=False)
    guarded.add("b", *FIXED, seeded=False)
    guarded.remove("a")
    guarded.start_afresh()
    assert guarded._controller.decide(["a", "b"], 0).keys() == {"b"}


def test_repeated_warnings_are_logged_once_in_a_while_with_their_number(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = RateLimitedLog(logging.getLogger("test"), 60.0, clock)
    for clock.now_s in (0.0, 1.0, 59.0, 61.0, 62.0):
        log.warning("odd", "at %.0f s", clock.now_s)
    log.warning("other", "of another kind")
    assert warnings(caplog) == ["at 0 s", "at 61 s (and 2 more like it)", "of another kind"]


ODD = st.integers(-3, 12)


@given(
    steps=st.lists(
        st.tuples(
            st.none() | st.floats(allow_nan=True, allow_infinity=True),
            ODD,
            ODD,
            st.dictionaries(st.sampled_from("abcxyz"), st.tuples(ODD, ODD)),
            st.lists(st.sampled_from("abcx")),
            st.sets(st.sampled_from("abc")),
        ),
        max_size=12,
    )
)
def test_no_odd_step_makes_the_controller_fail_or_gives_a_depth_out_of_bounds(
    steps: list[tuple[float | None, int, int, dict[str, tuple[int, int]], list[str], set[str]]],
) -> None:
    logger = logging.getLogger("test.odd")
    faults: list[str] = []

    class Noting(RateLimitedLog):
        def warning(self, kind: str, message: str, *args: object, error: BaseException | None = None) -> None:
            faults.append(kind)

    guarded = DepthGuard(K_MAX, SpeculationSettings(), Noting(logger))
    guarded.add("a", SpecParams(tau=0.5), "code", seeded=False)
    guarded.add("b", *FIXED, seeded=False)
    for seconds, tokens, depth, requests, decoding, leaving in steps:
        decided = guarded.decide(decoding, tokens)
        assert set(decided) == set(decoding)
        assert all(0 <= decision.k <= K_MAX for decision in decided.values())
        guarded.observe(
            StepResult(seconds, tokens, depth, guarded.possible(requests), decoding=len(requests), prefill=False)
        )
        for request in leaving:
            guarded.remove(request)
    assert "fault" not in faults
