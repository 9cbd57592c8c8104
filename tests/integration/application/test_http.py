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

from bench.load.client import HOST
from bench.load.servers import Server
from tests.support.api import Api

JSON = "application/json"
HOT = {"mode": "manual", "power": 10}
CHAT = {"model": "eco", "messages": [{"role": "user", "content": "stub:tokens=2"}]}
POSTS = ("/api/inference", "/v1/chat/completions", "/v1/completions", "/api/tiers/eco/drafts")
NEW_ID = re.compile(r"[0-9a-f-]{32,36}")


def ids(response: httpx.Response) -> list[str]:
    return [value for name, value in response.headers.multi_items() if name == "x-request-id"]


def test_every_response_has_exactly_one_request_id_the_clients(api: Api) -> None:
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
def test_an_invalid_request_id_is_replaced(api: Api, given: str) -> None:
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


def test_of_250_concurrent_streams_96_are_served_and_154_get_503_with_retry_after(api: Api) -> None:
    # eco of the local profile: one replica with 32 places, and 64 that may wait at the one ingress replica.
    responses = asyncio.run(at_once(f"{api.base_url}/api/inference", 250, {"prompt": "x stub:rate=1", **HOT}))

    assert sorted(response.status_code for response in responses) == [200] * 96 + [503] * 154
    refused = [response for response in responses if response.status_code == 503]
    assert {response.headers["retry-after"] for response in refused} == {"5"}
    api.wait_for(lambda api: api.tier("eco")["requests"]["running"] == 0)
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


def test_a_client_that_leaves_mid_body_logs_no_error(server: Server, api: Api) -> None:
    before = {log: log.stat().st_size for log in ingress_logs(server)}
    assert before
    for path in POSTS:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {JSON}\r\nContent-Length: 1000\r\n\r\n"
        with socket.create_connection((HOST, server.port)) as connection:
            connection.sendall(head.encode() + b'{"prompt": ')
            # The server has begun to read when it answers others that came later.
            assert api.get("/healthz").status_code == 200
    assert api.get("/healthz").status_code == 200
    for log in ingress_logs(server):
        written = log.read_bytes()[before.get(log, 0) :].decode(errors="replace")
        assert "Traceback" not in written, written
        assert "ERROR" not in written, written


def ingress_logs(server: Server) -> list[Path]:
    """Logs of the ingress replicas, and what they wrote to stderr."""
    assert server.scratch is not None
    logs = [log for log in server.scratch.rglob("*") if log.is_file() and "logs" in log.parts]
    return [log for log in logs if "ingress" in log.name or log.suffix == ".err"]
