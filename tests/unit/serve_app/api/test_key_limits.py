"""Limits of keys at the ingress: what counts, what a refusal says, and that it costs nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from router.agent.bounds import Case
from router.agent.metering import Meter, Usage
from router.agent.result import AgentChoice, AgentFallback
from router.agent.settings import AgentSettings
from router.trace_steps import TraceStep
from serve_app.admission.key_limits import HELD_RETRY_S, Permit, duration
from serve_app.api.agent import Advisor
from serve_app.auth.key_file import write_keys
from serve_app.auth.keys import NO_LIMITS, Key, KeyLimits, KeyList, NewKey, make_key, utc_now
from serve_app.config import AppConfig
from serve_app.pool.allowance_desk import ANSWER_WITHIN_S
from tests.support.app_config import app_config
from tests.support.local_ingress import LocalIngress
from tests.support.real_loops import REAL_LOOPS

ASK: dict[str, Any] = {"prompt": "Hi", "max_tokens": 2, "mode": "manual", "power": 10}
CHAT: dict[str, Any] = {"model": "eco", "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}]}
POSTS: dict[str, Any] = {
    "/api/inference": ASK,
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "eco", "prompt": "Hi", "max_tokens": 2},
    "/v1/responses": {"model": "eco", "input": "Hi", "max_output_tokens": 2},
    "/v1/messages": CHAT,
    "/v1/messages/count_tokens": CHAT,
}
READS = ("/", "/healthz", "/readyz", "/health", "/metrics", "/v1/models", "/v1/models/eco", "/api/tiers", "/version")


class Limited:
    """The ingress with keys, of which alice has limits."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = folder / "keys.json"
        self._monkeypatch = monkeypatch

    def start(self, limits: KeyLimits | None, **auth: Any) -> LocalIngress:
        self.alice, self.bob = make_key("alice", "infer", utc_now(), None, limits), make_key("bob", "infer", utc_now())
        write_keys(self.path, KeyList(version=1, keys=(self.alice.key, self.bob.key)))
        config: AppConfig = app_config(auth={"mode": "keys", "keys_file": str(self.path), **auth})
        self.ingress = LocalIngress(config, self._monkeypatch)
        return self.ingress

    async def ask(self, path: str, body: Any = None, key: NewKey | None = None) -> httpx.Response:
        headers = {"authorization": f"Bearer {(key or self.alice).secret}"}
        async with self.ingress.http() as http:
            return await http.post(path, json=POSTS[path] if body is None else body, headers=headers)

    async def read(self, path: str) -> httpx.Response:
        async with self.ingress.http() as http:
            return await http.get(path, headers={"authorization": f"Bearer {self.alice.secret}"})

    async def used(self, limit: str) -> float:
        """What counts of alice's limit, as the pool knows it once the replica has said all."""
        desk = self.ingress.ingress._desk
        await desk._ask()
        return next((one.used(desk.now_s()) for account, one in desk._allowances.items() if account.limit == limit), 0)

    async def held(self) -> float:
        return sum(one.held for one in self.ingress.ingress._desk._allowances.values())


@pytest.fixture
def limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Limited:
    return Limited(tmp_path, monkeypatch)


@pytest.mark.parametrize("path", POSTS)
async def test_every_route_counts_requests_and_refuses_them_in_its_own_form(path: str, limited: Limited) -> None:
    limited.start(KeyLimits(requests_per_minute=2))
    assert [(await limited.ask(path)).status_code for _ in range(3)] == [200, 200, 429]
    refused = await limited.ask(path)
    error = refused.json()["error"]
    assert (error["code"], error["type"], error["retryable"]) == ("rate_limit_exceeded", "rate_limit_error", True)
    retry_s = int(refused.headers["retry-after"])
    assert 60 <= retry_s <= 62
    assert error["message"] == (
        f"key alice may send 2 requests in any minute (requests_per_minute) and has sent 2: try again in {retry_s} s"
    )
    if path.startswith("/v1/messages"):
        assert refused.json()["type"] == "error"
    assert (await limited.ask(path, key=limited.bob)).status_code == 200


async def test_who_waits_as_long_as_retry_after_says_is_let_in(limited: Limited) -> None:
    limited.start(KeyLimits(requests_per_minute=2))
    await limited.ask("/api/inference")
    await asyncio.sleep(20.3)
    await limited.ask("/api/inference")
    for _ in range(3):
        refused = await limited.ask("/api/inference")
        assert refused.status_code == 429
        await asyncio.sleep(int(refused.headers["retry-after"]))
        assert (await limited.ask("/api/inference")).status_code == 200


async def test_a_refused_request_costs_nothing(limited: Limited) -> None:
    limited.start(KeyLimits(requests_per_minute=1, tokens_per_minute=1000, max_concurrent=5))
    await limited.ask("/v1/chat/completions")
    taken = await limited.used("tokens_per_minute")
    for _ in range(50):
        assert (await limited.ask("/v1/chat/completions")).status_code == 429
    assert await limited.used("requests_per_minute") == 1
    assert await limited.used("tokens_per_minute") == taken
    assert await limited.held() == 0
    await asyncio.sleep(62)
    assert (await limited.ask("/v1/chat/completions")).status_code == 200


async def test_what_only_reads_is_not_limited(limited: Limited) -> None:
    limited.start(KeyLimits(requests_per_minute=1))
    await limited.ask("/api/inference")
    reads = {path: (await limited.read(path)).status_code for path in READS if path != "/metrics"}
    assert set(reads.values()) == {200}, reads


async def test_a_limited_key_cannot_have_a_body_read(limited: Limited) -> None:
    limited.start(KeyLimits(requests_per_minute=1))
    await limited.ask("/api/inference")
    read = 0

    async def body() -> Any:
        nonlocal read
        while True:
            read += 1
            yield b" " * 1000

    async with limited.ingress.http() as http:
        headers = {"authorization": f"Bearer {limited.alice.secret}", "content-type": "application/json"}
        refused = await http.post("/api/inference", content=body(), headers=headers)
    assert (refused.status_code, read) == (429, 0)


async def test_a_wrong_body_counts_as_a_request(limited: Limited) -> None:
    limited.start(KeyLimits(requests_per_minute=1))
    assert (await limited.ask("/api/inference", {"prompt": 5})).status_code == 422
    assert (await limited.ask("/api/inference")).status_code == 429


# --- tokens ---


async def test_the_tokens_of_whole_answers_count_with_their_prompts_on_every_route(limited: Limited) -> None:
    limited.start(KeyLimits(tokens_per_minute=100_000))
    for path, body in POSTS.items():
        before = await limited.used("tokens_per_minute")
        answer = await limited.ask(path)
        taken = await limited.used("tokens_per_minute") - before
        if path.endswith("count_tokens"):
            assert taken == 0
            continue
        if path == "/api/inference":
            metrics = next(line for line in answer.text.splitlines() if '"prompt_tokens"' in line)
            usage = json.loads(metrics.removeprefix("data: "))["data"]
            assert taken == usage["prompt_tokens"] + usage["completion_tokens"]
        else:
            usage = answer.json()["usage"]
            assert taken == sum(value for name, value in usage.items() if name in PROMPT_AND_COMPLETION)
        assert taken > 2, body


PROMPT_AND_COMPLETION = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")


async def test_when_the_tokens_are_used_up_requests_are_refused(limited: Limited) -> None:
    limited.start(KeyLimits(tokens_per_minute=10))
    answers = [await limited.ask("/v1/completions") for _ in range(20)]
    codes = [answer.status_code for answer in answers]
    let_in = codes.count(200)
    assert codes == [200] * let_in + [429] * (20 - let_in)
    assert 0 < let_in < 10
    assert 10 <= await limited.used("tokens_per_minute") < 20
    assert (
        "may take 10 tokens in any minute (tokens_per_minute) and has taken" in answers[-1].json()["error"]["message"]
    )
    await asyncio.sleep(int(answers[-1].headers["retry-after"]))
    assert (await limited.ask("/v1/completions")).status_code == 200


def slow(path: str, tokens: int, directives: str = "") -> dict[str, Any]:
    """A stream of 10 tokens a second."""
    words = f"stub:rate=10 {directives}"
    if path == "/api/inference":
        return ASK | {"prompt": words, "max_tokens": tokens}
    if path == "/v1/completions":
        return {"model": "eco", "prompt": words, "max_tokens": tokens, "stream": True}
    if path == "/v1/responses":
        return {"model": "eco", "input": words, "max_output_tokens": tokens, "stream": True}
    return CHAT | {"messages": [{"role": "user", "content": words}], "max_tokens": tokens, "stream": True}


ANSWERS = [path for path in POSTS if not path.endswith("count_tokens")]


@pytest.mark.parametrize(
    ("path", "stream"), [*((path, True) for path in ANSWERS), *((path, False) for path in ANSWERS[1:])]
)
async def test_what_was_taken_counts_also_if_the_client_leaves(path: str, stream: bool, limited: Limited) -> None:
    limited.start(KeyLimits(tokens_per_minute=100_000, max_concurrent=5))
    body = slow(path, 200) | ({} if path == "/api/inference" else {"stream": stream})
    asking = asyncio.ensure_future(limited.ask(path, body))
    await asyncio.sleep(10)
    assert 90 <= await limited.used("tokens_per_minute") <= 110
    asking.cancel()
    await asyncio.wait({asking})
    await asyncio.sleep(5)
    assert 90 <= await limited.used("tokens_per_minute") <= 112
    assert await limited.held() == 0


@pytest.mark.parametrize("path", ANSWERS)
async def test_what_was_taken_counts_also_if_the_stream_fails(path: str, limited: Limited) -> None:
    limited.start(KeyLimits(tokens_per_minute=100_000, max_concurrent=5))
    answer = await limited.ask(path, slow(path, 200, "stub:fail=30"))
    assert "error" in answer.text
    assert 30 <= await limited.used("tokens_per_minute") <= 40
    assert await limited.held() == 0


async def test_tokens_count_while_the_stream_goes_on(limited: Limited) -> None:
    limited.start(KeyLimits(tokens_per_minute=1000))
    asking = asyncio.ensure_future(limited.ask("/api/inference", slow("/api/inference", 200)))
    counts = []
    for _ in range(3):
        await asyncio.sleep(5)
        counts.append(await limited.used("tokens_per_minute"))
    assert counts == sorted(set(counts))
    assert counts[0] > 40
    await asking


async def test_many_at_once_do_not_exceed_the_limit_far(limited: Limited) -> None:
    limited.start(KeyLimits(tokens_per_minute=1000))
    path = "/v1/chat/completions"
    answers = await asyncio.gather(*(limited.ask(path, slow(path, 200)) for _ in range(40)))
    let_in = [answer.status_code for answer in answers].count(200)
    assert let_in == 5  # of 200 tokens and a short prompt: the fifth gets the rest
    assert await limited.used("tokens_per_minute") <= 1000 + 5 * 20
    assert {answer.status_code for answer in answers} == {200, 429}


async def test_what_an_answer_did_not_take_of_its_estimate_is_there_for_the_next(limited: Limited) -> None:
    limited.start(KeyLimits(tokens_per_minute=1000))
    path = "/v1/chat/completions"
    for _ in range(10):  # each holds all that is left while it is open
        answer = await limited.ask(path, slow(path, 900, "stub:tokens=5") | {"stream": False})
        assert answer.status_code == 200
    assert await limited.used("tokens_per_minute") < 200


# --- slots ---


async def test_no_more_are_open_than_may_be_and_a_slot_is_free_when_a_stream_ends_or_is_left(limited: Limited) -> None:
    limited.start(KeyLimits(max_concurrent=2))
    path = "/api/inference"
    first, second = (asyncio.ensure_future(limited.ask(path, slow(path, tokens))) for tokens in (50, 100))
    await asyncio.sleep(1)
    refused = await limited.ask(path)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, str(HELD_RETRY_S))
    assert (
        "may have 2 requests open at a time (max_concurrent) and has 2: try again in 2 s"
        in refused.json()["error"]["message"]
    )
    await first
    assert (await limited.ask(path)).status_code == 200
    second.cancel()
    await asyncio.wait({second})
    both = await asyncio.gather(limited.ask(path), limited.ask(path))
    assert [answer.status_code for answer in both] == [200, 200]


# --- what is said ---


async def test_every_answer_tells_of_the_limits_in_openais_headers(limited: Limited) -> None:
    limited.start(KeyLimits(requests_per_minute=10, tokens_per_minute=1000))
    for number in range(3):
        answer = await limited.ask("/v1/chat/completions")
        assert answer.headers["x-ratelimit-limit-requests"] == "10"
        assert answer.headers["x-ratelimit-remaining-requests"] == str(9 - number)
        assert answer.headers["x-ratelimit-reset-requests"] in ("1m0s", "1m1s")
        assert answer.headers["x-ratelimit-limit-tokens"] == "1000"
        assert 900 < int(answer.headers["x-ratelimit-remaining-tokens"]) < 1000
        assert not any(name.startswith("anthropic") for name in answer.headers)
    wrong = await limited.ask("/v1/chat/completions", {"model": 5})
    assert (wrong.status_code, wrong.headers["x-ratelimit-remaining-requests"]) == (400, "6")


async def test_messages_have_anthropics_headers_too(limited: Limited) -> None:
    limited.start(KeyLimits(requests_per_minute=10))
    headers = (await limited.ask("/v1/messages")).headers
    assert headers["anthropic-ratelimit-requests-limit"] == "10"
    assert headers["anthropic-ratelimit-requests-remaining"] == "9"
    assert headers["anthropic-ratelimit-requests-reset"].endswith("Z")
    assert headers["x-ratelimit-remaining-requests"] == "9"


async def test_a_key_without_limits_gets_no_such_header(limited: Limited) -> None:
    limited.start(None)
    answer = await limited.ask("/v1/chat/completions")
    assert not [name for name in answer.headers if "ratelimit" in name]


async def test_a_web_page_of_an_allowed_origin_may_read_them(limited: Limited) -> None:
    limited.start(KeyLimits(requests_per_minute=1), allowed_origins=["https://chat.example"])
    headers = {"authorization": f"Bearer {limited.alice.secret}", "origin": "https://chat.example"}
    async with limited.ingress.http() as http:
        await http.post("/api/inference", json=ASK, headers=headers)
        refused = await http.post("/api/inference", json=ASK, headers=headers)
    assert refused.status_code == 429
    exposed = refused.headers["access-control-expose-headers"].lower()
    assert [name for name in refused.headers if "ratelimit" in name or name == "retry-after"]
    assert all(name in exposed for name in refused.headers if "ratelimit" in name or name == "retry-after")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0ms"), (0.12, "120ms"), (1, "1s"), (59.2, "1m0s"), (60, "1m0s"), (360, "6m0s"), (3600, "1h0m0s")],
)
def test_a_time_is_written_as_openai_writes_it(seconds: float, said: str) -> None:
    assert duration(seconds) == said


async def test_a_refusal_is_in_the_log_and_the_metrics_by_its_code(limited: Limited) -> None:
    ingress = limited.start(KeyLimits(requests_per_minute=1))
    await limited.ask("/api/inference")
    await limited.ask("/api/inference")
    await asyncio.sleep(0)
    [log] = ingress.log_folder.glob("requests_*.jsonl")
    line = json.loads(log.read_text().splitlines()[1])
    assert (line["key_name"], line["outcome"], line["tier"]) == ("alice", "rate_limit_exceeded", None)
    assert line["request_id"]
    requests = ingress.meter.counters["power_lever_requests_total"]
    assert requests["/api/inference", "none", "none", "rate_limit_exceeded"] == 1


# --- whose limits ---


async def test_keys_without_limits_of_their_own_have_the_applications(limited: Limited) -> None:
    limited.start(None, default_limits={"requests_per_minute": 1})
    assert [(await limited.ask("/api/inference")).status_code for _ in range(2)] == [200, 429]


async def test_a_key_with_limits_of_its_own_has_no_others(limited: Limited) -> None:
    limited.start(KeyLimits(), default_limits={"requests_per_minute": 1})
    assert [(await limited.ask("/api/inference")).status_code for _ in range(3)] == [200] * 3


async def test_a_changed_limit_counts_at_once_with_what_was_used_before(limited: Limited) -> None:
    ingress = limited.start(KeyLimits(requests_per_minute=2)).ingress
    assert [(await limited.ask("/api/inference")).status_code for _ in range(3)] == [200, 200, 429]
    for limits, codes in ((3, [200, 429]), (1, [429, 429]), (None, [200, 200])):
        changed = limited.alice.key.model_copy(update={"limits": KeyLimits(requests_per_minute=limits)})
        write_keys(limited.path, KeyList(version=1, keys=(changed,)))
        assert ingress._keys is not None
        ingress._keys._take(limited.path.read_bytes())
        assert [(await limited.ask("/api/inference")).status_code for _ in range(2)] == codes


def change(limited: Limited, *keys: Key) -> None:
    """As the replica sees the file within a second."""
    write_keys(limited.path, KeyList(version=1, keys=keys))
    followed = limited.ingress.ingress._keys
    assert followed is not None
    followed._take(limited.path.read_bytes())


def with_limits(key: Key, **limits: int) -> Key:
    return key.model_copy(update={"limits": KeyLimits(**limits)})


@pytest.mark.parametrize("streams", [0, 1, 8])
async def test_a_lowered_limit_counts_while_requests_run_that_came_under_the_old_one(
    streams: int, limited: Limited
) -> None:
    path = "/v1/chat/completions"
    limited.start(KeyLimits(tokens_per_minute=1_000_000)).ingress._desk.work.start()
    await limited.ask(
        path, CHAT | {"max_tokens": 2000, "messages": [{"role": "user", "content": "Hi stub:tokens=1500"}]}
    )
    running = [asyncio.ensure_future(limited.ask(path, slow(path, 400))) for _ in range(streams)]
    await asyncio.sleep(2)
    change(limited, with_limits(limited.alice.key, tokens_per_minute=1000))
    answers = []
    for _ in range(30):
        answers.append(await limited.ask(path))
        await asyncio.sleep(0.1)
    assert [answer.status_code for answer in answers] == [429] * 30
    assert {answer.headers["x-ratelimit-limit-tokens"] for answer in answers} == {"1000"}
    for each in running:
        each.cancel()
    limited.ingress.ingress._desk.work.stop()


async def test_a_running_request_counts_against_a_limit_that_was_set_after_it_came(limited: Limited) -> None:
    path = "/v1/chat/completions"
    limited.start(KeyLimits())
    running = asyncio.ensure_future(limited.ask(path, slow(path, 400)))
    await asyncio.sleep(1)
    change(limited, with_limits(limited.alice.key, tokens_per_minute=1000))
    await asyncio.sleep(10)
    assert 90 <= await limited.used("tokens_per_minute") <= 110
    running.cancel()


async def test_a_raised_limit_counts_at_once_beside_a_running_request(limited: Limited) -> None:
    path = "/v1/chat/completions"
    limited.start(KeyLimits(requests_per_minute=1))
    running = asyncio.ensure_future(limited.ask(path, slow(path, 400)))
    await asyncio.sleep(1)
    assert (await limited.ask(path)).status_code == 429
    change(limited, with_limits(limited.alice.key, requests_per_minute=4))
    assert [(await limited.ask(path)).status_code for _ in range(4)] == [200] * 3 + [429]
    running.cancel()


async def test_two_keys_of_a_name_have_the_smaller_limit_whichever_asks(limited: Limited) -> None:
    limited.start(KeyLimits(requests_per_minute=1000))
    new = make_key("alice", "infer", utc_now(), None, KeyLimits(requests_per_minute=5))
    change(limited, limited.alice.key, new.key)
    answers = [await limited.ask("/v1/chat/completions", key=(limited.alice, new)[turn % 2]) for turn in range(30)]
    assert [answer.status_code for answer in answers] == [200] * 5 + [429] * 25
    assert {answer.headers["x-ratelimit-limit-requests"] for answer in answers} == {"5"}
    change(limited, limited.alice.key, new.key.model_copy(update={"revoked_at": utc_now()}))
    assert (await limited.ask("/v1/chat/completions")).headers["x-ratelimit-remaining-requests"] == "994"


async def test_a_rotated_key_takes_from_the_same_limits_as_the_old_one(limited: Limited) -> None:
    ingress = limited.start(KeyLimits(requests_per_minute=2)).ingress
    new = make_key("alice", "infer", utc_now(), None, limited.alice.key.limits)
    write_keys(limited.path, KeyList(version=1, keys=(limited.alice.key, new.key)))
    assert ingress._keys is not None
    ingress._keys._take(limited.path.read_bytes())
    codes = [(await limited.ask("/api/inference", key=key)).status_code for key in (limited.alice, new, limited.alice)]
    assert codes == [200, 200, 429]


# --- the pool ---


async def test_a_burst_on_a_busy_machine_keeps_to_the_limit_and_is_told_a_true_time(limited: Limited) -> None:
    desk = limited.start(KeyLimits(requests_per_minute=30)).ingress._desk
    there = desk._call

    async def slowly(number: int, statements: Any) -> Any:
        grants = await there(number, statements)
        await asyncio.sleep(2.5)
        return grants

    desk._call = slowly
    answers = await asyncio.gather(*(limited.ask("/v1/messages/count_tokens") for _ in range(200)))
    refused = [answer for answer in answers if answer.status_code == 429]
    assert (len(answers) - len(refused), len(refused)) == (30, 170)
    again_s = {int(answer.headers["retry-after"]) for answer in refused}
    assert again_s <= {60, 61, 62}
    await asyncio.sleep(max(again_s))
    assert (await limited.ask("/v1/messages/count_tokens")).status_code == 200


async def lost(number: int, statements: object) -> Any:
    raise TimeoutError


async def silent(number: int, statements: object) -> Any:
    await asyncio.sleep(1000)


@pytest.mark.parametrize(("call", "waits_s"), [(lost, 0.0), (silent, ANSWER_WITHIN_S)], ids=["fails", "is silent"])
async def test_while_the_pool_is_away_a_replica_lets_its_part_in_and_soon_waits_no_more(
    call: Callable[..., Awaitable[Any]], waits_s: float, limited: Limited
) -> None:
    desk = limited.start(KeyLimits(requests_per_minute=10)).ingress._desk
    desk._replicas = 2
    desk._call = call
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    assert (await limited.ask("/api/inference")).status_code == 200
    assert loop.time() - began_s == pytest.approx(waits_s, abs=0.1)
    await asyncio.sleep(1)
    began_s = loop.time()
    codes = [(await limited.ask("/api/inference")).status_code for _ in range(9)]
    assert codes == [200] * 4 + [429] * 5
    assert loop.time() - began_s < 0.1


async def test_when_the_pool_is_back_it_hears_what_was_used_meanwhile(limited: Limited) -> None:
    ingress = limited.start(KeyLimits(requests_per_minute=10))
    desk, there = ingress.ingress._desk, ingress.ingress._desk._call
    desk._call = lost
    desk.work.start()
    for _ in range(4):
        assert (await limited.ask("/api/inference")).status_code == 200
    desk._call = there
    await asyncio.sleep(10)
    answer = await limited.ask("/v1/chat/completions")
    assert answer.headers["x-ratelimit-remaining-requests"] == "5"
    desk.work.stop()


async def test_two_replicas_share_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = Limited(tmp_path, monkeypatch), Limited(tmp_path, monkeypatch)
    one.start(KeyLimits(requests_per_minute=7, max_concurrent=100))
    other.alice, other.path = one.alice, one.path
    config = app_config(auth={"mode": "keys", "keys_file": str(one.path)})
    other.ingress = LocalIngress(config, monkeypatch)
    shared, loop = one.ingress.allowances, asyncio.get_running_loop

    async def statement(number: int, statements: Any) -> Any:
        return shared.lease("replica-2", number, statements, loop().time())

    other.ingress.ingress._desk._call = statement
    for each in (one, other):
        each.ingress.ingress._desk.work.start()
    answers = []
    for turn in range(20):
        answers.append(await (one, other)[turn % 2].ask("/v1/chat/completions"))
        await asyncio.sleep(0.3)
    assert [answer.status_code for answer in answers] == [200] * 7 + [429] * 13
    assert [int(a.headers["x-ratelimit-remaining-requests"]) for a in answers[:7]] == [6, 5, 4, 3, 2, 1, 0]
    for each in (one, other):
        each.ingress.ingress._desk.work.stop()


async def test_a_client_that_leaves_while_the_pool_is_asked_leaves_nothing_held(limited: Limited) -> None:
    desk = limited.start(KeyLimits(max_concurrent=1)).ingress._desk
    there = desk._call

    async def slowly(number: int, statements: Any) -> Any:
        await asyncio.sleep(0.2)
        return await there(number, statements)

    desk._call = slowly
    for wait_s in (0.0, 0.1, 0.2, 0.2001):
        asking = asyncio.ensure_future(limited.ask("/api/inference", slow("/api/inference", 100)))
        await asyncio.sleep(wait_s)
        asking.cancel()
        await asyncio.wait({asking})
        await asyncio.sleep(1)
        assert await limited.held() == 0
    assert (await limited.ask("/api/inference")).status_code == 200


# --- the agent's money ---


def permit(limited: Limited, usd: float | None, all_usd: float | None) -> Permit:
    desk = limited.ingress.ingress._desk
    limits = NO_LIMITS if usd is None else KeyLimits(agent_usd_per_day=usd)
    return Permit(desk, "alice", lambda: limits, all_usd, utc_now)


async def spent(limited: Limited, usd: float | None, all_usd: float | None, cost: float) -> int:
    """How many requests may use the agent, of which each costs so much and may cost 0.01 USD."""
    for number in range(1000):
        one = permit(limited, usd, all_usd)
        try:
            await one.open_purse(0.01)
        except AgentFallback:
            return number
        one.pay(cost)
        one.close()
    return 1000


@pytest.mark.parametrize(
    ("usd", "all_usd", "cost", "times"),
    [(0.1, None, 0.01, 10), (None, 0.1, 0.01, 10), (0.1, 0.05, 0.01, 5), (0.05, 0.1, 0.001, 41), (0.0, None, 0, 0)],
)
async def test_the_agent_is_asked_while_the_day_has_its_budget_left(
    usd: float | None, all_usd: float | None, cost: float, times: int, limited: Limited
) -> None:
    limited.start(None)
    assert await spent(limited, usd, all_usd, cost) == times


async def test_what_the_agent_may_cost_is_held_while_it_works_and_the_next_day_begins_anew(limited: Limited) -> None:
    limited.start(None)
    first, second = permit(limited, 0.015, None), permit(limited, 0.015, None)
    await first.open_purse(0.01)
    with pytest.raises(AgentFallback, match=r"this key's agent_usd_per_day is 0.015 USD, used or held are 0.01"):
        await second.open_purse(0.01)
    first.pay(0.002)
    await second.open_purse(0.01)
    second.pay(0.01)
    with pytest.raises(AgentFallback):
        await permit(limited, 0.015, None).open_purse(0.01)
    await asyncio.sleep(24 * 3600 + 2)
    await permit(limited, 0.015, None).open_purse(0.01)


class Costly:
    """An agent whose every plan costs 0.005 USD."""

    asked = 0

    async def choose(self, case: Case, meter: Meter, steps: list[TraceStep]) -> AgentChoice:
        self.asked += 1
        meter.charge(Usage(output_tokens=1), 0.005, 1)
        return AgentChoice(tier=case.plan.tier, reason="It is enough.")


async def test_at_the_applications_cap_requests_are_answered_with_the_routers_own_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ingress, costly = LocalIngress(app_config(agent={"usd_per_day": 0.012}), monkeypatch), Costly()
    ingress.ingress._advisor = Advisor("multi_turn", AgentSettings(budget_usd=0.005), chooser=costly)
    for number in range(4):
        answer = await ingress.post("/api/inference", {"prompt": "Hi stub:tokens=3"})
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
        assert events[-1]["type"] == "done"
        [step] = [one["data"]["result"] for one in events if one["type"] == "trace" and one["data"]["step"] == "agent"]
        if number < 2:
            assert "fallback" not in step
        else:
            assert step["fallback"] == "daily_cap"
            assert step["detail"] == (
                "daily cap reached: the application's agent.usd_per_day is 0.012 USD, used or held are 0.01"
            )
    assert costly.asked == 2


# --- the SDKs ---


@asynccontextmanager
async def an_open_request(limited: Limited, path: str) -> AsyncIterator[None]:
    """A request of 1.5 s, of a key that may have one at a time."""
    open_one = asyncio.ensure_future(limited.ask(path, slow(path, 15)))
    await asyncio.sleep(0.3)
    yield
    await open_one


async def waited_s(asking: Awaitable[object]) -> float:
    """How long it takes, s."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await asking
    return loop.time() - began_s


@REAL_LOOPS
async def test_openais_sdk_raises_its_rate_limit_error_and_retries_when_it_is_told(limited: Limited) -> None:
    http = limited.start(KeyLimits(max_concurrent=1)).sdk_http()
    client = openai.AsyncOpenAI(
        base_url="http://localhost/v1", api_key=limited.alice.secret, max_retries=0, http_client=http
    )
    async with client, an_open_request(limited, "/v1/chat/completions"):
        with pytest.raises(openai.RateLimitError) as error:
            await client.chat.completions.create(**CHAT)
        assert (error.value.code, error.value.type) == ("rate_limit_exceeded", "rate_limit_error")
        assert error.value.response.headers["retry-after"] == str(HELD_RETRY_S)
        retrying = client.with_options(max_retries=1)
        assert HELD_RETRY_S <= await waited_s(retrying.chat.completions.create(**CHAT)) < HELD_RETRY_S + 1.5


@REAL_LOOPS
async def test_anthropics_sdk_raises_its_rate_limit_error_and_retries_when_it_is_told(limited: Limited) -> None:
    http = limited.start(KeyLimits(max_concurrent=1)).sdk_http()
    client = anthropic.AsyncAnthropic(
        base_url="http://localhost", api_key=limited.alice.secret, max_retries=0, http_client=http
    )
    async with client, an_open_request(limited, "/v1/messages"):
        with pytest.raises(anthropic.RateLimitError) as error:
            await client.messages.create(**CHAT)
        body: Any = error.value.body
        assert (body["type"], body["error"]["type"]) == ("error", "rate_limit_error")
        retrying = client.with_options(max_retries=1)
        assert HELD_RETRY_S <= await waited_s(retrying.messages.create(**CHAT)) < HELD_RETRY_S + 1.5
