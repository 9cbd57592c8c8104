"""HTTP as clients and web pages expect it, whatever the route."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.client import HOST
from bench.servers import Server
from tests.integration.conftest import PAGE
from tests.support.api import Api

JSON = "application/json"
HOT = {"mode": "manual", "power": 10}
CHAT = {"model": "eco", "messages": [{"role": "user", "content": "stub:tokens=2"}]}
POSTS = ("/api/inference", "/v1/chat/completions", "/v1/completions", "/api/tiers/eco/drafts")
GETS = ("/v1/models", "/v1/models/eco", "/api/tiers", "/healthz", "/readyz", "/health", "/ping", "/version")
NEW_ID = re.compile(r"[0-9a-f-]{32,36}")


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_json_that_does_not_say_so_is_a_415(api: Api, path: str, kind: str) -> None:
    response = api.send("POST", path, json.dumps(CHAT).encode(), **({"content_type": kind} if kind else {}))

    assert response.status_code == 415
    assert response.json()["error"]["code"] == "unsupported_media_type"


def test_without_listed_origins_no_page_of_another_origin_is_answered(api: Api) -> None:
    preflight = api.send("OPTIONS", "/api/inference", origin=PAGE, access_control_request_method="POST")
    get = api.send("GET", "/api/tiers", origin=PAGE)

    assert preflight.status_code == 405
    for response in (preflight, get):
        assert not [name for name in response.headers if name.startswith("access-control")]


def test_a_listed_origin_is_answered_and_another_is_not(broken: Api) -> None:
    asks = {"access_control_request_method": "POST", "access_control_request_headers": "content-type"}
    preflight = broken.send("OPTIONS", "/api/inference", origin=PAGE, **asks)
    get = broken.send("GET", "/api/tiers", origin=PAGE)
    refused = broken.post("/api/inference", {})
    other = broken.send("OPTIONS", "/api/inference", origin="https://evil.example", **asks)

    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == PAGE
    assert "content-type" in preflight.headers["access-control-allow-headers"].lower()
    assert get.headers["access-control-allow-origin"] == PAGE
    assert "x-request-id" in get.headers["access-control-expose-headers"]
    assert refused.status_code == 422
    assert other.status_code == 400
    assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize("path", GETS)
def test_head_is_where_get_is(api: Api, path: str) -> None:
    head, get = api.send("HEAD", path), api.get(path)

    assert head.status_code == get.status_code == 200
    assert head.content == b""


def test_a_wrong_method_names_the_right_ones(api: Api) -> None:
    for path in POSTS:
        response = api.get(path)
        assert (response.status_code, response.headers["allow"]) == (405, "POST")
        assert response.json()["error"]["code"] == "method_not_allowed"
    response = api.send("DELETE", "/v1/models/eco")
    assert response.status_code == 405
    assert set(response.headers["allow"].replace(" ", "").split(",")) == {"GET", "HEAD"}


def ids(response: httpx.Response) -> list[str]:
    return [value for name, value in response.headers.multi_items() if name == "x-request-id"]


def test_every_response_has_one_request_id_and_it_is_the_clients(api: Api) -> None:
    asked: list[tuple[str, str, bytes]] = [
        ("GET", "/nope", b""),
        ("GET", "/api/inference", b""),
        ("GET", "/healthz", b""),
        ("HEAD", "/healthz", b""),
        ("POST", "/api/inference", b"{}"),
        ("POST", "/api/inference", json.dumps({"prompt": "stub:tokens=1", **HOT}).encode()),
        ("POST", "/v1/chat/completions", json.dumps(CHAT).encode()),
        ("POST", "/v1/chat/completions", json.dumps(CHAT | {"stream": True}).encode()),
        ("POST", "/v1/chat/completions", json.dumps({"model": "gpt-4"}).encode()),
    ]
    for method, path, content in asked:
        response = api.send(method, path, content, content_type=JSON, x_request_id="my-id.7")
        assert ids(response) == ["my-id.7"], (method, path)
        if response.status_code >= 400 and method != "HEAD":
            assert response.json()["error"]["request_id"] == "my-id.7"
        [own] = ids(api.send(method, path, content, content_type=JSON))
        assert NEW_ID.fullmatch(own), (method, path)


@pytest.mark.parametrize("given", ["x" * 129, "a b", "<script>", "a,b", "", "é"])
def test_a_request_id_that_is_not_sane_is_replaced(api: Api, given: str) -> None:
    # As UTF-8, which httpx does not take from a string.
    response = httpx.get(f"{api.base_url}/nope", headers=[(b"x-request-id", given.encode())])

    [own] = ids(response)
    assert NEW_ID.fullmatch(own)
    assert response.json()["error"]["request_id"] == own


@pytest.mark.parametrize("name", [b"x-request-id", b"x-session-id", b"traceparent", b"user-agent"])
def test_a_header_that_is_not_utf8_is_a_400_in_json(api: Api, name: bytes) -> None:
    response = httpx.get(f"{api.base_url}/healthz", headers=[(name, b"\xff\xfe")])

    assert response.status_code == 400
    assert response.json()["error"]["code"] == "bad_header"
    assert len(ids(response)) == 1


def test_one_model_is_told_of_and_an_unknown_one_is_a_404_in_openais_form(api: Api) -> None:
    assert [api.get(f"/v1/models/{model['id']}").json() for model in api.get("/v1/models").json()["data"]] == (
        api.get("/v1/models").json()["data"]
    )
    for name in ("gpt-4", "org/model"):
        response = api.get(f"/v1/models/{name}")
        assert response.status_code == 404
        error = response.json()["error"]
        assert (error["code"], error["type"]) == ("model_not_found", "invalid_request_error")
        assert name in error["message"]


def test_health_ping_and_version_are_as_vllm_has_them(api: Api) -> None:
    for response in (api.get("/health"), api.get("/ping"), api.send("POST", "/ping")):
        assert (response.status_code, response.content) == (200, b"")
    assert api.send("POST", "/health").status_code == 405
    assert re.fullmatch(r"0\.32\.\d+", api.get("/version").json()["version"])


@pytest.mark.parametrize("levels", [250, 260, 1000, 1020, 3000])
@pytest.mark.parametrize("path", POSTS)
def test_deep_nesting_is_a_400(api: Api, path: str, levels: int) -> None:
    deep = "[" * levels + "]" * levels
    body = f'{{"model": "eco", "prompt": "x", "messages": [{{"role": "user", "content": "x"}}], "tools": {deep}}}'
    response = api.post(path, body)

    assert response.status_code == 400
    assert response.json()["error"]["code"] in ("too_deep", "not_json")


def test_250_streams_at_once_are_96_taken_and_154_refused_with_retry_after(api: Api) -> None:
    # eco of the local profile: one replica with 32 places, and 64 that may wait at the one ingress replica.
    responses = asyncio.run(at_once(f"{api.base_url}/api/inference", 250, {"prompt": "x stub:rate=1", **HOT}))

    assert sorted(response.status_code for response in responses) == [200] * 96 + [503] * 154
    refused = [response for response in responses if response.status_code == 503]
    assert {response.headers["retry-after"] for response in refused} == {"5"}
    api.wait_for(lambda api: api.tier("eco")["requests"]["running"] == 0, timeout_s=20)
    # All places are free again.
    assert api.infer(prompt="x stub:tokens=1", **HOT).kinds[-1] == "done"


async def at_once(url: str, streams: int, body: dict[str, Any]) -> list[httpx.Response]:
    """Begin so many streams, and end them when each has begun or was refused."""
    responses: list[httpx.Response] = []
    all_known = asyncio.Event()

    async def ask(http: httpx.AsyncClient) -> None:
        async with http.stream("POST", url, json=body) as response:
            responses.append(response)
            if len(responses) == streams:
                all_known.set()
            await all_known.wait()

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=120) as http:
        await asyncio.gather(*(ask(http) for _ in range(streams)))
    return responses


def test_a_client_that_leaves_in_mid_body_is_no_error_in_any_log(server: Server, api: Api) -> None:
    for path in POSTS:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\nContent-Length: 1000\r\n\r\n"
        with socket.create_connection((HOST, server.port)) as connection:
            connection.sendall(head.encode() + b'{"prompt": ')
            # The server has begun to read when it answers others that came later.
            assert api.get("/healthz").status_code == 200
    assert api.get("/healthz").status_code == 200
    logs = [log for log in Path(server.scratch or ".").rglob("*.log") if "serve" in log.parts]
    assert logs
    for log in logs:
        assert "ClientDisconnect" not in log.read_text(errors="replace"), log
