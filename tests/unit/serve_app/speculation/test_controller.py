"""The controller as the scheduler sees it: decisions, their reasons, and the bounds on what it tries."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise
from math import isfinite
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.spec_params import SpecParams
from serve_app.speculation import cost
from serve_app.speculation.batch import Decision, Reason
from serve_app.speculation.controller import DepthController, StepResult
from serve_app.speculation.exploration import FIRST_INTERVAL_STEPS, MOST_INTERVAL_STEPS, SAVED_STEPS
from serve_app.speculation.settings import EngineFacts, SpeculationSettings

K_MAX = 8
SETTINGS = SpeculationSettings()

StepSeconds = Callable[[int, int], float]
"""From batched tokens and draft depth."""


def cheap(tokens: int, depth: int) -> float:
    return 0.010 + 0.0001 * depth


def dear(tokens: int, depth: int) -> float:
    """A draft iteration takes as long as a step."""
    return 0.010 + 0.010 * depth


def costly(tokens: int, depth: int) -> float:
    """A draft iteration takes half a step."""
    return 0.010 + 0.005 * depth


def cpu(tokens: int, depth: int) -> float:
    return 0.035 + 0.0025 * tokens


class Engine:
    """A controller, the requests that it knows, and steps whose drafts are accepted with the given probability."""

    def __init__(
        self, step_s: StepSeconds, settings: SpeculationSettings = SETTINGS, facts: EngineFacts | None = None
    ) -> None:
        self.controller = DepthController(K_MAX, settings, facts)
        self.step_s = step_s
        self.acceptance: dict[str, float] = {}
        self.depths: dict[str, int] = {}
        self.seconds = 0.0
        self.rng = random.Random(0)

    def add(
        self, request: str, acceptance: float, category: str = "general_reasoning", seeded: bool = False, **spec: Any
    ) -> None:
        self.acceptance[request] = acceptance
        self.controller.add(request, SpecParams.model_validate(spec), category, seeded=seeded)

    def step(self) -> dict[str, Decision]:
        decided = self.controller.decide(list(self.acceptance), 0)
        outcomes = {request: (k, self.accepted(request, k)) for request, k in self.depths.items()}
        for request in self.acceptance:
            outcomes.setdefault(request, (0, 0))
        tokens = sum(1 + drafted for drafted, _ in outcomes.values())
        depth = max(decision.k for decision in decided.values())
        seconds = self.step_s(tokens, depth)
        self.seconds += seconds
        alike = {drafted for drafted, _ in outcomes.values()}
        uniform = alike.pop() if len(alike) == 1 else None
        self.controller.observe(
            StepResult(seconds, tokens, depth, outcomes, len(outcomes), prefill=False, uniform=uniform)
        )
        self.depths = {request: decision.k for request, decision in decided.items()}
        return decided

    def accepted(self, request: str, k: int) -> int:
        return next((count for count in range(k) if self.rng.random() >= self.acceptance[request]), k)

    def acceptance_of(self, category: str) -> float:
        """What the controller believes, at the first position."""
        return self.controller._categories[category, "own"].evidence.acceptance()[0]

    def run(self, steps: int) -> list[dict[str, Decision]]:
        return [self.step() for _ in range(steps)]


def reasons(steps: list[dict[str, Decision]], request: str = "a") -> Counter[Reason]:
    return Counter(step[request].reason for step in steps)


# --- what was asked ---


def test_an_explicit_k_is_granted_at_every_step() -> None:
    engine = Engine(dear)
    engine.add("a", 0.0, k=3)
    assert {step["a"] for step in engine.run(100)} == {Decision(3, Reason.ASKED)}


def test_an_explicit_k_is_capped_by_the_engines() -> None:
    engine = Engine(cheap)
    engine.add("a", 0.5, k=20)
    assert engine.step()["a"] == Decision(K_MAX, Reason.ASKED)


def test_k_0_is_never_probed() -> None:
    engine = Engine(cheap)
    engine.add("a", 1.0, k=0, tau=0.5)
    assert {step["a"] for step in engine.run(100)} == {Decision(0, Reason.ASKED)}


@pytest.mark.parametrize("spec", [{"k": "auto"}, {"k": "auto", "tau": 0.5}, {"k": 3}, {"k": 3, "tau": 0.5}], ids=str)
def test_a_seeded_request_never_gets_drafts_whatever_it_requests(spec: dict[str, Any]) -> None:
    engine = Engine(cheap)
    engine.add("a", 1.0, seeded=True, **spec)
    engine.add("b", 1.0)
    steps = engine.run(100)
    assert {step["a"] for step in steps} == {Decision(0, Reason.SEEDED)}
    assert reasons(steps, "b")[Reason.AUTO] > 80


# --- auto ---


def test_the_first_step_is_plain_to_measure_what_drafts_cost() -> None:
    engine = Engine(cheap)
    engine.add("a", 0.8)
    assert engine.step()["a"] == Decision(0, Reason.PLAIN)
    assert engine.step()["a"].reason is Reason.AUTO


def test_steps_that_only_show_what_they_cost_are_called_trials() -> None:
    engine = Engine(dear, facts=EngineFacts(graph="per_k", graph_tokens=512))
    for request in "abc":
        engine.add(request, 0.0)
    trials = [step for step in engine.run(50) if Reason.TRIAL in {decision.reason for decision in step.values()}]
    assert all(len(set(step.values())) == 1 for step in trials)  # all alike
    assert {step["a"].k for step in trials} >= {0, 1}  # with and without drafts
    assert reasons(engine.run(100))[Reason.AUTO_OFF] > 90


def test_predictable_text_is_drafted_deep_where_drafts_are_cheap() -> None:
    engine = Engine(cheap)
    engine.add("a", 0.95)
    engine.run(100)
    assert Counter(step["a"].k for step in engine.run(100)).most_common(1)[0][0] >= 6


def test_unpredictable_text_is_not_drafted_where_drafts_are_dear() -> None:
    engine = Engine(dear)
    engine.add("a", 0.1)
    engine.run(100)
    assert reasons(engine.run(200))[Reason.AUTO_OFF] > 190


def test_at_high_load_nothing_is_drafted_though_alone_it_would_be() -> None:
    alone, busy = Engine(cpu), Engine(cpu)
    alone.add("a", 0.7)
    for index in range(128):
        busy.add("a" if not index else str(index), 0.7)
    alone.run(100)
    busy.run(100)
    assert reasons(alone.run(50))[Reason.AUTO] > 45
    assert reasons(busy.run(50))[Reason.AUTO_OFF] > 40


def test_each_request_of_a_batch_gets_what_suits_its_text() -> None:
    engine = Engine(cpu)
    engine.add("copying", 0.97)
    engine.add("prose", 0.02)
    engine.run(150)
    steps = engine.run(50)
    mean = {request: sum(step[request].k for step in steps) / 50 for request in ("copying", "prose")}
    assert mean["copying"] > 4
    assert mean["prose"] < 0.5


def test_text_that_becomes_predictable_is_noticed() -> None:
    engine = Engine(cheap)
    engine.add("a", 0.0)
    engine.run(300)
    engine.acceptance["a"] = 0.95
    engine.run(60)
    assert sum(step["a"].k for step in engine.run(50)) / 50 > 4


def test_new_requests_know_what_their_category_has_shown() -> None:
    engine = Engine(dear)
    engine.add("a", 0.05, category="creative")
    engine.run(200)
    engine.add("b", 0.05, category="creative")
    engine.add("c", 0.05, category="code")
    first = engine.run(3)[-1]
    assert first["b"].reason is Reason.AUTO_OFF
    assert engine.acceptance_of("creative") < 0.4
    assert engine.acceptance_of("code") > 0.6


# --- what is spent on finding out ---


@pytest.mark.parametrize("requests", [1, 16])
@pytest.mark.parametrize("step_s", [cpu, costly], ids=["cpu", "costly"])
def test_probes_and_plain_steps_keep_within_their_share_of_the_time(step_s: StepSeconds, requests: int) -> None:
    engine = Engine(step_s)
    for index in range(requests):
        engine.add(str(index), 0.02)
    engine.run(200)
    before = engine.seconds
    steps = engine.run(500)
    lost = sum(
        step_s(requests + probes, 1 if probes else 0) - step_s(requests, 0)
        for step in steps
        for probes in [sum(decision.k for decision in step.values())]
    )
    # The model's idea of the costs, by which it keeps account, is off by some percent.
    assert lost <= 1.2 * (SETTINGS.exploration_share * (engine.seconds - before) + SAVED_STEPS * step_s(requests, 0))
    assert sum(any(decision.k for decision in step.values()) for step in steps) > 5


def test_a_request_is_probed_at_most_once_in_the_interval() -> None:
    engine = Engine(costly, SpeculationSettings(exploration_share=0.5))
    engine.add("a", 0.0)
    engine.run(200)
    probes = [number for number, step in enumerate(engine.run(1000)) if step["a"].reason is Reason.PROBE]
    gaps = [later - earlier for earlier, later in pairwise(probes)]
    assert min(gaps) >= FIRST_INTERVAL_STEPS
    assert max(gaps) <= MOST_INTERVAL_STEPS + 2
    assert Counter(gaps).most_common(1)[0][0] >= MOST_INTERVAL_STEPS


def test_plain_steps_become_rare() -> None:
    engine = Engine(cheap)
    engine.add("a", 0.9)
    plain = [number for number, step in enumerate(engine.run(1000)) if step["a"].reason is Reason.PLAIN]
    assert len(plain) <= 10
    assert all(later - earlier >= 8 for earlier, later in pairwise(plain))


def test_a_wrong_idea_of_the_draft_cost_is_corrected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "DRAFT_SHARE", 1.2)
    engine = Engine(cheap)
    engine.add("a", 0.95)
    engine.run(700)
    assert sum(step["a"].k for step in engine.run(50)) / 50 > 4


# --- tau ---


def test_tau_stops_an_explicit_k_and_says_so() -> None:
    engine = Engine(cheap)
    engine.add("a", 0.1, k=4, tau=0.5)
    steps = engine.run(200)
    assert steps[0]["a"] == Decision(4, Reason.ASKED)
    assert set(reasons(steps)) == {Reason.ASKED, Reason.TAU_STOPPED, Reason.PROBE}
    assert reasons(steps[50:])[Reason.TAU_STOPPED] > 140
    assert all(step["a"].k == 0 for step in steps if step["a"].reason is Reason.TAU_STOPPED)


def test_a_stopped_request_resumes_when_its_text_becomes_predictable() -> None:
    engine = Engine(cheap)
    engine.add("a", 0.0, k=4, tau=0.5)
    engine.run(200)
    engine.acceptance["a"] = 1.0
    engine.run(100)
    assert {step["a"] for step in engine.run(50)} == {Decision(4, Reason.ASKED)}


def test_tau_stops_auto_as_well() -> None:
    # Free drafts: without a floor even a poor draft is worth it.
    engine = Engine(lambda tokens, depth: 0.01)
    engine.add("a", 0.3)
    engine.add("b", 0.3, tau=0.6)
    steps = engine.run(300)[100:]
    assert reasons(steps, "a")[Reason.AUTO] > 180
    assert reasons(steps, "b")[Reason.TAU_STOPPED] > 150


def test_a_floor_makes_auto_draft_fewer_tokens_before_it_stops_it() -> None:
    engine = Engine(lambda tokens, depth: 0.01)
    for request, tau in (("none", None), ("low", 0.3), ("high", 0.5)):
        engine.add(request, 0.75, tau=tau)
    engine.run(200)
    steps = engine.run(600)
    mean = {}
    for request in ("none", "low", "high"):
        running = [step[request].k for step in steps if step[request].reason is Reason.AUTO]
        assert len(running) > 50
        mean[request] = sum(running) / len(running)
    assert mean["none"] > mean["low"] > mean["high"] > 1


def test_a_costly_draft_is_probed_with_fewer_tokens() -> None:
    engine = Engine(dear)
    engine.add("a", 0.0, k=8, tau=0.5)
    probed = [step["a"].k for step in engine.run(1000) if step["a"].reason is Reason.PROBE]
    assert set(probed) == {1}


# --- observations ---


def test_requests_that_have_left_are_no_error() -> None:
    controller = DepthController(K_MAX, SETTINGS)
    controller.add("a", SpecParams(k="auto"), "code")
    controller.decide(["a"], 0)
    controller.remove("a")
    controller.remove("a")
    controller.observe(StepResult(0.01, 3, 0, {"a": (2, 1), "never added": (1, 1)}, 2, prefill=False))
    assert controller._requests == {}


def test_a_request_that_was_not_added_gets_no_decision_and_changes_none() -> None:
    controller = DepthController(K_MAX, SETTINGS)
    assert controller.decide(["nobody"], 0) == {}
    controller.add("a", SpecParams(k=3), "code")
    assert {request: decision.k for request, decision in controller.decide(["nobody", "a"], 0).items()} == {"a": 3}


def test_a_batch_without_requests_is_no_step() -> None:
    controller = DepthController(K_MAX, SETTINGS)
    assert controller.decide([], 100) == {}
    assert controller._step == 0


@pytest.mark.parametrize(
    ("counts", "nearest"),
    [((1, 2), (1, 1)), ((-1, -1), (0, 0)), ((2, -1), (2, 0)), ((K_MAX + 1, K_MAX + 1), (K_MAX, K_MAX))],
)
def test_impossible_counts_teach_the_same_as_the_nearest_possible_ones(
    counts: tuple[int, int], nearest: tuple[int, int]
) -> None:
    learned = []
    for seen in (counts, nearest):
        controller = DepthController(K_MAX, SETTINGS)
        controller.add("a", SpecParams(k="auto"), "code")
        controller.decide(["a"], 0)
        controller.observe(StepResult(0.01, 3, 0, {"a": seen}, 1, prefill=False))
        learned.append(
            (controller._categories["code", "own"].evidence, controller._table.costs, controller._drafted_tokens)
        )
    assert learned[0] == learned[1]
    assert learned[0][2] == nearest[0]


def test_k_max_below_1_is_refused() -> None:
    with pytest.raises(ValueError, match="k_max must be at least 1, got 0"):
        DepthController(0, SETTINGS)


def test_the_costs_of_the_machine_are_learned_while_it_works() -> None:
    engine = Engine(dear)
    engine.add("a", 0.5)
    engine.run(300)
    assert engine.controller._table.costs.in_graph.verify(1) == pytest.approx(0.010, rel=0.05)
    assert engine.controller._table.costs.in_graph.draft(1) == pytest.approx(0.010, rel=0.15)


def test_the_share_of_drafts_that_come_is_learned() -> None:
    engine = Engine(cheap)
    engine.add("a", 0.9)
    for _ in range(300):
        engine.step()
        if engine.rng.random() < 0.75:
            engine.depths = {"a": 0}
    assert engine.controller._share == pytest.approx(0.25, abs=0.12)


# A case is a whole life of a controller, so fewer of them.
ks = st.just("auto") | st.integers(0, 10)


@given(
    requests=st.dictionaries(
        st.sampled_from("abcdef"),
        st.tuples(
            st.builds(SpecParams, k=ks, tau=st.none() | st.floats(0, 1)), st.sampled_from(["code", "math", "creative"])
        ),
        min_size=1,
    ),
    steps=st.lists(
        st.tuples(
            st.none() | st.floats(1e-5, 1e3),
            st.integers(0, 4096),
            st.lists(st.integers(0, K_MAX), min_size=6, max_size=6),
            st.sets(st.sampled_from("abcdef")),
        ),
        max_size=40,
    ),
)
def test_whatever_happens_decisions_and_estimates_stay_within_their_bounds(
    requests: Mapping[str, tuple[SpecParams, str]],
    steps: list[tuple[float | None, int, list[int], set[str]]],
) -> None:
    controller = DepthController(K_MAX, SETTINGS)
    for request, (spec, category) in requests.items():
        controller.add(request, spec, category)
    drafted: dict[str, int] = {}
    for seconds, prefill, luck, absent in steps:
        present = [request for request in requests if request not in absent]
        decided = controller.decide(present, prefill)
        assert set(decided) == set(present)
        for request, decision in decided.items():
            k = requests[request][0].k
            assert 0 <= decision.k <= (min(k, K_MAX) if isinstance(k, int) else K_MAX)
            assert (decision.k == 0) or decision.reason not in (Reason.TAU_STOPPED, Reason.AUTO_OFF, Reason.PLAIN)
        outcomes = {
            request: (drafted.get(request, 0), min(drafted.get(request, 0), luck[index]))
            for index, request in enumerate(present)
        }
        tokens = prefill + sum(1 + count for count, _ in outcomes.values())
        depth = max((decision.k for decision in decided.values()), default=0)
        controller.observe(StepResult(seconds, tokens, depth, outcomes, len(outcomes), prefill=prefill > 0))
        drafted = {request: decision.k for request, decision in decided.items()}
        categories, step_cost = controller._categories.values(), controller._table.costs.in_graph
        assert all(0 < each < 1 for category in categories for each in category.evidence.acceptance())
        assert all(isfinite(each) and each > 0 for each in step_cost.at_knot_s)
        assert all(isfinite(each) for each in step_cost.drafts_s)
        assert min(step_cost.drafts_s) >= 0
        assert 0 <= controller._share <= 1
