"""The ingress's HTTP without Serve: routes, methods, cross-origin requests, and clients that leave."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from ray import serve
from starlette.types import Message

from router.observation import TierState
from router.registry import TIER_NAMES, TierName
from serve_app.api.ingress import Ingress
from serve_app.config import AppConfig
from serve_app.engine.interface import Engine, GenerationRequest
from serve_app.engine.stream_items import http_items, stream_items
from serve_app.engine.stub import StubEngine
from serve_app.engine.stub_http import stub_app
from serve_app.transport.asgi_call import HttpCall
from serve_app.transport.client import GenerationStream, ResponseStream
from serve_app.transport.stream import LocalStream
from tests.support.app_config import FixedPool, app_config

PAGE = "https://chat.example"
POSTS = (
    "/api/inference",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/api/tiers/eco/drafts",
)
GETS = ("/v1/models", "/v1/models/eco", "/api/tiers", "/healthz", "/health", "/ping", "/version")
BODY = {"model": "eco", "prompt": "Hi"}


@pytest.fixture(autouse=True)
def replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """The context that Serve gives a replica."""
    context = SimpleNamespace(replica_id=SimpleNamespace(unique_id="replica-1"))
    monkeypatch.setattr(serve, "get_replica_context", lambda: context)


class InProcess:
    """The ingress of a config, called without a socket."""

    def __init__(self, config: AppConfig, pool: FixedPool | None = None) -> None:
        self.ingress = ingress = Ingress(config, None, {})
        ingress._pool = pool or FixedPool()
        self.app = ingress.__serve_build_asgi_app__()

    async def ask(self, method: str, path: str, body: object = None, **headers: str) -> httpx.Response:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        content = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else b""
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return await http.request(method, path, content=content, headers=given)


@pytest.fixture
def api() -> InProcess:
    return InProcess(app_config())


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_json_without_its_content_type_is_a_415(api: InProcess, path: str, kind: str) -> None:
    response = await api.ask("POST", path, BODY, **({"content_type": kind} if kind else {}))
    assert response.status_code == 415
    assert response.json()["error"]["code"] == "unsupported_media_type"


async def test_without_cors_origins_no_page_of_another_origin_may_use_the_api(api: InProcess) -> None:
    preflight = await api.ask("OPTIONS", "/api/inference", origin=PAGE, access_control_request_method="POST")
    get = await api.ask("GET", "/v1/models", origin=PAGE)
    assert preflight.status_code == 405
    for response in (preflight, get):
        assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize("listed", [[PAGE], ["*"], ["https://other.example", PAGE]])
async def test_a_page_of_a_listed_origin_may_use_the_api(listed: list[str]) -> None:
    api = InProcess(app_config(auth={"allowed_origins": listed}))
    preflight = await api.ask(
        "OPTIONS",
        "/api/inference",
        origin=PAGE,
        access_control_request_method="POST",
        access_control_request_headers="content-type, authorization, x-request-id",
    )
    assert preflight.status_code == 200
    assert "content-type" in preflight.headers["access-control-allow-headers"].lower()
    for response in (
        preflight,
        await api.ask("GET", "/v1/models", origin=PAGE),
        await api.ask("GET", "/no", origin=PAGE),
    ):
        assert response.headers["access-control-allow-origin"] in (PAGE, "*")
    get = await api.ask("GET", "/v1/models", origin=PAGE)
    exposed = get.headers["access-control-expose-headers"]
    assert all(f"x-power-lever-{name}" in exposed for name in ("tier", "entry", "decision", "spec"))
    assert "x-request-id" in exposed


async def test_a_page_of_an_unlisted_origin_may_not_use_the_api() -> None:
    api = InProcess(app_config(auth={"allowed_origins": [PAGE]}))
    evil = "https://evil.example"
    preflight = await api.ask("OPTIONS", "/api/inference", origin=evil, access_control_request_method="POST")
    assert preflight.status_code == 400
    for response in (preflight, await api.ask("GET", "/v1/models", origin=evil)):
        assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize("path", GETS)
async def test_head_works_wherever_get_does(api: InProcess, path: str) -> None:
    head, get = await api.ask("HEAD", path), await api.ask("GET", path)
    assert head.status_code == get.status_code == 200
    assert head.headers.get("content-type") == get.headers.get("content-type")


async def test_a_wrong_method_is_a_405_that_names_the_allowed_ones(api: InProcess) -> None:
    for path in POSTS:
        response = await api.ask("GET", path)
        assert (response.status_code, response.headers["allow"]) == (405, "POST")
        assert response.json()["error"]["code"] == "method_not_allowed"
    response = await api.ask("DELETE", "/v1/models/eco")
    assert response.status_code == 405
    assert set(response.headers["allow"].replace(" ", "").split(",")) == {"GET", "HEAD"}


async def test_a_404_keeps_the_clients_request_id(api: InProcess) -> None:
    response = await api.ask("GET", "/nope", x_request_id="my-id.7")
    assert response.json()["error"]["request_id"] == "my-id.7"


async def test_each_model_is_listed_and_an_unknown_one_is_a_404_in_openais_form(api: InProcess) -> None:
    models = (await api.ask("GET", "/v1/models")).json()["data"]
    assert [model["id"] for model in models] == ["auto", "eco", "balanced", "performance", "ultra"]
    assert [(await api.ask("GET", f"/v1/models/{model['id']}")).json() for model in models] == models
    for name in ("gpt-4", "org/model"):
        response = await api.ask("GET", f"/v1/models/{name}")
        assert response.status_code == 404
        error = response.json()["error"]
        assert (error["code"], error["type"]) == ("model_not_found", "invalid_request_error")
        assert name in error["message"]


async def test_health_ping_and_version_answer_as_vllms_server(api: InProcess) -> None:
    for method, path in (("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")):
        response = await api.ask(method, path)
        assert (response.status_code, response.content) == (200, b"")
    assert (await api.ask("POST", "/health")).status_code == 405
    assert re.fullmatch(r"0\.32\.\d+", (await api.ask("GET", "/version")).json()["version"])


async def test_health_is_a_503_only_if_no_tier_can_answer() -> None:
    states = {name: TierState(failed=True) for name in TIER_NAMES}
    for path in ("/health", "/ping"):
        down = await InProcess(app_config(), FixedPool(states)).ask("GET", path)
        assert (down.status_code, down.headers["retry-after"]) == (503, "5")
        cold = await InProcess(app_config(), FixedPool({**states, "eco": TierState()})).ask("GET", path)
        assert cold.status_code == 200


@pytest.mark.parametrize("levels", [250, 260, 1000, 1020, 3000])
@pytest.mark.parametrize("path", POSTS)
async def test_deep_nesting_is_a_400(api: InProcess, path: str, levels: int) -> None:
    deep = "[" * levels + "]" * levels
    body = f'{{"model": "eco", "prompt": "x", "messages": [{{"role": "user", "content": "x"}}], "tools": {deep}}}'
    response = await api.ask("POST", path, body.encode(), content_type="application/json")
    assert response.status_code == 400
    assert response.json()["error"]["code"] in ("too_deep", "not_json")


@pytest.mark.parametrize("path", POSTS)
async def test_a_client_that_leaves_in_mid_body_is_a_499(api: InProcess, path: str) -> None:
    messages: list[Message] = [
        {"type": "http.request", "body": b'{"prompt": ', "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": path,
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    await api.app(scope, receive, send)
    assert sent[0]["status"] == 499


# --- prompts that an engine refuses ---


class StubTiers:
    """The tiers' engines in this process; a stub counts a word as a token."""

    def __init__(self, config: AppConfig, broken: tuple[TierName, ...] = ()) -> None:
        self.config = config
        self.broken = broken
        self.called: list[TierName] = []

    def generate(self, tier: TierName, request: GenerationRequest) -> GenerationStream:
        return LocalStream(self.unavailable(tier) or stream_items(self.engine(tier), request))

    def wake(self, tier: TierName) -> Any:
        raise AssertionError("no answer here needs a stronger tier")

    def http(self, tier: TierName, call: HttpCall) -> ResponseStream:
        engine = self.engine(tier)
        return LocalStream(
            self.unavailable(tier) or http_items(cast(Engine, engine), stub_app(engine, engine.entry), call)
        )

    def engine(self, tier: TierName) -> StubEngine:
        return StubEngine(self.config.entry(tier, None), 1000.0)

    def unavailable(self, tier: TierName) -> Any:
        """What `TierClient` does when Serve has given a tier up before the pool has seen it."""
        self.called.append(tier)

        async def failing() -> AsyncGenerator[Any, None]:
            for item in list[Any]():
                yield item
            raise FixedPool({tier: TierState(reason="its node is gone")}).unavailable(tier)

        return failing() if tier in self.broken else None


def with_contexts(**contexts: int) -> AppConfig:
    chains = {name: [{"name": "only", "target": "small", "max_model_len": size}] for name, size in contexts.items()}
    return app_config(tiers={name: {"chain": chain} for name, chain in chains.items()})


LONG = "a " * 3000
"""So many words, of which the router estimates that they are fewer tokens."""
ROUTES: dict[str, dict[str, Any]] = {
    "/api/inference": {"prompt": LONG},
    "/v1/completions": {"prompt": LONG},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": LONG}], "stream": True},
    "/v1/responses": {"input": LONG},
    "/v1/messages": {"messages": [{"role": "user", "content": LONG}], "max_tokens": 20},
}


async def asked(
    config: AppConfig, path: str, broken: tuple[TierName, ...] = (), **body: Any
) -> tuple[httpx.Response, list[TierName]]:
    """The answer to a request, and the tiers that were called for it."""
    api = InProcess(config, FixedPool({name: TierState(running=1) for name in TIER_NAMES}))
    tiers = StubTiers(config, broken)
    api.ingress._tiers = tiers  # type: ignore[assignment]
    body = {**ROUTES[path], **body}
    return await api.ask("POST", path, body, content_type="application/json"), tiers.called


@pytest.mark.parametrize("path", ROUTES)
async def test_a_prompt_that_the_engine_counts_longer_goes_to_a_tier_with_more_room(path: str) -> None:
    config = with_contexts(eco=2600, balanced=2600, performance=2600, ultra=4096)
    response, called = await asked(config, path)
    assert (response.status_code, called[1:]) == (200, ["ultra"])
    assert called[0] != "ultra"
    assert response.headers["x-power-lever-tier"] == "ultra"
    assert response.headers["x-power-lever-entry"] == config.tiers["ultra"].chain[0].name
    if path == "/api/inference":
        assert '"tier":"ultra"' in response.text
        assert "3002 prompt tokens" in response.text
    else:
        assert "error" not in response.text


@pytest.mark.parametrize("path", ROUTES)
async def test_a_tier_that_turns_out_to_be_gone_is_replaced_by_another(path: str) -> None:
    config = with_contexts(eco=8192, balanced=8192, performance=8192, ultra=8192)
    _, [wanted] = await asked(config, path)
    response, called = await asked(config, path, broken=(wanted,))
    assert (response.status_code, called[0], len(called)) == (200, wanted, 2)
    assert called[1] != wanted


@pytest.mark.parametrize("path", ROUTES)
async def test_if_all_tiers_turn_out_to_be_gone_each_is_tried_once_and_the_last_says_why(path: str) -> None:
    config = with_contexts(eco=8192, balanced=8192, performance=8192, ultra=8192)
    response, called = await asked(config, path, broken=TIER_NAMES)
    assert response.status_code == 503
    assert "its node is gone" in response.json()["error"]["message"]
    assert set(called) == set(TIER_NAMES)
    assert len(called) == len(TIER_NAMES) + 1  # that none can start is known when the nearest has been asked again


@pytest.mark.parametrize("path", ROUTES)
async def test_if_no_tier_has_more_room_the_error_says_which_comes_nearest(path: str) -> None:
    response, called = await asked(with_contexts(eco=2600, balanced=2600, performance=2600, ultra=2700), path)
    error = response.json()["error"]
    assert (response.status_code, error["code"], len(called)) == (400, "prompt_too_long", 2)
    assert "3002 prompt tokens" in error["message"]
    assert error["message"].endswith("in tier ultra, which comes nearest")


@pytest.mark.parametrize("path", ROUTES)
async def test_in_manual_mode_no_other_tier_is_tried(path: str) -> None:
    response, called = await asked(with_contexts(eco=2600), path, mode="manual", power=0)
    assert (response.status_code, called) == (400, ["eco"])


FOREIGN = "https://evil.example"


@pytest.mark.parametrize("path", POSTS)
async def test_a_page_of_another_origin_gets_a_403_on_every_post(api: InProcess, path: str) -> None:
    response = await api.ask("POST", path, BODY, content_type="application/json", origin=FOREIGN)
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "origin_not_allowed"
    assert response.json()["error"]["message"].startswith(f"Origin: got '{FOREIGN}', allowed are this host and ")


@pytest.mark.parametrize("path", [*POSTS, *GETS])
async def test_a_name_that_is_not_ours_gets_a_421_on_every_route(api: InProcess, path: str) -> None:
    method = "POST" if path in POSTS else "GET"
    response = await api.ask(method, path, BODY if path in POSTS else None, host="evil.example:8000")
    assert response.status_code == 421
    assert response.json()["error"]["code"] == "host_not_allowed"
    assert response.json()["error"]["message"].startswith("Host: got 'evil.example:8000', allowed are localhost, ")


async def test_the_refusals_have_anthropics_form_on_its_routes(api: InProcess) -> None:
    for given in ({"host": "evil.example"}, {"origin": FOREIGN}):
        body = (await api.ask("POST", "/v1/messages", BODY, **given)).json()
        assert body["type"] == "error"
        assert body["request_id"] == body["error"]["request_id"]


async def test_our_own_page_and_programs_that_are_no_browser_may_ask(api: InProcess) -> None:
    for given in ({"origin": "http://localhost"}, {}):
        response = await api.ask(
            "POST", "/api/tiers/eco/drafts", {"drafts": "own"}, content_type="application/json", **given
        )
        assert response.json()["error"]["code"] == "no_choice"


async def test_names_of_the_operator_are_ours() -> None:
    api = InProcess(app_config(auth={"allowed_hosts": ["LLM.example"]}))
    assert (await api.ask("GET", "/healthz", host="llm.example")).status_code == 200
    assert (await api.ask("GET", "/healthz", host="other.example")).status_code == 421
