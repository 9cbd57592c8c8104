"""One `/api/inference` request: its events in order, one terminal event, nothing left open."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from router.observation import Observation, TierState
from router.plan import plan
from router.request import InferenceRequest
from router.runs.summary import HandedOver, RunReport
from serve_app.api.errors import ApiError, Failure, overloaded
from serve_app.api.inference import InferenceStream
from serve_app.api.planning import generation_request
from serve_app.api.stream_response import StreamResponse
from serve_app.config import AppConfig
from serve_app.engine.interface import Admitted, Finished, SpecStats, Token
from serve_app.engine.stream_items import StreamItem
from serve_app.transport.client import GenerationStream
from serve_app.transport.resuming import LOST, ResumingStream
from serve_app.transport.stream import ItemStream, LocalStream
from tests.support.app_config import FixedPool, app_config
from tests.support.http_client import Client
from tests.support.streams import Script, Wait, batch, collect, sse_events

ADMITTED = Admitted()
TOKENS = [
    batch(Token("Pa", 1, None, False), Token("ris", 2, None, True)),
    batch(Token("!", 3, None, False)),
]
FINISHED = Finished("stop", 4, 3, queue_ms=0.0, spec=SpecStats(steps=2, draft_tokens=4, accepted_tokens=1), busy_s=0.5)
WHOLE: list[StreamItem | Wait | Exception] = [ADMITTED, *TOKENS, FINISHED]
WARM = TierState(running=1)
pytestmark = pytest.mark.usefixtures("slow_pings")
TRACE = ["classify_prompt", "check_gpu_pool", "build_config", "decision"]


@dataclass
class Case:
    """A request to the eco tier in some state, with a scripted engine behind it."""

    items: Sequence[StreamItem | Wait | Exception]
    state: TierState = WARM
    config: AppConfig = field(default_factory=app_config)
    fields: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.script: Script[StreamItem] = Script(self.items)
        self.pool = FixedPool({"eco": self.state})
        self.reports: list[RunReport | HandedOver] = []

    def stream(self) -> InferenceStream:
        request = InferenceRequest.model_validate({"prompt": "Hello", "mode": "manual", "power": 10} | self.fields)
        return InferenceStream(
            "r1",
            request,
            plan(request, self.pool.observation, self.config),
            ResumingStream(
                "eco", lambda _: LocalStream(self.script.stream()), math.inf, asyncio.get_running_loop().time
            ),
            self.config,
            self.pool,
            asyncio.get_running_loop().time(),
            self.reports.append,
        )

    async def events(self) -> list[tuple[str, dict[str, Any]]]:
        """All events of the request, admission included."""
        stream = self.stream()
        await stream.admit()
        return sse_events(await collect(stream.events()))


def kinds(events: list[tuple[str, dict[str, Any]]]) -> list[str]:
    return [kind for kind, _ in events]


def only(events: list[tuple[str, dict[str, Any]]], wanted: str) -> list[dict[str, Any]]:
    return [data for kind, data in events if kind == wanted]


async def test_a_warm_tier_answers_with_the_contracts_events_in_order() -> None:
    events = await Case(WHOLE).events()
    assert kinds(events) == ["config", *["trace"] * len(TRACE), "reasoning", *["token"] * 3, "metrics", "done"]
    assert [data["step"] for data in only(events, "trace")] == TRACE
    assert "".join(data["text"] for data in only(events, "token")) == "Paris!"
    assert only(events, "config")[0]["request_id"] == "r1"
    assert only(events, "reasoning")[0]["source"] == "heuristic"
    assert "eco" in only(events, "reasoning")[0]["text"]
    assert only(events, "done") == [{"request_id": "r1"}]


async def test_config_and_trace_are_one_write_at_once_and_a_step_of_tokens_is_one_write() -> None:
    stream = Case([Wait(1), ADMITTED, TOKENS[0], Wait(1), TOKENS[1], FINISHED]).stream()
    pieces = [piece async for piece in stream.events()]
    assert [kinds(sse_events(piece)) for piece in pieces] == [
        ["config", *["trace"] * len(TRACE), "reasoning"],
        ["token", "token"],
        ["token"],
        ["metrics", "done"],
    ]


async def test_steps_that_arrive_during_a_write_are_one_write() -> None:
    pieces = [piece async for piece in Case(WHOLE).stream().events()]
    assert [kinds(sse_events(piece)) for piece in pieces[1:]] == [["token", "token", "token"], ["metrics", "done"]]


async def test_reasoning_can_be_switched_off() -> None:
    events = await Case(WHOLE, fields={"reasoning": False}).events()
    assert kinds(events) == ["config", *["trace"] * len(TRACE), *["token"] * 3, "metrics", "done"]


async def test_metrics_count_from_arrival_to_the_last_token() -> None:
    items: list[StreamItem | Wait | Exception] = [
        Wait(0.25),
        ADMITTED,
        Wait(0.25),
        TOKENS[0],
        Wait(1),
        TOKENS[1],
        Wait(5),
        FINISHED,
    ]
    (metrics,) = only(await Case(items).events(), "metrics")
    assert metrics["queue_ms"] == pytest.approx(250)
    assert metrics["ttft_ms"] == pytest.approx(500)
    assert metrics["total_ms"] == pytest.approx(1500)
    assert metrics["tokens_per_sec"] == pytest.approx(3 / 1.25)
    assert (metrics["prompt_tokens"], metrics["completion_tokens"], metrics["finish_reason"]) == (4, 3, "stop")
    assert metrics["spec"]["acceptance_rate"] == 0.25


async def test_a_finished_request_is_reported_with_its_metrics() -> None:
    case = Case(WHOLE)
    (metrics,) = only(await case.events(), "metrics")
    [report] = case.reports
    assert isinstance(report, RunReport)
    assert (report.tier, report.category, report.finish_reason) == ("eco", "simple_question", "stop")
    assert (report.ttft_ms, report.total_ms) == (metrics["ttft_ms"], metrics["total_ms"])
    assert (report.completion_tokens, report.draft_tokens, report.accepted_tokens) == (3, 4, 1)


@pytest.mark.parametrize(
    "case",
    [
        Case(WHOLE, fields={"mock": True}),
        Case([ADMITTED, *TOKENS, Failure("engine_failed", "out of memory", 500, True)]),
        Case([ADMITTED, *TOKENS]),
    ],
    ids=["answered by the stub", "failed", "cut"],
)
async def test_stub_answers_and_failed_requests_are_not_reported(case: Case) -> None:
    await case.events()
    assert case.reports == []


async def test_a_resumed_answer_waited_only_for_its_first_replica_and_teaches_nothing() -> None:
    case = Case([])
    lost = ApiError("replica_lost", "went away", status=503, retryable=True)
    first: Script[Any] = Script([Wait(1), ADMITTED, Wait(1), TOKENS[0], Wait(5), lost])
    second: Script[Any] = Script([Wait(3), ADMITTED, TOKENS[1], FINISHED])
    calls = iter((first, second))
    stream = case.stream()
    await stream.parts.items.aclose()
    clock = asyncio.get_running_loop().time
    stream.parts.items = ResumingStream("eco", lambda _: LocalStream(next(calls).stream()), math.inf, clock)
    events = sse_events(await collect(stream.events()))
    assert kinds(events)[-2:] == ["metrics", "done"]
    metrics = only(events, "metrics")[0]
    assert (metrics["queue_ms"], metrics["ttft_ms"]) == (pytest.approx(1000), pytest.approx(2000))
    assert metrics["tokens_per_sec"] == pytest.approx(metrics["completion_tokens"] / 9, rel=1e-3)
    assert case.reports == []
    resumed = [status for status in only(events, "status") if status["state"] == "resumed"]
    assert [status["reason"] for status in resumed] == ["went away"]


async def test_an_answer_without_tokens_ends_properly() -> None:
    events = await Case([ADMITTED, Wait(1), Finished("stop", 4, 0, 0.0, SpecStats(), 0.5)]).events()
    assert kinds(events)[-2:] == ["metrics", "done"]
    assert only(events, "metrics")[0]["ttft_ms"] == pytest.approx(1000)


@pytest.mark.parametrize(
    ("ending", "error"),
    [
        ([FINISHED], None),
        ([Failure("engine_failed", "out of memory", 500, True)], ("engine_failed", "out of memory", True)),
        ([Failure("bad_request", "no", 400, False)], ("bad_request", "no", False)),
        ([ApiError("replica_lost", "went away", status=503, retryable=True)], ("replica_lost", "went away", True)),
        ([], ("stream_cut", "the engine's answer ended early", True)),
        ([Wait(10_000)], ("timeout", "the answer was not complete after 100 s (limits.request_timeout_s)", True)),
        ([RuntimeError("a bug")], ("internal_error", "the ingress failed", True)),
    ],
    ids=["finish", "failure", "refusal", "ApiError", "cut", "timeout", "a bug"],
)
@pytest.mark.parametrize("sent", [[], [ADMITTED], [ADMITTED, *TOKENS]], ids=["at once", "admitted", "midway"])
async def test_every_ending_is_exactly_one_terminal_event_and_closes_the_engines_stream(
    sent: list[StreamItem], ending: list[StreamItem | Wait | Exception], error: tuple[str, str, bool] | None
) -> None:
    case = Case([*sent, *ending], config=app_config(limits={"request_timeout_s": 100}))
    events = sse_events(await collect(case.stream().events()))
    terminal = [(kind, data) for kind, data in events if kind in ("done", "error")]
    assert terminal == events[-1:]
    assert case.script.closed
    if error is None:
        assert kinds(events)[-2:] == ["metrics", "done"]
    else:
        code, message, retryable = error
        # One that another replica could have answered was asked again, in vain.
        again = sent and code in LOST
        message += ", for the third time" if again else ""
        assert terminal == [("error", {"code": code, "message": message, "retryable": retryable, "request_id": "r1"})]
        assert "metrics" not in kinds(events)


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (Failure("prompt_too_long", "3000 tokens", 400, False), 400),
        (overloaded("tier eco has too many requests waiting"), 503),
    ],
    ids=["of the engine", "of the queue"],
)
async def test_a_refusal_before_the_response_raises_and_closes_the_engines_stream(
    refusal: Failure | ApiError, status: int
) -> None:
    case = Case([refusal])
    with pytest.raises(ApiError) as error:
        await case.stream().admit()
    assert error.value.status == status
    assert case.script.closed


async def test_a_full_cold_tier_refuses_before_the_response() -> None:
    stream = Case(WHOLE, TierState(starting=1)).stream()
    full: GenerationStream = ItemStream()
    full.end(overloaded("tier eco has too many requests waiting"))
    stream.parts.items = ResumingStream("eco", lambda _: full, until_s=math.inf)
    with pytest.raises(ApiError, match="too many requests waiting"):
        await stream.admit()


async def test_a_slow_warm_tier_delays_the_response_for_half_a_second_only() -> None:
    case = Case([Wait(3), *WHOLE])
    stream, loop = case.stream(), asyncio.get_running_loop()
    began = loop.time()
    await stream.admit()
    assert loop.time() - began == pytest.approx(0.5)
    events = sse_events(await collect(stream.events()))
    assert [data["state"] for data in only(events, "status")] == ["queued"]
    assert "".join(data["text"] for data in only(events, "token")) == "Paris!"


async def test_a_cold_tiers_status_comes_at_once_and_at_intervals() -> None:
    cold = TierState(pending=1, reason="waiting for a replica to be placed", cold_start_s=30)
    case = Case([Wait(5), *WHOLE], cold)
    stream, loop = case.stream(), asyncio.get_running_loop()
    began = loop.time()
    await stream.admit()
    assert loop.time() == began
    events = sse_events(await collect(stream.events()))
    assert kinds(events) == [
        "config",
        *["trace"] * len(TRACE),
        "reasoning",
        *["status"] * 3,
        *["token"] * 3,
        "metrics",
        "done",
    ]
    assert only(events, "config")[0]["warm"] is False
    assert [
        (data["state"], data["waited_s"], data["estimate_s"], data["reason"]) for data in only(events, "status")
    ] == [
        ("provisioning", 0, 30, "waiting for a replica to be placed"),
        ("provisioning", 2, 28, "waiting for a replica to be placed"),
        ("provisioning", 4, 26, "waiting for a replica to be placed"),
    ]


async def test_pings_fill_the_time_between_statuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve_app.api.inference.PING_EVERY_S", 0.75)
    events = await Case([Wait(5), *WHOLE], TierState()).events()
    # At 0, 0.75, 1.5, 2.25, ... s: the first at or after 2 s, and then after 4.25 s, is a status.
    assert kinds(events)[6:13] == ["status", "ping", "ping", "status", "ping", "ping", "status"]
    assert [data["waited_s"] for data in only(events, "status")] == [0, 2.25, 4.5]


async def test_status_goes_from_provisioning_to_loading_to_queued() -> None:
    case = Case([Wait(5), *WHOLE], TierState(pending=1, cold_start_s=3))
    states = []
    next_states = [TierState(starting=1, cold_start_s=3, reason="loading step x"), TierState(running=1)]
    async for piece in case.stream().events():
        for data in only(sse_events(piece), "status"):
            states.append((data["state"], data["estimate_s"]))
            if next_states:
                case.pool.set("eco", next_states.pop(0))
    # After 2 s of 3 s, 1 s is left. A warm tier's estimate is its queue wait.
    assert states == [("provisioning", 3), ("loading", 1), ("queued", 0)]


async def test_an_estimate_that_has_passed_is_0() -> None:
    events = await Case([Wait(5), *WHOLE], TierState(starting=1, cold_start_s=1)).events()
    assert [data["estimate_s"] for data in only(events, "status")] == [1, 0, 0]


async def test_an_admitted_request_that_waits_in_the_engine_is_queued() -> None:
    case = Case([ADMITTED, Wait(3), TOKENS[0], FINISHED], TierState())
    events = await case.events()
    assert [data["state"] for data in only(events, "status")] == ["provisioning", "queued"]


async def test_a_tier_that_gives_up_ends_the_wait_with_its_reasons() -> None:
    case = Case([Wait(10_000)], TierState(starting=1))
    pieces = []
    async for piece in case.stream().events():
        pieces.append(piece)
        case.pool.set("eco", TierState(failed=True, reason="step small-ngram failed: no memory"))
    (before, status), (kind, data) = sse_events(b"".join(pieces))[-2:]
    assert (before, status["reason"]) == ("status", "step small-ngram failed: no memory")
    assert (kind, data["code"], data["retryable"]) == ("error", "tier_unavailable", True)
    assert "tier eco cannot start: step small-ngram failed: no memory" in data["message"]
    assert case.script.closed


async def test_a_stream_that_falls_silent_gets_pings() -> None:
    items: list[StreamItem | Wait | Exception] = [ADMITTED, TOKENS[0], Wait(5), TOKENS[1], FINISHED]
    events = await Case(items).events()
    assert kinds(events)[6:] == ["token", "token", "ping", "ping", "token", "metrics", "done"]


async def test_an_answer_that_exceeds_the_request_timeout_is_ended() -> None:
    flowing: list[StreamItem | Wait | Exception] = [Wait(1), TOKENS[1]] * 200
    case = Case([ADMITTED, *flowing, FINISHED], config=app_config(limits={"request_timeout_s": 100}))
    events = await case.events()
    assert (events[-1][0], events[-1][1]["code"]) == ("error", "timeout")
    assert 99 <= kinds(events).count("token") <= 101
    assert case.script.closed


async def test_an_idle_reader_gets_everything_at_once_afterwards() -> None:
    loop = asyncio.get_running_loop()
    pieces = Case(WHOLE).stream().events()
    await anext(pieces)
    await asyncio.sleep(60)
    began = loop.time()
    events = sse_events(await collect(pieces))
    assert loop.time() == began
    assert kinds(events) == ["token", "token", "token", "metrics", "done"]


@pytest.mark.parametrize("taken", [1, 2, 3])
async def test_the_engines_stream_is_closed_when_the_reader_leaves(taken: int) -> None:
    case = Case([Wait(1), ADMITTED, TOKENS[0], Wait(1), TOKENS[1], Wait(1), FINISHED])
    pieces = case.stream().events()
    for _ in range(taken):
        await anext(pieces)
    await pieces.aclose()  # type: ignore[attr-defined]
    assert not case.script.opened or case.script.closed
    assert FINISHED not in case.script.taken


async def test_the_engines_stream_is_closed_when_the_client_leaves_during_a_silent_wait() -> None:
    case, client = Case([ADMITTED, Wait(10_000)]), Client()
    stream = case.stream()
    await stream.admit()
    answering = asyncio.ensure_future(client.read(StreamResponse(stream.events(), 200, {}, stream.aclose)))
    await asyncio.sleep(7)
    assert not case.script.closed
    client.leave()
    await answering
    assert case.script.closed


async def test_the_engines_stream_is_closed_when_the_client_leaves_during_admission() -> None:
    case = Case([Wait(10_000)])
    admitting = asyncio.ensure_future(case.stream().admit())
    await asyncio.sleep(0.1)
    admitting.cancel()
    await asyncio.gather(admitting, return_exceptions=True)
    assert case.script.closed


async def test_the_engines_stream_is_closed_when_the_client_left_before_the_first_event() -> None:
    case, client = Case([ADMITTED, Wait(1), *TOKENS, FINISHED]), Client()
    stream = case.stream()
    await stream.admit()
    client.leave()
    await client.read(StreamResponse(stream.events(), 200, {}, stream.aclose))
    assert case.script.closed
    assert case.script.taken == [ADMITTED]


async def test_a_mock_answer_names_the_stub_and_waits_for_no_tier() -> None:
    failed = TierState(failed=True, reason="no memory")
    events = await Case(WHOLE, failed, fields={"mock": True}).events()
    assert only(events, "config")[0]["engine"] == "stub"
    assert kinds(events) == ["config", *["trace"] * len(TRACE), "reasoning", *["token"] * 3, "metrics", "done"]


async def test_mock_mode_names_the_stub() -> None:
    events = await Case(WHOLE, config=app_config(inference_mode="mock")).events()
    assert only(events, "config")[0]["engine"] == "stub"
    assert only(await Case(WHOLE).events(), "config")[0]["engine"] == "vllm"


def test_the_engines_request_is_made_of_the_clients_and_the_plan() -> None:
    request = InferenceRequest.model_validate(
        {
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
            "mode": "manual",
            "power": 10,
            "speed": 50,
            "seed": 7,
            "stop": ["\n"],
            "logprobs": True,
            "temperature": 1.5,
            "spec": {"k": 3},
        }
    )
    call = generation_request("r1", request, plan(request, Observation({"eco": WARM}), app_config()))
    assert call.messages == request.messages
    assert (call.max_tokens, call.max_tokens_is_explicit) == (512, False)
    assert (call.temperature, call.top_p, call.seed, call.stop) == (1.5, 0.9, 7, ("\n",))
    assert call.logprobs
    assert not call.spec.enabled  # a sampled answer with a seed


def test_a_max_tokens_of_the_clients_is_marked_as_such() -> None:
    request = InferenceRequest.model_validate({"prompt": "Hello", "max_tokens": 9, "spec": {"k": 3}})
    call = generation_request("r1", request, plan(request, Observation(), app_config()))
    assert (call.max_tokens, call.max_tokens_is_explicit, call.stop) == (9, True, ())
    assert (call.spec.k, call.spec.enabled) == (3, True)
