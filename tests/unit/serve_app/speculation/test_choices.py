"""What the controller decides beside the depth: one K for all where graphs want it, who drafts, `tau: auto`, advice."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.registry import Drafts
from router.spec_params import SpecParams
from serve_app.speculation.advice import JUDGED_EVERY, JUDGEMENTS
from serve_app.speculation.batch import Decision, Reason
from serve_app.speculation.controller import DepthController, StepResult
from serve_app.speculation.settings import EngineFacts, SpeculationSettings

K_MAX = 4
FORWARD_S = 0.010
TOKEN_S = 0.00005


class Engine:
    """Steps of an engine with graphs and two ways to draft, and its controller."""

    def __init__(
        self, facts: EngineFacts, *, piecewise_s: float = 0.0, draft_s: float = 0.0, ngram: float = 0.0, seed: int = 0
    ) -> None:
        self.controller = DepthController(K_MAX, SpeculationSettings(), facts)
        self.facts, self.piecewise_s, self.draft_s, self.ngram = facts, piecewise_s, draft_s, ngram
        self.acceptance: dict[str, float] = {}
        self.decided: dict[str, Decision] = {}
        self.rng = random.Random(seed)
        self.steps = 0

    def add(self, request: str, acceptance: float, category: str = "code", **spec: Any) -> None:
        self.acceptance[request] = acceptance
        self.controller.add(request, SpecParams.model_validate({"k": "auto", **spec}), category)

    def step(self) -> dict[str, Decision]:
        before, self.decided = self.decided, self.controller.decide(list(self.acceptance), 0)
        outcomes = {}
        for request, own in self.acceptance.items():
            decision = before.get(request, Decision(0, Reason.AUTO))
            likely = self.ngram if decision.drafts == "ngram" else own
            accepted = next((count for count in range(decision.k) if self.rng.random() >= likely), decision.k)
            outcomes[request] = (decision.k, accepted)
        # Now and then a prompt is processed as well, for a request that then leaves.
        self.steps += 1
        prefill = self.steps % 16 == 0
        tokens = sum(1 + drafted for drafted, _ in outcomes.values()) + (24 if prefill else 0)
        widths = {drafted for drafted, _ in outcomes.values()}
        uniform = widths.pop() if len(widths) == 1 and not prefill else None
        captured = self.facts.captured(uniform, tokens, K_MAX)
        verify_s = FORWARD_S + TOKEN_S * tokens + (0.0 if captured and not prefill else self.piecewise_s)
        depth = max((each.k for each in self.decided.values() if each.drafts == "own"), default=0)
        draft_s = self.draft_s * self.facts.iterations(depth, K_MAX)
        ngram = frozenset(key for key, each in before.items() if each.drafts == "ngram")
        self.controller.observe(
            StepResult(
                verify_s + draft_s,
                tokens,
                depth,
                outcomes,
                len(outcomes),
                prefill=prefill,
                ngram=ngram,
                verify_s=verify_s,
                draft_s=draft_s,
                uniform=uniform,
            )
        )
        return self.decided

    def run(self, steps: int) -> list[dict[str, Decision]]:
        return [self.step() for _ in range(steps)]


# --- one K for all ---


def widths(steps: list[dict[str, Decision]]) -> Counter[int]:
    """How many different depths each step had."""
    return Counter(len({decision.k for decision in step.values()}) for step in steps)


def test_where_graphs_want_one_k_for_all_and_gains_are_close_all_get_the_same() -> None:
    steps = {}
    for graph in ("none", "per_k"):
        engine = Engine(EngineFacts(graph=graph), piecewise_s=0.0015 if graph == "per_k" else 0.0, draft_s=0.0002)
        for index in range(8):
            engine.add(str(index), (0.5, 0.7)[index % 2])
        engine.run(150)
        steps[graph] = widths(engine.run(100))
    assert steps["per_k"][1] >= 95
    assert steps["none"][1] < 60


@pytest.mark.parametrize("tau", [0.0, 0.9])
def test_beside_a_request_without_drafts_the_others_do_without_where_only_that_brings_the_graph(tau: float) -> None:
    # A step takes 10 ms in a graph and 18 ms without one.
    engine = Engine(EngineFacts(graph="per_k"), piecewise_s=0.008, draft_s=0.0002)
    engine.add("other", 0.2, k="auto" if tau else 0, tau=tau)
    for index in range(7):
        engine.add(str(index), 0.2)
    engine.run(200)
    steps = engine.run(100)
    assert sum(sum(decision.k for decision in step.values()) for step in steps) < 70


def test_beside_a_request_with_a_k_of_its_own_the_others_draft_as_many_where_that_brings_the_graph() -> None:
    engine = Engine(EngineFacts(graph="per_k"), piecewise_s=0.008, draft_s=0.0002)
    engine.add("fixed", 0.5, k=2)
    for index in range(7):
        engine.add(str(index), 0.7)
    engine.run(150)
    assert widths(engine.run(100))[1] >= 95


def test_requests_with_different_k_of_their_own_leave_each_of_the_others_what_suits_it() -> None:
    engine = Engine(EngineFacts(graph="per_k"), piecewise_s=0.008, draft_s=0.0002)
    for k in (1, 3):
        engine.add(str(k), 0.5, k=k)
    engine.add("auto", 0.9)
    engine.run(150)
    steps = engine.run(100)
    assert {(step["1"].k, step["3"].k) for step in steps} == {(1, 3)}
    assert sum(step["auto"].k for step in steps) > 250


def test_drafts_that_a_request_asked_for_when_it_ended_are_not_taken_for_drafts_that_do_not_come() -> None:
    engine = Engine(EngineFacts(graph="per_k"), piecewise_s=0.008, draft_s=0.0002)
    for round_ in range(60):
        for index in range(8):
            engine.add(f"{round_}-{index}", 0.8)
        engine.run(4)
        for request in list(engine.acceptance):
            engine.controller.remove(request)
        engine.acceptance.clear()
        engine.decided = {}
    assert engine.controller._share > 0.99
    engine.add("a", 0.8)
    engine.step()
    for _ in range(2):
        engine.controller.remove("a")
        engine.add("a", 0.8)
    assert min(engine.controller._requested_lately) >= 0


def test_where_a_step_without_a_graph_costs_next_to_nothing_each_request_gets_what_suits_it() -> None:
    copying, other = [], []
    for seed in range(4):
        engine = Engine(EngineFacts(graph="per_k"), piecewise_s=0.00001, draft_s=0.0002, seed=seed)
        engine.add("copying", 0.98)
        for index in range(7):
            engine.add(str(index), 0.02)
        engine.run(200)
        steps = engine.run(300)
        copying.append(sum(step["copying"].k for step in steps))
        other.append(sum(step["0"].k for step in steps))
    assert min(copying) > 1000
    assert sum(other) / len(other) < 200  # a lucky draft of one of them brings a few more to all


def test_where_only_k_max_has_a_graph_it_is_drafted_though_fewer_would_do() -> None:
    engine = Engine(EngineFacts(graph="k_max"), piecewise_s=0.006, draft_s=0.0001)
    for index in range(8):
        engine.add(str(index), 0.3)
    engine.run(100)
    assert Counter(decision.k for step in engine.run(100) for decision in step.values())[K_MAX] > 700


def test_a_step_with_prompt_tokens_has_no_graph_so_each_request_gets_what_suits_it() -> None:
    engine = Engine(EngineFacts(graph="per_k"), piecewise_s=0.0015, draft_s=0.0002)
    for index in range(8):
        engine.add(str(index), (0.2, 0.9)[index % 2])
    engine.run(150)
    without, beside = [], []
    for _ in range(30):
        without.append(engine.step())
        beside.append(engine.controller.decide(list(engine.acceptance), 64))
    assert widths(without)[1] >= 28
    assert widths(beside)[1] <= 5


# --- advice ---


def test_a_draft_that_is_paid_at_every_step_and_seldom_accepted_is_advised_against() -> None:
    engine = Engine(EngineFacts(graph="k_max", draft="always"), piecewise_s=0.0015, draft_s=0.002)
    engine.add("a", 0.2)
    engine.run(200)
    learned = engine.controller.learned()
    assert learned.advice == "no_drafts"
    assert learned.reason is not None
    assert "without speculation" in learned.reason


@pytest.mark.parametrize(
    ("facts", "draft_s", "acceptance"),
    [
        (EngineFacts(graph="per_k"), 0.002, 0.1),  # K = 0 costs what an engine without speculation does
        (EngineFacts(graph="k_max", draft="always"), 0.0002, 0.9),
    ],
    ids=["no drafts are made", "drafts pay"],
)
def test_no_advice_where_the_engine_loses_nothing(facts: EngineFacts, draft_s: float, acceptance: float) -> None:
    engine = Engine(facts, piecewise_s=0.0015, draft_s=draft_s)
    engine.add("a", acceptance)
    engine.run(300)
    assert engine.controller.learned().advice is None


def test_no_advice_before_enough_was_seen() -> None:
    engine = Engine(EngineFacts(graph="k_max", draft="always"), piecewise_s=0.0015, draft_s=0.002)
    engine.add("a", 0.2)
    engine.run(20)
    assert engine.controller.learned().advice is None


def test_advice_needs_two_windows_of_steps_and_is_withdrawn_where_drafts_pay() -> None:
    engine = Engine(EngineFacts(graph="k_max", draft="always"), piecewise_s=0.0015, draft_s=0.002)
    engine.add("a", 0.2)
    engine.run(JUDGED_EVERY * JUDGEMENTS - 1)
    assert engine.controller.learned().advice is None
    engine.run(JUDGED_EVERY * 3)
    assert engine.controller.learned().advice == "no_drafts"
    engine.acceptance["a"] = 0.95
    engine.run(600)
    assert engine.controller.learned().advice is None


# --- what steps show ---


def shown(results: list[StepResult], facts: EngineFacts, **spec: Any) -> DepthController:
    """A controller that saw these steps of one request."""
    controller = DepthController(K_MAX, SpeculationSettings(), facts)
    controller.add("a", SpecParams.model_validate({"k": "auto", **spec}), "code")
    for result in results:
        controller.decide(["a"], 0)
        controller.observe(result)
    return controller


@pytest.mark.parametrize("uniform", [2, None])
def test_a_step_with_invalid_drafts_ran_in_the_graph_of_the_scheduled_width(uniform: int | None) -> None:
    step = StepResult(0.01, 6, 2, {"a": (2, 0), "b": (1, 0)}, 2, prefill=False, uniform=uniform)
    controller = shown([step] * 10, EngineFacts(graph="per_k"))
    assert {key.captured for key in controller._table.cells} == {uniform is not None}


def test_the_time_of_verifying_is_used_also_where_that_of_drafting_is_missing() -> None:
    step = StepResult(0.05, 3, 2, {"a": (2, 1)}, 1, prefill=False, verify_s=0.01)
    controller = shown([step] * 10, EngineFacts())
    assert {key.iterations for key in controller._table.cells} == {0}
    assert [cell.seconds for cell in controller._table.cells.values()] == pytest.approx([0.01])


@pytest.mark.parametrize("draft_s", [0.002, None], ids=["ran", "rested"])
def test_what_a_head_takes_at_k_0_is_learned_where_it_ran(draft_s: float | None) -> None:
    step = StepResult(0.012, 1, 0, {"a": (0, 0)}, 1, prefill=False, verify_s=0.01, draft_s=draft_s)
    controller = shown([step] * 200, EngineFacts())
    assert controller._table.costs.in_graph.draft(0) == pytest.approx(draft_s or 0.0, rel=0.05)


# --- tau: auto ---


def test_the_acceptance_at_which_drafts_break_even_is_learned() -> None:
    # A step of one request: 10.05 ms, and 2.05 ms more for each of K drafts: r = 2.05 / 10.05 = 0.204.
    engine = Engine(EngineFacts(), draft_s=0.002)
    engine.add("a", 0.6, tau="auto")
    engine.run(200)
    assert engine.controller.tau("a") == pytest.approx(0.204, rel=0.1)
    assert engine.controller.learned().tau == pytest.approx({"code": 0.204}, rel=0.1)


def test_tau_auto_stops_a_fixed_k_that_does_not_pay_and_no_other() -> None:
    engine = Engine(EngineFacts(), draft_s=0.002)
    engine.add("poor", 0.02, k=4, tau="auto")
    engine.add("good", 0.9, k=4, tau="auto")
    engine.run(150)
    steps = engine.run(100)
    assert Counter(step["poor"].reason for step in steps)[Reason.TAU_STOPPED] > 80
    assert Counter(step["good"].reason for step in steps)[Reason.ASKED] == 100


def test_tau_auto_rises_with_the_load() -> None:
    taus = []
    for size in (1, 64):
        engine = Engine(EngineFacts(), draft_s=0.0)
        for index in range(size):
            engine.add(str(index), 0.5, tau="auto")
        engine.run(150)
        taus.append(engine.controller.tau("0"))
    alone, busy = taus
    assert alone is not None
    assert busy is not None
    assert alone < 0.05 < busy


def test_tau_auto_of_lookups_does_not_count_what_an_own_draft_takes() -> None:
    engine = Engine(EngineFacts(), draft_s=0.005, ngram=0.3)
    engine.add("own", 0.9, k=2)
    engine.add("lookup", 0.3, drafts="ngram", tau="auto", category="math")
    engine.run(300)
    tau = engine.controller.tau("lookup")
    assert tau is not None
    assert tau < 0.05


def test_where_all_look_up_no_own_draft_is_charged_and_all_draft_alike_in_the_graph() -> None:
    engine = Engine(EngineFacts(graph="per_k"), piecewise_s=0.0015, draft_s=0.005, ngram=0.6)
    engine.add("own", 0.1, k=2)
    engine.add("a", 0.6, drafts="ngram")
    engine.run(100)
    engine.controller.remove("own")
    del engine.acceptance["own"]
    engine.add("b", 0.6, drafts="ngram")
    engine.run(50)
    steps = engine.run(100)
    assert sum(decision.k for step in steps for decision in step.values()) > 700


@pytest.mark.parametrize("graph", ["none", "per_k"])
@pytest.mark.parametrize("own", [{}, {"k": 0}], ids=["auto", "no drafts"])
def test_lookups_beside_a_costly_own_draft_are_not_charged_for_it(graph: Any, own: dict[str, Any]) -> None:
    # Of a step of 10 ms, an iteration of the own draft takes 5 ms: that never pays, and lookups always do.
    engine = Engine(EngineFacts(graph=graph), draft_s=0.005, ngram=0.6)
    engine.add("own", 0.5, **own)
    for index in range(3):
        engine.add(str(index), 0.6, drafts="ngram")
    engine.run(150)
    steps = engine.run(100)
    assert sum(step["own"].k for step in steps) < 20
    assert min(sum(step[str(index)].k for step in steps) for index in range(3)) > 300


def test_before_anything_is_known_tau_auto_stops_nobody() -> None:
    engine = Engine(EngineFacts())
    engine.add("a", 0.5, tau="auto")
    assert engine.controller.tau("a") is None
    assert engine.controller.tau("nobody") is None
    assert engine.controller.learned().tau == {}


# --- who drafts ---


def drafters(steps: list[dict[str, Decision]], request: str = "a") -> Counter[Drafts]:
    return Counter(step[request].drafts for step in steps)


@pytest.mark.parametrize("drafts", ["own", "ngram"])
def test_who_drafts_is_honoured_where_it_was_chosen(drafts: Drafts) -> None:
    engine = Engine(EngineFacts(), draft_s=0.002, ngram=0.9)
    engine.add("a", 0.9, drafts=drafts)
    assert drafters(engine.run(100)) == {drafts: 100}


@pytest.mark.parametrize(
    ("own", "ngram", "draft_s", "better"),
    [(0.3, 0.9, 0.001, "ngram"), (0.9, 0.1, 0.0005, "own"), (0.7, 0.7, 0.003, "ngram")],
    ids=["lookup hits", "lookup misses", "alike, and the own draft costs time"],
)
def test_auto_leaves_drafting_to_the_faster_way(own: float, ngram: float, draft_s: float, better: Drafts) -> None:
    engine = Engine(EngineFacts(), draft_s=draft_s, ngram=ngram)
    engine.add("a", own, drafts="auto")
    engine.run(300)
    assert drafters(engine.run(200))[better] > 170


def test_new_requests_begin_with_what_their_category_has_shown() -> None:
    engine = Engine(EngineFacts(), draft_s=0.002, ngram=0.9)
    engine.add("a", 0.1, drafts="auto")
    engine.run(300)
    engine.add("b", 0.1, drafts="auto")
    assert drafters(engine.run(20), "b")["ngram"] >= 19


def test_own_and_ngram_requests_share_a_batch() -> None:
    engine = Engine(EngineFacts(), draft_s=0.0005, ngram=0.9)
    engine.add("a", 0.9, drafts="own")
    engine.add("b", 0.1, drafts="ngram")
    engine.run(100)
    steps = engine.run(50)
    assert all((step["a"].drafts, step["b"].drafts) == ("own", "ngram") for step in steps)
    assert sum(step["b"].k for step in steps) > 100


@given(
    requests=st.lists(
        st.tuples(
            st.floats(0, 1),
            st.sampled_from(["own", "ngram", "auto", None]),
            st.sampled_from(["auto", 0, 2, 9]),
            st.sampled_from(["auto", None, 0.5]),
        ),
        min_size=1,
        max_size=5,
    ),
    graph=st.sampled_from(["none", "k_max", "per_k", "any"]),
    draft=st.sampled_from(["depth", "k_max", "always"]),
    seconds=st.floats(0, 0.01),
)
def test_whatever_is_asked_every_decision_keeps_to_it(
    requests: list[tuple[float, Any, Any, Any]], graph: Any, draft: Any, seconds: float
) -> None:
    engine = Engine(EngineFacts(graph=graph, draft=draft), piecewise_s=seconds, draft_s=seconds, ngram=0.5)
    for index, (acceptance, drafts, k, tau) in enumerate(requests):
        engine.add(str(index), acceptance, drafts=drafts, k=k, tau=tau)
    for step in engine.run(40):
        for index, (_, drafts, k, _) in enumerate(requests):
            decision = step[str(index)]
            assert 0 <= decision.k <= (K_MAX if k == "auto" else min(k, K_MAX))
            if drafts != "auto":
                assert decision.drafts == (drafts or "own")
    learned = engine.controller.learned()
    assert all(0 <= tau <= 1 for tau in learned.tau.values())
