"""An answer of `/api/inference` that goes on with another tier: what its client sees, and what engines are asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from router.escalation import EVERY, LASTS
from router.observation import TierState
from router.plan import plan
from router.registry import TierName
from router.request import InferenceRequest
from router.runs.summary import HandedOver
from router.signs import WINDOW, Signs
from serve_app.api.errors import Failure, overloaded
from serve_app.api.escalation import SEAM_WITHIN, AnswerWatch
from serve_app.engine.interface import Admitted, GenerationRequest, Token, TokenBatch, pack_ids
from serve_app.transport.client import GenerationStream
from serve_app.transport.stream import ItemStream, LocalStream
from tests.support.app_config import app_config
from tests.support.local_ingress import LocalIngress, LocalTiers
from tests.support.real_loops import REAL_LOOPS
from tests.support.streams import batch, sse_events

LOOPS = "Say something. stub:loop=0 stub:rate=1000"
"""An answer that repeats itself from the first token on: known as a loop after 128 tokens, left 16 later."""
ASKED: dict[str, Any] = {"prompt": LOOPS, "mode": "manual", "power": 10, "max_tokens": 300, "escalate": "auto"}
STEP = 11
"""Most tokens of a step of eco: ten drafts and one more."""
Events = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def ingress(monkeypatch: pytest.MonkeyPatch) -> LocalIngress:
    return LocalIngress(app_config(), monkeypatch)


async def answer(ingress: LocalIngress, **fields: Any) -> Events:
    response = await ingress.post("/api/inference", ASKED | fields)
    return [event for event in sse_events(response.content) if event[0] != "ping"]


def only(events: Events, kind: str) -> dict[str, Any]:
    [data] = [data for each, data in events if each == kind]
    return data


def kinds(events: Events) -> list[str]:
    return [kind for kind, _ in events]


def text(events: Events) -> str:
    return "".join(data["text"] for kind, data in events if kind == "token")


async def test_the_stronger_tier_goes_on_with_the_text(ingress: LocalIngress) -> None:
    events = await answer(ingress)
    seam = kinds(events).index("escalation")
    data = events[seam][1]
    before = events[:seam]
    assert set(data) == {"from_tier", "to_tier", "reason", "at_token", "rewrite"}
    assert (data["from_tier"], data["to_tier"], data["rewrite"]) == ("eco", "balanced", False)
    assert data["reason"].startswith("it has repeated itself for")
    assert data["at_token"] == kinds(before).count("token")
    assert 128 + LASTS <= data["at_token"] <= 128 + LASTS + SEAM_WITHIN + 2 * EVERY + 4 * STEP

    (first, asked_first), (second, asked_second) = ingress.tiers.asked
    assert (first, second) == ("eco", "balanced")
    assert (asked_first.begun, asked_first.watch, asked_second.watch) == ("", True, False)
    assert asked_second.begun == text(before), "what the client has is what the other tier continues"
    assert asked_second.max_tokens == 300 - data["at_token"]
    assert asked_second.messages == asked_first.messages
    assert asked_second.resume is None


async def test_the_answer_counts_as_one(ingress: LocalIngress) -> None:
    events = await answer(ingress)
    metrics, at_token = only(events, "metrics"), only(events, "escalation")["at_token"]
    assert kinds(events)[-2:] == ["metrics", "done"]
    assert kinds(events).count("token") == metrics["completion_tokens"] == 300
    assert metrics["escalation"] == only(events, "escalation") | {"applied": True}
    first, last = metrics["legs"]
    assert (first["tier"], first["entry"], first["completion_tokens"], first["ended_by"]) == (
        *("eco", "small-ngram", at_token, "handed_over"),
    )
    assert (last["tier"], last["entry"], last["completion_tokens"], last["ended_by"]) == (
        *("balanced", "medium-ngram", 300 - at_token, "done"),
    )
    assert metrics["prompt_tokens"] == 6, "the text so far is no prompt of the client's"
    assert metrics["busy_s"] == pytest.approx(first["busy_s"] + last["busy_s"], abs=1e-5)


async def test_each_part_is_billed_once_by_its_own_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    # Ten times the watts and the price above.
    strong = {"active_watts": 1000, "price_usd_per_hour": 10.0}
    ingress = LocalIngress(app_config(tiers={"balanced": strong}), monkeypatch)
    metrics = only(await answer(ingress), "metrics")
    first, last = metrics["legs"]
    # `busy_s` is told in whole microseconds.
    assert first["busy_s"] == pytest.approx(first["energy_wh"] * 3600 / 100, abs=1e-6)
    assert last["busy_s"] == pytest.approx(last["energy_wh"] * 3600 / 1000, abs=1e-6)
    assert min(first["energy_wh"], last["energy_wh"]) > 0
    assert metrics["energy"]["wh"] == pytest.approx(first["energy_wh"] + last["energy_wh"])
    assert metrics["cost_usd"] == pytest.approx(first["cost_usd"] + last["cost_usd"])
    assert metrics["energy"]["range"]["low"] < metrics["energy"]["wh"] < metrics["energy"]["range"]["high"]
    assert metrics["energy"]["source"] == "modelled"

    counters = ingress.meter.counters
    joules = counters["power_lever_energy_joules_total"]
    assert joules["eco", "share"] == pytest.approx(first["energy_wh"] * 3600)
    assert joules["balanced", "share"] == pytest.approx(last["energy_wh"] * 3600)
    costs = counters["power_lever_cost_usd_total"]
    assert costs["eco", "share"] + costs["balanced", "share"] == pytest.approx(metrics["cost_usd"])
    [report] = ingress.reports
    category = report.category
    made = counters["power_lever_completion_tokens_total"]
    assert made == {
        ("eco", category): first["completion_tokens"],
        ("balanced", category): last["completion_tokens"],
    }
    assert counters["power_lever_escalations_total"] == {("eco", "balanced", "climb", "true"): 1}


async def test_a_handed_over_answer_is_no_run_but_tells_how_it_went(ingress: LocalIngress) -> None:
    await answer(ingress)
    [report] = ingress.reports
    assert isinstance(report, HandedOver)
    assert report.tier == "eco"
    assert report.signs.loop >= 128


async def test_with_rewrite_the_stronger_tier_begins_anew(ingress: LocalIngress) -> None:
    events = await answer(ingress, rewrite=True)
    data, metrics = only(events, "escalation"), only(events, "metrics")
    assert data["rewrite"] is True
    _, (_, asked) = ingress.tiers.asked
    assert (asked.begun, asked.max_tokens) == ("", 300)
    assert kinds(events).count("token") == data["at_token"] + 300
    assert metrics["completion_tokens"] == 300, "the text that was withdrawn is no longer part of the answer"
    assert [leg["completion_tokens"] for leg in metrics["legs"]] == [data["at_token"], 300]


async def test_an_answer_that_the_tier_does_not_take_goes_on_where_it_is(
    ingress: LocalIngress, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(LocalTiers):
        def generate(self, tier: TierName, request: GenerationRequest) -> GenerationStream:
            if tier == "eco":
                return super().generate(tier, request)
            full: GenerationStream = ItemStream()
            full.end(overloaded("the tier has too many requests waiting"))
            return full

    whole = await answer(ingress, escalate="off")
    ingress.use(Full(ingress.config))
    events = await answer(ingress)
    assert "escalation" not in kinds(events)
    assert text(events) == text(whole), "nothing is lost, and nothing doubled"
    steps = [data["result"] for kind, data in events if kind == "trace" and data["step"] == "escalate"]
    assert [step["to_tier"] for step in steps] == ["balanced", "performance", "ultra"], "each is asked once"
    assert not any(step["applied"] for step in steps)
    assert steps[0]["reason"].endswith("but balanced does not go on with it: the tier has too many requests waiting")
    metrics = only(events, "metrics")
    assert metrics["escalation"]["applied"] is False
    assert [leg["tier"] for leg in metrics["legs"]] == ["eco"]
    assert ingress.meter.counters["power_lever_escalations_total"] == {("eco", "ultra", "climb", "false"): 1}


async def test_a_tier_that_does_not_take_it_in_time_is_left_alone(ingress: LocalIngress) -> None:
    closed: list[str] = []

    class Silent(ItemStream[Any]):
        async def aclose(self) -> None:
            closed.append("balanced")
            await super().aclose()

    class Slow(LocalTiers):
        def generate(self, tier: TierName, request: GenerationRequest) -> GenerationStream:
            return super().generate(tier, request) if tier == "eco" else Silent()

    ingress.use(Slow(ingress.config))
    events = await answer(ingress)
    assert kinds(events)[-1] == "done"
    assert kinds(events).count("token") == 300
    assert closed == ["balanced"]
    assert only(events, "metrics")["escalation"]["reason"].endswith("it has not taken it within 1 s")


async def test_thoughts_that_run_in_a_loop_are_left_before_anything_was_said(ingress: LocalIngress) -> None:
    async def thoughts() -> AsyncGenerator[Any, None]:
        yield Admitted("small-ngram", pack_ids([1, 2, 3]))
        for step in range(1, 30):
            yield TokenBatch(pack_ids([7] * 8), 0.01 * step, b"", Signs(loop=8 * step))
            await asyncio.sleep(0.01)

    class Thinking(LocalTiers):
        def generate(self, tier: TierName, request: GenerationRequest) -> GenerationStream:
            return LocalStream(thoughts()) if tier == "eco" else super().generate(tier, request)

    tiers = Thinking(ingress.config)
    ingress.use(tiers)
    events = await answer(ingress)
    seam, metrics = only(events, "escalation"), only(events, "metrics")
    assert (seam["at_token"], seam["rewrite"]) == (0, False)
    [(tier, asked)] = tiers.asked
    assert (tier, asked.begun) == ("balanced", "")
    thought = metrics["legs"][0]["completion_tokens"]
    assert asked.max_tokens == 300 - thought
    assert kinds(events).count("token") == 300 - thought
    assert metrics["prompt_tokens"] == 3


async def test_the_limit_of_tokens_is_the_one_that_was_said_at_first(ingress: LocalIngress) -> None:
    events = await answer(ingress, max_tokens=None, prompt=LOOPS + " stub:rate=5000")
    [(_, first), (tier, second)] = ingress.tiers.asked
    config, at_token = only(events, "config"), only(events, "escalation")["at_token"]
    assert tier == "balanced"
    assert first.max_tokens == config["sampling"]["max_tokens"]
    assert second.max_tokens == first.max_tokens - at_token
    assert kinds(events).count("token") == first.max_tokens


async def test_an_answer_that_has_ended_goes_nowhere(ingress: LocalIngress) -> None:
    # The engine is as fast as it can be: all has arrived when the first tokens are judged.
    events = await answer(ingress, prompt="Say something. stub:loop=0 stub:tokens=200 stub:rate=0")
    assert "escalation" not in kinds(events)
    assert {tier for tier, _ in ingress.tiers.asked} == {"eco"}
    assert (kinds(events).count("token"), kinds(events)[-1]) == (200, "done")


@REAL_LOOPS
async def test_a_replica_is_lost_of_the_tier_that_it_belonged_to(ingress: LocalIngress) -> None:
    async def lost() -> AsyncGenerator[Any, None]:
        yield Admitted("medium-ngram", pack_ids([1]))
        yield Failure("replica_lost", "it went away", status=503, retryable=True)

    class Dying(LocalTiers):
        def generate(self, tier: TierName, request: GenerationRequest) -> GenerationStream:
            return LocalStream(lost()) if tier == "balanced" else super().generate(tier, request)

    ingress.use(Dying(ingress.config))
    events = await answer(ingress)
    assert kinds(events)[-1] == "error", "three times"
    assert set(ingress.meter.counters["power_lever_lost_replicas_total"]) == {("balanced", "replica_lost")}


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("one, two,", True), ("Done.", True), ("a line\n", True), ("so?", True), ("\u3002", True), ("", True),
        ("don'", False), ("**", False), ("http:", False), ("3.", False), ("half a wor", False), ("\\", False),
    ],
)  # fmt: skip
def test_a_seam_is_at_the_end_of_a_clause_or_a_line(ingress: LocalIngress, text: str, ends: bool) -> None:
    request = InferenceRequest.model_validate(ASKED)
    made = plan(request, ingress.pool.observation, ingress.config)
    watch = AnswerWatch.of(request, made, ingress.config, cast(Any, None), cast(Any, None))
    assert watch is not None
    for letter in text:
        watch.saw(batch(Token(letter, 1, None, False)))
    assert watch._is_seam() is ends


async def test_advice_is_a_trace_step_and_the_answer_stays(ingress: LocalIngress) -> None:
    whole = await answer(ingress, escalate="off")
    events = await answer(ingress, escalate="advise")
    assert text(events) == text(whole)
    [step] = [data["result"] for kind, data in events if kind == "trace" and data["step"] == "escalate"]
    assert (step["from_tier"], step["to_tier"], step["applied"]) == ("eco", "balanced", False)
    assert step["at_token"] >= 128
    assert {tier for tier, _ in ingress.tiers.asked} == {"eco"}
    metrics = only(events, "metrics")
    assert (metrics["escalation"]["applied"], len(metrics["legs"])) == (False, 1)


async def test_an_answer_that_goes_well_has_no_escalation(ingress: LocalIngress) -> None:
    events = await answer(ingress, prompt="Say something. stub:rate=1000")
    assert "escalation" not in kinds(events)
    assert only(events, "metrics")["escalation"] is None


async def test_an_answer_that_nobody_wants_watched_is_not(ingress: LocalIngress) -> None:
    await answer(ingress, escalate="off")
    [(_, asked)] = ingress.tiers.asked
    assert asked.watch is False


async def test_by_default_an_answer_is_watched_and_at_most_advised(ingress: LocalIngress) -> None:
    events = await answer(ingress, escalate=None)
    assert "escalation" not in kinds(events)
    assert only(events, "metrics")["escalation"]["applied"] is False


async def test_the_tier_may_say_that_answers_climb(monkeypatch: pytest.MonkeyPatch) -> None:
    climbs = {"escalate": "auto", "rewrite": True}
    # A tier of its own for this prompt, whichever that is: the strongest has no stronger one.
    tiers = dict.fromkeys(("eco", "balanced", "performance"), climbs)
    ingress = LocalIngress(app_config(tiers=tiers), monkeypatch)
    auto = {"mode": "auto", "power": None, "escalate": None}
    events = await answer(ingress, **auto)
    assert only(events, "escalation")["rewrite"] is True
    assert only(await answer(ingress, **auto, rewrite=False), "escalation")["rewrite"] is False
    manual = await answer(ingress, escalate=None)
    assert "escalation" not in kinds(manual), "in manual mode the dial is the user's word"


async def test_a_cold_tier_is_woken_and_waited_for_until_the_request_ends(ingress: LocalIngress) -> None:
    for tier in ("balanced", "performance", "ultra"):
        ingress.pool.set(tier, TierState())
    woken: list[TierName] = []

    class Waking(LocalTiers):
        def wake(self, tier: TierName) -> Any:
            woken.append(tier)
            return super().wake(tier)

    tiers = Waking(ingress.config)
    ingress.use(tiers)
    events = await answer(ingress)
    assert "escalation" not in kinds(events)
    assert woken == ["balanced"]
    assert tiers.woken == [], "the wait ends with the request"


async def test_the_end_of_the_text_is_the_end_of_a_clause_where_one_comes_soon(ingress: LocalIngress) -> None:
    events = await answer(ingress)
    _, (_, asked) = ingress.tiers.asked
    assert asked.begun.endswith(","), "the stub's only sign that ends a clause"
    assert only(events, "escalation")["at_token"] > WINDOW


async def test_the_front_ends_stub_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    ingress = LocalIngress(app_config(allow_mock=True), monkeypatch)
    events = await answer(ingress, mock=True)
    assert "escalation" not in kinds(events)
    assert only(events, "metrics")["escalation"] is None


@pytest.mark.parametrize("field", [{"escalate": "yes"}, {"escalate": True}, {"rewrite": "true"}, {"rewrite": 1}])
async def test_bad_values_are_refused_by_name(ingress: LocalIngress, field: dict[str, Any]) -> None:
    response = await ingress.post("/api/inference", ASKED | field)
    assert response.status_code == 422
    assert response.json()["error"]["message"].startswith(next(iter(field)))
