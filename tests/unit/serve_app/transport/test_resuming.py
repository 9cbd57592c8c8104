"""A stream goes on with another replica where one was lost, without a token twice or missing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from serve_app.api.errors import ApiError
from serve_app.engine.interface import Admitted, Finished, HttpProgress, Leg, Resume, SpecStats, TokenBatch, pack_ids
from serve_app.transport.asgi_call import ResponseStart
from serve_app.transport.client import GenerationStream, ResponseStream
from serve_app.transport.resuming import RepeatingStream, Resumed, ResumingStream
from serve_app.transport.stream import TICK, LocalStream
from sustainability.measured import Energy
from tests.support.streams import Script, Wait

ADMITTED = Admitted("small", pack_ids([1, 2]))
LOST = ApiError("replica_lost", "the replica of tier eco went away", status=503, retryable=True)
DEAD = ApiError("engine_dead", "the engine has died", status=503, retryable=True)
FAILED = ApiError("engine_failed", "the engine gave up the request", status=500, retryable=True)
FULL = ApiError("overloaded", "tier eco has too many requests waiting", status=503, retryable=True)
REFUSED = ApiError("not_resumable", "another replica of its tier serves tiny, not small", status=503, retryable=True)
Item = Admitted | TokenBatch | Finished | Wait | ApiError


def tokens(*ids: int, busy_s: float = 0.0) -> TokenBatch:
    return TokenBatch(pack_ids(ids), busy_s, b"".join(b"%d " % each for each in ids))


def finished(count: int, busy_s: float = 0.5, engine_s: float | None = None) -> Finished:
    return Finished("stop", 2, count, 0.0, SpecStats(), busy_s, engine_s=engine_s)


class Replicas:
    """Each call gets the next script."""

    def __init__(self, *scripts: Sequence[Item]) -> None:
        self._scripts: list[Script[Any]] = [Script(script) for script in scripts]
        self.asked: list[Resume | None] = []

    def call(self, resume: Resume | None) -> GenerationStream:
        script = self._scripts[len(self.asked)]
        self.asked.append(resume)
        return LocalStream(script.stream())

    @property
    def all_closed(self) -> bool:
        return all(script.closed for script in self._scripts[: len(self.asked)])


async def read(stream: ResumingStream) -> list[object]:
    items: list[object] = []
    while (item := await stream.get(60.0)) is not None:
        items.append(item)
    return items


def stream_of(replicas: Replicas, until_s: float = 900.0) -> ResumingStream:
    loop = asyncio.get_running_loop()
    return ResumingStream("eco", replicas.call, loop.time() + until_s, loop.time)


async def test_an_answer_without_a_fault_is_one_leg() -> None:
    replicas = Replicas([ADMITTED, tokens(7, 8), tokens(9), finished(3)])
    stream = stream_of(replicas)
    assert await read(stream) == [ADMITTED, tokens(7, 8), tokens(9), finished(3)]
    assert (replicas.asked, stream.legs) == ([None], [Leg("eco", "small", 3, 0.5, "done")])


async def test_a_lost_replica_is_replaced_from_the_last_token_on() -> None:
    replicas = Replicas(
        [ADMITTED, tokens(7, 8, busy_s=0.1), tokens(9, busy_s=0.25), LOST],
        [ADMITTED, tokens(10, busy_s=0.1), finished(1, busy_s=0.5, engine_s=1.0)],
    )
    stream = stream_of(replicas)
    items = await read(stream)
    assert items[3:5] == [Resumed("replica_lost", LOST.message, 3), ADMITTED]
    assert replicas.asked == [None, Resume("small", ADMITTED.prompt_ids, pack_ids([7, 8, 9]), 1)]
    assert stream.legs == [Leg("eco", "small", 3, 0.25, "replica_lost"), Leg("eco", "small", 1, 0.5, "done")]
    # Usage counts the answer as one, each part once.
    assert items[-1] == finished(4, busy_s=0.75, engine_s=1.5)
    assert replicas.all_closed


def as_it_is(quiet_s: float) -> float:
    return quiet_s


async def test_an_answer_that_is_given_up_has_what_arrived_and_an_estimate_of_what_did_not() -> None:
    replicas = Replicas([ADMITTED, tokens(7, busy_s=0.1), tokens(8, 9, busy_s=0.5), Wait(60)])
    stream = stream_of(replicas)
    for _ in range(2):
        await stream.get(60)
    await asyncio.sleep(3)  # the second batch has arrived, and is not read
    await stream.aclose()
    assert stream.delivered == 1
    assert await stream.cut("client_left", lambda quiet_s: 0.25) == [Leg("eco", "small", 3, 0.5, "client_left")]


async def test_of_a_client_that_did_not_read_the_time_since_it_read_last_is_estimated() -> None:
    stream = stream_of(Replicas([ADMITTED, tokens(7, busy_s=0.1), tokens(8, 9, busy_s=0.5), Wait(60)]))
    for _ in range(2):
        await stream.get(60)
    await asyncio.sleep(3)
    (leg,) = await stream.cut("client_left", as_it_is)
    assert leg.completion_tokens == 3
    assert leg.busy_s == pytest.approx(3.1)


async def test_the_estimate_gets_the_time_since_the_last_item() -> None:
    stream = stream_of(Replicas([ADMITTED, tokens(7, busy_s=0.5), Wait(60)]))
    for _ in range(2):
        await stream.get(60)
    await asyncio.sleep(3)
    (leg,) = await stream.cut("client_left", as_it_is)
    assert leg.busy_s == pytest.approx(3.5)


@pytest.mark.parametrize(
    ("script", "legs"),
    [
        ([Wait(60)], []),
        ([ADMITTED, Wait(60)], [Leg("eco", "small", 0, 0.0, "x")]),
        ([ADMITTED, tokens(7), finished(1)], [Leg("eco", "small", 1, 0.5, "done")]),
    ],
    ids=["nobody took it", "no token came", "it was whole"],
)
async def test_what_no_replica_took_is_no_part_and_a_whole_answer_is_not_estimated(
    script: list[Item], legs: list[Leg]
) -> None:
    stream = stream_of(Replicas(script))
    await stream.get(1)
    await asyncio.sleep(1)
    assert await stream.cut("x", lambda quiet_s: 0.0) == legs


async def test_each_lost_replicas_part_is_there_once() -> None:
    stream = stream_of(Replicas([ADMITTED, tokens(7, busy_s=0.25), LOST], [ADMITTED, tokens(8, busy_s=0.5), FAILED]))
    with pytest.raises(ApiError):
        await read(stream)
    assert await stream.cut("engine_failed", lambda quiet_s: 0.0) == [
        Leg("eco", "small", 1, 0.25, "replica_lost"),
        Leg("eco", "small", 1, 0.5, "engine_failed"),
    ]


async def test_the_time_in_which_another_tier_was_asked_is_in_the_part_and_its_tokens_are_not() -> None:
    stream = stream_of(Replicas([ADMITTED, tokens(7, busy_s=0.1), tokens(8, 9, busy_s=0.5), Wait(60)]))
    for _ in range(2):
        await stream.get(60)
    await asyncio.sleep(1)
    assert await stream.hand_over() == [Leg("eco", "small", 1, 0.5, "handed_over")]


async def test_the_joules_of_a_lost_replica_are_billed_at_the_watts_of_the_last() -> None:
    last = replace(finished(1, busy_s=0.5), energy=Energy(busy_j=100.0, idle_j=3.0), queue_ms=40.0)
    replicas = Replicas([ADMITTED, tokens(7, busy_s=0.25), LOST], [ADMITTED, tokens(8, busy_s=0.5), last])
    whole = (await read(stream_of(replicas)))[-1]
    assert isinstance(whole, Finished)
    assert (whole.busy_s, whole.energy) == (0.75, Energy(busy_j=150.0, idle_j=3.0))
    assert whole.queue_ms == 0.0  # it was the second replica's, long after the first token


async def test_what_was_delivered_is_known_whatever_ends_the_answer() -> None:
    stream = stream_of(Replicas([ADMITTED, tokens(7, 8, busy_s=0.25), LOST], [ADMITTED, tokens(9, busy_s=0.5), FAILED]))
    with pytest.raises(ApiError, match="gave up"):
        await read(stream)
    assert (stream.delivered, stream.busy_s) == (3, 0.75)


async def test_it_goes_on_twice_and_ids_of_all_parts_are_given_to_the_third_replica() -> None:
    replicas = Replicas(
        [ADMITTED, tokens(7), LOST], [ADMITTED, tokens(8, 9), DEAD], [ADMITTED, tokens(10), finished(1)]
    )
    stream = stream_of(replicas)
    items = await read(stream)
    assert [resume and (resume.delivered_ids, resume.attempt) for resume in replicas.asked] == [
        None,
        (pack_ids([7]), 1),
        (pack_ids([7, 8, 9]), 2),
    ]
    assert [leg.completion_tokens for leg in stream.legs] == [1, 2, 1]
    assert isinstance(items[-1], Finished)
    assert items[-1].completion_tokens == 4


async def test_the_third_loss_is_an_error_which_says_so() -> None:
    scripts: list[list[Item]] = [[ADMITTED, tokens(number), LOST] for number in range(4)]
    stream = stream_of(Replicas(*scripts))
    with pytest.raises(ApiError, match="went away, for the third time") as error:
        await read(stream)
    assert (error.value.code, error.value.retryable) == ("replica_lost", True)


async def test_what_has_delivered_nothing_begins_anew() -> None:
    replicas = Replicas([ADMITTED, LOST], [ADMITTED, tokens(7), finished(1)])
    stream = stream_of(replicas)
    assert (await read(stream))[1] == Resumed("replica_lost", LOST.message, 0)
    assert replicas.asked == [None, None]
    assert [leg.ended_by for leg in stream.legs] == ["done"]


async def test_calls_that_no_replica_takes_are_repeated_until_serve_knows() -> None:
    # Serve may send a call to a replica that is gone, several times.
    replicas = Replicas([ADMITTED, tokens(7), LOST], *([[LOST]] * 12), [ADMITTED, tokens(8), finished(1)])
    began_s = asyncio.get_running_loop().time()
    stream = stream_of(replicas)
    items = await read(stream)
    assert isinstance(items[-1], Finished)
    assert len([item for item in items if isinstance(item, Resumed)]) == 1  # the client is told once
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(12 * 0.25)
    assert [resume.attempt for resume in replicas.asked if resume] == [1] * 13


async def test_calls_that_nobody_takes_for_long_are_given_up() -> None:
    stream = stream_of(Replicas(*([[LOST]] * 100)))
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(ApiError, match="went away"):
        await read(stream)
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(15.25)


async def test_a_call_that_waited_for_a_replica_does_not_use_up_the_patience_with_the_next() -> None:
    # Nobody runs: the first call is lost at once, the second waits for a replica that starts, and loses it at once.
    replicas = Replicas([LOST], [Wait(60), LOST], [LOST], [ADMITTED, tokens(7), finished(1)])
    items = await read(stream_of(replicas))
    assert isinstance(items[-1], Finished)
    assert len(replicas.asked) == 4


async def test_calls_that_are_lost_late_are_made_again_twice() -> None:
    scripts: list[list[Item]] = [[Wait(60), LOST] for _ in range(9)]
    replicas = Replicas(*scripts)
    with pytest.raises(ApiError, match="went away"):
        await read(stream_of(replicas))
    assert len(replicas.asked) == 3


async def test_a_tier_that_is_full_since_it_lost_a_replica_makes_its_requests_wait() -> None:
    replicas = Replicas([ADMITTED, LOST], *([[FULL]] * 12), [ADMITTED, tokens(7), finished(1)])
    items = await read(stream_of(replicas))
    assert isinstance(items[-1], Finished)
    assert len(replicas.asked) == 14


async def test_a_tier_that_is_full_refuses_a_new_request_at_once() -> None:
    replicas = Replicas([FULL], [ADMITTED])
    with pytest.raises(ApiError, match="too many requests"):
        await read(stream_of(replicas))
    assert len(replicas.asked) == 1


async def test_what_the_request_itself_caused_is_not_asked_again() -> None:
    replicas = Replicas([ADMITTED, tokens(7), FAILED])
    with pytest.raises(ApiError, match="gave up"):
        await read(stream_of(replicas))
    assert replicas.asked == [None]


async def test_a_replica_of_another_model_does_not_go_on_and_the_error_says_both() -> None:
    stream = stream_of(Replicas([ADMITTED, tokens(7), DEAD], [REFUSED]))
    with pytest.raises(ApiError) as error:
        await read(stream)
    assert error.value.message == "the engine has died, and another replica of its tier serves tiny, not small"
    assert (error.value.code, error.value.status, error.value.retryable) == ("replica_lost", 503, True)


async def test_after_the_deadline_nobody_is_asked() -> None:
    replicas = Replicas([ADMITTED, tokens(7), Wait(10), LOST])
    with pytest.raises(ApiError, match="went away"):
        await read(stream_of(replicas, until_s=9))
    assert replicas.asked == [None]


async def test_closing_stops_the_replica_that_answers_now() -> None:
    replicas = Replicas([ADMITTED, tokens(7), LOST], [ADMITTED, Wait(3600)])
    stream = stream_of(replicas)
    for _ in range(4):
        await stream.get(60.0)
    await stream.aclose()
    assert replicas.all_closed


START = ResponseStart(200, [])


class HttpReplicas:
    """Each call gets the next script."""

    def __init__(self, *scripts: Sequence[Any]) -> None:
        self._scripts: list[Script[Any]] = [Script(script) for script in scripts]
        self.calls = 0

    def call(self) -> ResponseStream:
        self.calls += 1
        return LocalStream(self._scripts[self.calls - 1].stream())


def repeating(replicas: HttpReplicas) -> RepeatingStream:
    loop = asyncio.get_running_loop()
    return RepeatingStream(replicas.call, loop.time() + 900, loop.time)


async def read_http(stream: RepeatingStream) -> list[object]:
    items: list[object] = []
    while (item := await stream.get(60.0)) is not None:
        items.append(item)
    return [item for item in items if item is not TICK]


@pytest.mark.parametrize("lost", [[LOST], [Wait(5), DEAD], []], ids=["at once", "later", "cut"])
async def test_a_v1_answer_that_has_not_begun_is_asked_for_again(lost: list[Any]) -> None:
    replicas = HttpReplicas(lost, [START, b"whole"])
    assert await read_http(repeating(replicas)) == [START, b"whole"]
    assert replicas.calls == 2


async def test_a_v1_answer_that_has_begun_ends_with_the_error() -> None:
    replicas = HttpReplicas([START, b"ha", LOST], [START, b"whole"])
    with pytest.raises(ApiError, match="went away"):
        await read_http(repeating(replicas))
    assert replicas.calls == 1


async def test_a_prompt_that_ends_engines_ends_three_at_most() -> None:
    replicas = HttpReplicas(*([[Wait(2), DEAD]] * 9))
    with pytest.raises(ApiError, match="the engine has died"):
        await read_http(repeating(replicas))
    assert replicas.calls == 3


async def test_a_refusal_of_a_v1_request_is_not_repeated() -> None:
    replicas = HttpReplicas([FAILED], [START])
    with pytest.raises(ApiError, match="gave up"):
        await read_http(repeating(replicas))
    assert replicas.calls == 1


async def test_a_v1_answer_that_is_lost_twice_long_after_each_other_is_asked_for_again() -> None:
    replicas = HttpReplicas([LOST], [Wait(60), LOST], [Wait(60), DEAD], [START, b"whole"])
    assert await read_http(repeating(replicas)) == [START, b"whole"]
    assert replicas.calls == 4


async def test_a_v1_request_waits_for_a_tier_that_is_full_since_it_lost_a_replica() -> None:
    replicas = HttpReplicas([LOST], [FULL], [FULL], [START, b"whole"])
    assert await read_http(repeating(replicas)) == [START, b"whole"]
    refused = HttpReplicas([FULL], [START])
    with pytest.raises(ApiError, match="too many requests"):
        await read_http(repeating(refused))
    assert refused.calls == 1


async def test_progress_of_a_v1_answer_is_told_and_is_no_part_of_it() -> None:
    told: list[HttpProgress] = []
    replicas = HttpReplicas([HttpProgress(5, 0), DEAD], [HttpProgress(5, 0), START, HttpProgress(5, 2), b"whole"])
    loop = asyncio.get_running_loop()
    stream = RepeatingStream(replicas.call, loop.time() + 900, loop.time, on_progress=told.append)
    assert await read_http(stream) == [START, b"whole"]
    assert told == [HttpProgress(5, 0), HttpProgress(5, 0), HttpProgress(5, 2)]


async def test_what_each_replica_of_a_v1_answer_did_is_known_until_the_stream_is_closed() -> None:
    lost, now, unread = HttpProgress(5, 1, 0.5), HttpProgress(5, 2, 0.25), HttpProgress(5, 9, 1.0)
    loop = asyncio.get_running_loop()
    replicas = HttpReplicas([lost, DEAD], [now, START, b"x", unread, b"y", Wait(60)])
    stream = RepeatingStream(replicas.call, loop.time() + 900, loop.time)
    while await stream.get(60) != b"x":
        pass
    assert (stream.earlier, stream.progress) == ([lost], now)
    await asyncio.sleep(3)
    await stream.aclose()
    # What has arrived and nobody read counts, and what is estimated since goes on from what was read: not both.
    await stream.aclose()
    assert (stream.read, stream.progress) == (now, unread)


async def test_progress_keeps_nobody_from_looking_at_the_clock() -> None:
    script = [each for tokens in range(100) for each in (HttpProgress(5, tokens), Wait(0.25))]
    stream = repeating(HttpReplicas(script))
    began_s = asyncio.get_running_loop().time()
    assert await stream.get(2.0) is TICK
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(2.0, abs=0.01)
    await stream.aclose()
