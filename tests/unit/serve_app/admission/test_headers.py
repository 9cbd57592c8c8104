"""What every request passes first: clean headers before Serve, a bound on what an ingress replica holds open."""

from __future__ import annotations

import asyncio

import orjson
import pytest
from starlette.types import Receive, Scope, Send

from serve_app.admission.headers import Bounded, CleanHeaders, before_serve
from tests.support.http_client import SCOPE, Client

Headers = list[tuple[bytes, bytes]]


class Serve:
    """Stands for Serve: notes the headers it saw, and answers with an id of its own, as Serve does."""

    def __init__(self) -> None:
        self.seen: Headers | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.seen = scope["headers"]
        headers = [(b"content-type", b"text/plain"), (b"X-Request-ID", b"serves"), (b"x-request-id", b"ours")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok", "more_body": False})


async def cleaned(*headers: tuple[bytes, bytes]) -> tuple[Serve, Client]:
    serve, client = Serve(), Client()
    await CleanHeaders(serve)({**SCOPE, "headers": list(headers)}, client.receive, client.send)
    return serve, client


@pytest.mark.parametrize(
    "header",
    [
        (b"x-request-disconnect-disabled", b"?1"),
        (b"x-request-timeout-seconds", b"0"),
        (b"x-session-id", b"a"),
        (b"serve_multiplexed_model_id", b"a"),
        (b"serve-multiplexed-model-id", b"a"),
    ],
)
async def test_a_client_cannot_steer_serve_by_a_header(header: tuple[bytes, bytes]) -> None:
    serve, _ = await cleaned((b"accept", b"*/*"), header)
    assert serve.seen is not None
    assert [key for key, _ in serve.seen] == [b"accept", b"x-request-id"]


async def test_a_sane_id_of_the_clients_is_the_requests_and_stands_in_the_response_once() -> None:
    serve, client = await cleaned((b"x-request-id", b"order-17/a"), (b"x-request-id", b"other"))
    assert serve.seen == [(b"x-request-id", b"order-17/a")]
    assert client.headers == [(b"content-type", b"text/plain"), (b"x-request-id", b"order-17/a")]


@pytest.mark.parametrize("given", [b"", b"a b", b"x" * 129, b"<script>", b'"', "é".encode()])
async def test_another_id_is_replaced_by_one_of_ours(given: bytes) -> None:
    serve, client = await cleaned((b"x-request-id", given))
    assert serve.seen is not None
    ((_, name),) = serve.seen
    assert len(name) == 32
    assert dict(client.headers)[b"x-request-id"] == name


@pytest.mark.parametrize("header", [(b"x-name", b"caf\xe9"), (b"caf\xe9", b"a"), (b"x-request-id", b"\xff")])
async def test_a_header_that_is_not_utf_8_is_a_400_that_serve_never_sees(header: tuple[bytes, bytes]) -> None:
    serve, client = await cleaned(header)
    assert (serve.seen, client.status) == (None, 400)
    assert orjson.loads(client.body)["error"]["code"] == "bad_header"


async def test_serve_is_given_the_middleware_in_the_form_that_it_takes() -> None:
    from ray.serve._private.http_util import validate_http_proxy_callback_return

    assert [middleware.cls for middleware in validate_http_proxy_callback_return(before_serve())] == [CleanHeaders]


async def test_work_beyond_the_bound_is_a_503_with_retry_after_until_a_response_has_ended() -> None:
    ends = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await ends.wait()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    bounded = Bounded(app, most=2, retry_after_s=7)
    post, get = ({**SCOPE, "method": method, "headers": []} for method in ("POST", "GET"))
    clients = [Client() for _ in range(5)]
    calls = [
        asyncio.ensure_future(bounded(scope, client.receive, client.send))
        for scope, client in zip((post, post, post, get, get), clients, strict=True)
    ]
    await asyncio.sleep(1)
    assert [client.status for client in clients] == [200, 200, 503, 200, 200]
    assert dict(clients[2].headers)[b"retry-after"] == b"7"
    assert orjson.loads(clients[2].body)["error"]["retryable"] is True
    ends.set()
    await asyncio.gather(*calls)
    late = Client()
    await bounded(post, late.receive, late.send)
    assert late.status == 200


async def test_a_request_that_fails_gives_its_place_back() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("broken")

    bounded = Bounded(app, most=1, retry_after_s=1)
    for _ in range(2):
        client = Client()
        with pytest.raises(RuntimeError, match="broken"):
            await bounded({**SCOPE, "method": "POST", "headers": []}, client.receive, client.send)
