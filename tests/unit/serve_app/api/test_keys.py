"""Keys at the ingress: who gets in, in whose form others are refused, and what a key may do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import anthropic
import httpx
import openai
import pytest

from cluster.observability import series
from router.agent.bounds import Case
from router.agent.leaving import Leaving
from router.agent.metering import Meter
from router.agent.settings import AgentSettings
from serve_app.api.agent import Advisor
from serve_app.api.request_record import RequestRecord
from serve_app.auth.key_file import write_keys
from serve_app.auth.keys import KeyList, KeyScope, NewKey, make_key, utc_now
from serve_app.fairness.claims import ANYBODY, Claim
from tests.support.app_config import app_config
from tests.support.local_ingress import LocalIngress
from tests.support.real_loops import REAL_LOOPS

ASK = {"prompt": "Hi", "max_tokens": 2}
CHAT: dict[str, Any] = {"model": "eco", "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}]}
DRAFTS = "/api/tiers/eco/drafts"
OPEN = ("/", "/web/main.js", "/healthz", "/readyz", "/health", "/ping")
NEED_A_KEY = (
    "/v1/models",
    "/v1/models/eco",
    "/v1/responses/r1",
    "/api/tiers",
    "/api/decisions/d1",
    "/metrics",
    "/version",
)
POSTS: dict[str, Any] = {
    "/api/inference": ASK,
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "eco", "prompt": "Hi"},
    "/v1/responses": {"model": "eco", "input": "Hi"},
    "/v1/messages": CHAT,
    "/v1/messages/count_tokens": CHAT,
    DRAFTS: {"drafts": "auto"},
}


class Locked:
    """The ingress with keys."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **auth: Any) -> None:
        self.path = folder / "keys.json"
        self._made: list[NewKey] = []
        self.infer, self.other, self.admin = self.make("alice"), self.make("bob"), self.make("root", "admin")
        self.ingress = LocalIngress(app_config(auth={"mode": "keys", "keys_file": str(self.path), **auth}), monkeypatch)

    def make(self, name: str, scope: KeyScope = "infer", *, external_reasoning: bool = True) -> NewKey:
        made = make_key(name, scope, utc_now(), external_reasoning=external_reasoning)
        self._made.append(made)
        write_keys(self.path, KeyList(version=1, keys=tuple(each.key for each in self._made)))
        return made

    async def ask(self, method: str, path: str, body: Any = None, key: str | None = None) -> httpx.Response:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        async with self.ingress.http() as http:
            return await http.request(method, path, json=body, headers=headers)


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Locked:
    return Locked(tmp_path, monkeypatch)


def wrong_keys(locked: Locked) -> Iterator[str | None]:
    yield from (None, "none", locked.infer.secret[:-1], make_key("alice", "infer", utc_now()).secret)
    revoked = locked.infer.key.model_copy(update={"revoked_at": utc_now()})
    write_keys(locked.path, KeyList(version=1, keys=(revoked,)))
    keys = locked.ingress.ingress._keys
    assert keys is not None
    keys._take(locked.path.read_bytes())
    yield locked.infer.secret


@pytest.mark.parametrize("path", [*POSTS, *NEED_A_KEY])
async def test_without_a_valid_key_every_refusal_is_the_same_401(path: str, locked: Locked) -> None:
    method = "POST" if path in POSTS else "GET"
    answers = [await locked.ask(method, path, POSTS.get(path), key) for key in wrong_keys(locked)]
    assert [answer.status_code for answer in answers] == [401] * 5
    assert {answer.headers["www-authenticate"] for answer in answers} == {"Bearer"}
    bodies = [answer.json() for answer in answers]
    for body in bodies:
        assert body["error"].pop("request_id")
        body.pop("request_id", None)
    assert all(body == bodies[0] for body in bodies)
    assert bodies[0]["error"]["code"] == "unauthorized"
    assert bodies[0]["error"]["retryable"] is False


async def test_the_page_and_what_tells_of_health_are_open_with_any_key_and_none(locked: Locked) -> None:
    for path in OPEN:
        for key in (None, "none", locked.infer.secret):
            assert (await locked.ask("GET", path, key=key)).status_code == 200, path


@pytest.mark.parametrize("path", [path for path in POSTS if path != DRAFTS])
async def test_a_key_that_may_infer_may_ask_on_every_route(path: str, locked: Locked) -> None:
    assert (await locked.ask("POST", path, POSTS[path], locked.infer.secret)).status_code == 200


@pytest.mark.parametrize("header", ["authorization: Bearer {}", "authorization: bearer  {}", "x-api-key: {}"])
async def test_a_key_comes_as_either_sdk_sends_it(header: str, locked: Locked) -> None:
    name, _, value = header.format(locked.infer.secret).partition(": ")
    async with locked.ingress.http() as http:
        assert (await http.get("/v1/models", headers={name: value})).status_code == 200


async def test_another_scheme_of_authorization_leaves_the_word_to_x_api_key(locked: Locked) -> None:
    headers = {"authorization": "Basic dTpw", "x-api-key": locked.infer.secret}
    async with locked.ingress.http() as http:
        assert (await http.get("/v1/models", headers=headers)).status_code == 200
        headers["authorization"] = "Bearer none"
        assert (await http.get("/v1/models", headers=headers)).status_code == 401


@REAL_LOOPS
async def test_openais_sdk_gets_in_with_its_key_and_reads_the_refusals(locked: Locked) -> None:
    async def ask(key: str) -> None:
        http = locked.ingress.sdk_http()
        async with openai.AsyncOpenAI(
            base_url="http://localhost/v1", api_key=key, max_retries=0, http_client=http
        ) as client:
            await client.chat.completions.create(**CHAT)

    await ask(locked.infer.secret)
    with pytest.raises(openai.AuthenticationError) as error:
        await ask("none")
    assert (error.value.code, error.value.type) == ("unauthorized", "invalid_request_error")


@REAL_LOOPS
@pytest.mark.parametrize("sent_as", ["api_key", "auth_token"])
async def test_anthropics_sdk_gets_in_with_its_key_and_reads_the_refusals(sent_as: str, locked: Locked) -> None:
    async def ask(key: str) -> None:
        http = locked.ingress.sdk_http()
        given: dict[str, Any] = {"api_key": None, "auth_token": None, sent_as: key}
        async with anthropic.AsyncAnthropic(
            base_url="http://localhost", max_retries=0, http_client=http, **given
        ) as client:
            await client.messages.create(**CHAT)

    await ask(locked.infer.secret)
    with pytest.raises(anthropic.AuthenticationError) as error:
        await ask("none")
    body: Any = error.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "authentication_error")


async def test_only_an_admin_may_set_who_drafts(locked: Locked) -> None:
    refused = await locked.ask("POST", DRAFTS, {"drafts": "auto"}, locked.infer.secret)
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "forbidden"
    assert refused.json()["error"]["message"] == (
        f"this needs a key with the scope admin; key {locked.infer.key.id} has infer"
    )
    allowed = await locked.ask("POST", DRAFTS, {"drafts": "auto"}, locked.admin.secret)
    assert allowed.json()["error"]["code"] == "no_choice", "it went on to the tier, whose entry drafts in one way"


async def test_a_decision_is_seen_by_the_key_that_asked_and_by_an_admin(locked: Locked) -> None:
    asked = await locked.ask("POST", "/v1/chat/completions", CHAT, locked.infer.secret)
    path = f"/api/decisions/{asked.headers['x-power-lever-decision']}"
    own = await locked.ask("GET", path, key=locked.infer.secret)
    assert own.status_code == 200
    assert own.json()["key"] == locked.infer.key.id
    assert (await locked.ask("GET", path, key=locked.admin.secret)).json() == own.json()
    others = await locked.ask("GET", path, key=locked.other.secret)
    assert others.status_code == 404
    assert "decisions are kept for an hour" in others.json()["error"]["message"]


async def test_the_log_has_the_keys_id_and_name_and_never_the_key(locked: Locked) -> None:
    await locked.ask("POST", "/api/inference", ASK, locked.infer.secret)
    await asyncio.sleep(0)
    (line,) = logged(locked, "requests")
    assert (line["key"], line["key_name"], line["outcome"]) == (locked.infer.key.id, "alice", "ok")
    assert locked.infer.secret not in json.dumps(line)


def logged(locked: Locked, name: str) -> list[dict[str, Any]]:
    """The lines of a log, `requests` or `refused`."""
    files = locked.ingress.log_folder.glob(f"{name}_*.jsonl")
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.mark.parametrize("key", [None, "none"])
async def test_whoever_has_no_key_is_in_a_log_of_its_own_from_which_no_bill_is_made(
    key: str | None, locked: Locked
) -> None:
    answer = await locked.ask("POST", "/v1/messages", CHAT, key)
    assert logged(locked, "requests") == []
    (line,) = logged(locked, "refused")
    assert datetime.fromisoformat(line.pop("time")).tzinfo is not None
    assert line == {
        **{"request_id": answer.headers["x-request-id"], "route": "/v1/messages", "client": "127.0.0.1"},
        "outcome": "unauthorized",
    }


async def test_a_flood_without_a_key_pushes_no_line_out_and_fills_ten_megabytes_at_most(locked: Locked) -> None:
    await locked.ask("POST", "/api/inference", ASK, locked.infer.secret)
    record = RequestRecord("/v1/messages", code="unauthorized", request_id="x" * 128, stranger=True)
    for _ in range(60_000):
        locked.ingress.ingress._log.ended(record)
    (kept,) = logged(locked, "requests")
    assert kept["outcome"] == "ok"
    sizes = [file.stat().st_size for file in locked.ingress.log_folder.glob("refused_*")]
    assert len(sizes) == 2
    assert sum(sizes) < 10_000_000


async def test_whoever_has_no_key_counts_in_the_metrics(locked: Locked) -> None:
    await locked.ask("POST", "/api/inference", ASK, "none")
    ((labels, count),) = locked.ingress.meter.counters[series.REQUESTS.name].items()
    assert (labels[series.REQUESTS.labels.index("code")], count) == ("unauthorized", 1)


async def refused_by_the_door(locked: Locked, key: str | None) -> httpx.Response:
    headers = {"host": "evil.example"} | ({} if key is None else {"authorization": f"Bearer {key}"})
    async with locked.ingress.http() as http:
        return await http.post("/v1/messages", json=CHAT, headers=headers)


async def refused_by_the_limit(locked: Locked, key: str | None) -> httpx.Response:
    locked.ingress.ingress._open._limit = 0
    return await locked.ask("POST", "/v1/messages", CHAT, key)


async def refused_by_the_drain(locked: Locked, key: str | None) -> httpx.Response:
    locked.ingress.ingress._open.draining = True
    return await locked.ask("POST", "/v1/messages", CHAT, key)


Refused = Callable[[Locked, str | None], Awaitable[httpx.Response]]
REFUSALS: list[tuple[Refused, str]] = [
    (refused_by_the_door, "host_not_allowed"),
    (refused_by_the_limit, "overloaded"),
    (refused_by_the_drain, "stopping"),
]


@pytest.mark.parametrize(("refused", "code"), REFUSALS)
async def test_what_is_refused_before_its_route_has_its_key_and_its_id_in_the_log(
    refused: Refused, code: str, locked: Locked
) -> None:
    answer = await refused(locked, locked.infer.secret)
    (line,) = logged(locked, "requests")
    assert (line["outcome"], line["key"], line["key_name"]) == (code, locked.infer.key.id, "alice")
    assert line["request_id"] == answer.headers["x-request-id"] == answer.json()["request_id"]
    assert logged(locked, "refused") == []


@pytest.mark.parametrize(("refused", "code"), REFUSALS)
async def test_so_are_strangers_that_are_refused_before_their_route(
    refused: Refused, code: str, locked: Locked
) -> None:
    answer = await refused(locked, "none")
    (line,) = logged(locked, "refused")
    assert (line["outcome"], line["request_id"]) == (code, answer.headers["x-request-id"])
    assert logged(locked, "requests") == []


async def test_without_keys_only_those_whom_the_front_door_refuses_are_strangers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ingress = LocalIngress(app_config(), monkeypatch)
    await ingress.post("/v1/messages", CHAT, {"host": "evil.example"})
    await ingress.post("/v1/messages", {"bad": 1})
    outcomes = {
        file.name: [json.loads(line)["outcome"] for line in file.read_text().splitlines()]
        for file in ingress.log_folder.iterdir()
    }
    assert outcomes == {
        "refused_replica-1.jsonl": ["host_not_allowed"],
        "requests_replica-1.jsonl": ["invalid_request"],
    }


@pytest.mark.parametrize("priority", ["normal", "batch"])
async def test_every_request_for_an_engine_is_in_the_name_of_its_key_and_shares_no_cache_with_others(
    priority: str, locked: Locked
) -> None:
    for path in POSTS.keys() - {DRAFTS}:
        answer = await locked.ask("POST", path, POSTS[path] | {"priority": priority}, locked.infer.secret)
        assert answer.status_code == 200, (path, answer.text)
    tiers = locked.ingress.tiers
    claims = [request.claim for _, request in tiers.asked] + [call.claim for call in tiers.called]
    assert len(claims) == 6
    assert set(claims) == {Claim("alice", priority == "batch", locked.infer.key.id)}


async def test_a_rotated_key_counts_as_the_same_user_and_not_as_the_same_cache(locked: Locked) -> None:
    rotated = locked.make("alice")
    keys = locked.ingress.ingress._keys
    assert keys is not None
    keys._take(locked.path.read_bytes())
    for key in (locked.infer, rotated):
        assert (await locked.ask("POST", "/api/inference", ASK, key.secret)).status_code == 200
    old, new = (request.claim for _, request in locked.ingress.tiers.asked)
    assert (old.tenant, new.tenant) == ("alice", "alice")
    assert (old.cache_salt, new.cache_salt) == (locked.infer.key.id, rotated.key.id)


async def test_caches_are_shared_where_the_operator_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Locked(tmp_path, monkeypatch, separate_caches=False)
    await shared.ask("POST", "/api/inference", ASK, shared.infer.secret)
    [(_, request)] = shared.ingress.tiers.asked
    assert request.claim == Claim("alice")


async def test_a_key_that_refuses_is_told_that_nothing_leaves_and_gets_the_routers_own_reason(locked: Locked) -> None:
    asked: list[str] = []

    class Explainer:
        async def explain(self, case: Case, meter: Meter) -> str:
            asked.append(case.request.prompt or "")
            return "Because."

    stays = locked.make("carol", external_reasoning=False)
    ingress = locked.ingress.ingress
    assert ingress._keys is not None
    ingress._keys._take(locked.path.read_bytes())  # not in a thread: time is virtual here
    ingress._leaving = Leaving.of(AgentSettings(), "single_shot", {})
    ingress._advisor = Advisor("single_shot", AgentSettings(), explainer=cast(Any, Explainer()))
    for key, words in ((stays, "heuristic"), (locked.infer, "claude")):
        async with locked.ingress.http() as http:
            headers = {"x-api-key": key.secret}
            answer = await http.post("/api/inference", json=ASK | {"prompt": key.key.name}, headers=headers)
            view = (await http.get("/api/tiers", headers=headers)).json()
            chat = await http.post("/v1/chat/completions", json=CHAT, headers=headers)
        assert f'"source":"{words}"' in answer.text
        assert (view["leaves_cluster"] is None) == (key is stays)
        assert chat.status_code == 200
    assert asked == ["alice"]


async def test_before_the_keys_file_was_readable_nobody_gets_in_and_readiness_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = app_config(auth={"mode": "keys", "keys_file": str(tmp_path / "none.json")})
    ingress = LocalIngress(config, monkeypatch)
    async with ingress.http() as http:
        asked = await http.post(
            "/v1/messages", json=CHAT, headers={"x-api-key": make_key("a", "infer", utc_now()).secret}
        )
        ready = await http.get("/readyz")
        assert (await http.get("/healthz")).status_code == 200
    assert (asked.status_code, asked.json()["error"]["code"]) == (503, "keys_unavailable")
    assert asked.headers["retry-after"] == "5"
    assert str(tmp_path) not in asked.text
    assert (ready.status_code, ready.json()["status"]) == (503, "no keys file")


async def test_why_something_fails_is_for_those_who_have_a_key(locked: Locked) -> None:
    locked.ingress.pool.observation = type(locked.ingress.pool.observation)(failing={"eco: reports": "3 failed rounds"})
    assert (await locked.ask("GET", "/healthz")).json() == {"status": "degraded"}
    seen = await locked.ask("GET", "/healthz", key=locked.infer.secret)
    assert seen.json()["failing"] == {"eco: reports": "3 failed rounds"}


async def test_with_keys_off_nobody_is_asked_and_everybody_may_do_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    ingress = LocalIngress(app_config(), monkeypatch)
    async with ingress.http() as http:
        for path in (*OPEN, "/v1/models", "/api/tiers", "/version"):
            assert (await http.get(path)).status_code == 200, path
        assert (await http.post(DRAFTS, json={"drafts": "auto"})).json()["error"]["code"] == "no_choice"
        assert (await http.post("/api/inference", json=ASK)).status_code == 200
        asked = await http.post("/v1/chat/completions", json=CHAT)
        decision = (await http.get(f"/api/decisions/{asked.headers['x-power-lever-decision']}")).json()
    assert decision["key"] is None
    assert [request.claim for _, request in ingress.tiers.asked] == [ANYBODY]
