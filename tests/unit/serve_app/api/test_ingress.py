"""The ingress's HTTP without Serve: routes, methods, cross-origin requests, and clients that leave."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from ray import serve
from starlette.types import Message

from router.observation import TierState
from router.registry import TIER_NAMES, TierName
from serve_app.api.ingress import Ingress
from serve_app.config import AppConfig
from serve_app.engine.interface import GenerationRequest
from serve_app.engine.stream_items import stream_items
from serve_app.engine.stub import StubEngine
from serve_app.transport.client import GenerationStream
from serve_app.transport.stream import LocalStream
from tests.support.app_config import FixedPool, app_config

PAGE = "https://chat.example"
POSTS = ("/api/inference", "/v1/chat/completions", "/v1/completions", "/api/tiers/eco/drafts")
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
        async with httpx.AsyncClient(transport=transport, base_url="http://ingress") as http:
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
    api = InProcess(app_config(ingress={"cors_origins": listed}))
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
    assert "x-request-id" in get.headers["access-control-expose-headers"]


async def test_a_page_of_an_unlisted_origin_may_not_use_the_api() -> None:
    api = InProcess(app_config(ingress={"cors_origins": [PAGE]}))
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

    def __init__(self, config: AppConfig) -> None:
        self.config = config
        self.called: list[TierName] = []

    def generate(self, tier: TierName, request: GenerationRequest) -> GenerationStream:
        self.called.append(tier)
        return LocalStream(stream_items(StubEngine(self.config.entry(tier, None), 1000.0), request))


def with_contexts(**contexts: int) -> AppConfig:
    chains = {name: [{"name": "only", "target": "small", "max_model_len": size}] for name, size in contexts.items()}
    return app_config(tiers={name: {"chain": chain} for name, chain in chains.items()})


async def asked(config: AppConfig, **body: Any) -> tuple[httpx.Response, list[TierName]]:
    """The answer to 3,000 short words, of which the router estimates that they are fewer tokens."""
    api = InProcess(config, FixedPool({name: TierState(running=1) for name in TIER_NAMES}))
    tiers = StubTiers(config)
    api.ingress._tiers = tiers  # type: ignore[assignment]
    body = {"prompt": "a " * 3000, **body}
    return await api.ask("POST", "/api/inference", body, content_type="application/json"), tiers.called


async def test_a_prompt_that_the_engine_counts_longer_goes_to_a_tier_with_more_room() -> None:
    config = with_contexts(eco=2600, balanced=2600, performance=2600, ultra=4096)
    response, called = await asked(config)
    assert (response.status_code, called[1:]) == (200, ["ultra"])
    assert called[0] != "ultra"
    assert '"tier":"ultra"' in response.text
    assert "3002 prompt tokens" in response.text


async def test_if_no_tier_has_more_room_the_error_says_which_comes_nearest() -> None:
    response, called = await asked(with_contexts(eco=2600, balanced=2600, performance=2600, ultra=2700))
    error = response.json()["error"]
    assert (response.status_code, error["code"], len(called)) == (400, "prompt_too_long", 2)
    assert "3002 prompt tokens" in error["message"]
    assert error["message"].endswith("in tier ultra, which comes nearest")


async def test_in_manual_mode_no_other_tier_is_tried() -> None:
    response, called = await asked(with_contexts(eco=2600), mode="manual", power=0)
    assert (response.status_code, called) == (400, ["eco"])
