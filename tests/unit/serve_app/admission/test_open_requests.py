"""The open requests of an ingress replica: counted, limited, and refused during a drain."""

from __future__ import annotations

import asyncio

import orjson
import pytest
from starlette.types import Receive, Scope, Send

from serve_app.admission.open_requests import OpenRequests
from tests.support.http_client import SCOPE, Client

POST, GET = ({**SCOPE, "method": method, "path": "/slow", "headers": []} for method in ("POST", "GET"))


async def ask(requests: OpenRequests, scope: Scope) -> Client:
    """Send a request to an application that answers at once."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    client = Client()
    await requests.middleware(app)(scope, client.receive, client.send)
    return client


async def test_requests_beyond_the_limit_get_a_503_with_retry_after_until_a_response_ends() -> None:
    ends = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await ends.wait()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    requests = OpenRequests(limit=2)
    limited = requests.middleware(app)
    clients = [Client() for _ in range(5)]
    calls = [
        asyncio.ensure_future(limited(scope, client.receive, client.send))
        for scope, client in zip((POST, POST, POST, GET, GET), clients, strict=True)
    ]
    await asyncio.sleep(1)
    assert [client.status for client in clients] == [200, 200, 503, 200, 200]
    assert dict(clients[2].headers)[b"retry-after"] == b"5"
    assert orjson.loads(clients[2].body)["error"]["retryable"] is True
    assert requests.count == 2
    ends.set()
    await asyncio.gather(*calls)
    assert requests.count == 0
    assert (await ask(requests, POST)).status == 200


async def test_a_request_that_fails_is_no_longer_open() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("broken")

    limited = OpenRequests(limit=1).middleware(app)
    for _ in range(2):
        client = Client()
        with pytest.raises(RuntimeError, match="broken"):
            await limited(POST, client.receive, client.send)


@pytest.mark.parametrize("path", ["/slow", "/readyz", "/no-such-path"])
@pytest.mark.parametrize("scope", [POST, GET], ids=["POST", "GET"])
async def test_a_drain_refuses_new_requests_in_json_with_retry_after(scope: Scope, path: str) -> None:
    requests = OpenRequests(limit=2)
    requests.draining = True
    client = await ask(requests, {**scope, "path": path})
    assert client.status == 503
    assert dict(client.headers)[b"retry-after"] == b"5"
    error = orjson.loads(client.body)["error"]
    assert (error["code"], error["retryable"]) == ("stopping", True)


@pytest.mark.parametrize(("root", "path"), [("", "/healthz"), ("/prefix", "/prefix/healthz")])
async def test_the_process_is_healthy_until_its_end_also_below_a_route_prefix(root: str, path: str) -> None:
    requests = OpenRequests(limit=2)
    requests.draining = True
    assert (await ask(requests, {**GET, "root_path": root, "path": path})).status == 200


async def test_a_drain_lets_the_lifespan_pass() -> None:
    requests = OpenRequests(limit=2)
    requests.draining = True
    assert (await ask(requests, {"type": "lifespan"})).status == 200


@pytest.mark.parametrize("draining", [True, False])
async def test_anthropics_clients_get_a_refusal_in_their_form(draining: bool) -> None:
    requests = OpenRequests(limit=0)
    requests.draining = draining
    body = orjson.loads((await ask(requests, {**POST, "path": "/v1/messages"})).body)
    assert (body["type"], body["error"]["type"]) == ("error", "overloaded_error")
