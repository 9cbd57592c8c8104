"""Headers are cleaned before Serve reads a request, and each request gets one id."""

from __future__ import annotations

import orjson
import pytest
from starlette.types import Receive, Scope, Send

from serve_app.admission.headers import CleanHeaders, before_serve
from tests.support.http_client import SCOPE, Client

Headers = list[tuple[bytes, bytes]]


class Serve:
    """A fake of Serve: it records the headers, and answers with its own id, as Serve does."""

    def __init__(self) -> None:
        self.seen: Headers | None = None
        self.path: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.seen, self.path = scope["headers"], scope["path"]
        headers = [(b"content-type", b"text/plain"), (b"X-Request-ID", b"serves"), (b"x-request-id", b"ours")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok", "more_body": False})


async def cleaned(*headers: tuple[bytes, bytes], path: str = "/", kind: str = "http") -> tuple[Serve, Client]:
    serve, client = Serve(), Client()
    scope = {**SCOPE, "type": kind, "path": path, "headers": list(headers)}
    await CleanHeaders(serve)(scope, client.receive, client.send)
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
async def test_a_client_cannot_control_serve_by_a_header(header: tuple[bytes, bytes]) -> None:
    serve, _ = await cleaned((b"accept", b"*/*"), header)
    assert serve.seen is not None
    assert [key for key, _ in serve.seen] == [b"accept", b"x-request-id"]


async def test_the_clients_valid_id_is_kept_and_is_in_the_response_once() -> None:
    serve, client = await cleaned((b"x-request-id", b"order-17/a"), (b"x-request-id", b"other"))
    assert serve.seen == [(b"x-request-id", b"order-17/a")]
    assert client.headers == [(b"content-type", b"text/plain"), (b"x-request-id", b"order-17/a")]


@pytest.mark.parametrize("given", [b"", b"a b", b"x" * 129, b"<script>", b'"', "é".encode()])
async def test_an_invalid_id_is_replaced_by_a_new_one(given: bytes) -> None:
    serve, client = await cleaned((b"x-request-id", given))
    assert serve.seen is not None
    ((_, name),) = serve.seen
    assert len(name) == 32
    assert dict(client.headers)[b"x-request-id"] == name


@pytest.mark.parametrize("header", [(b"x-name", b"caf\xe9"), (b"caf\xe9", b"a"), (b"x-request-id", b"\xff")])
async def test_a_header_that_is_not_utf_8_is_a_400_and_never_reaches_serve(header: tuple[bytes, bytes]) -> None:
    serve, client = await cleaned(header)
    assert (serve.seen, client.status) == (None, 400)
    assert orjson.loads(client.body)["error"]["code"] == "bad_header"


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("http://host:8000/v1/models", "/v1/models"),
        ("HTTPS://host/a?b", "/a?b"),
        ("http://host", "/"),
        ("/http://a", "/http://a"),
    ],
)
async def test_a_target_that_is_a_whole_url_is_served_by_its_path(target: str, path: str) -> None:
    serve, client = await cleaned(path=target)
    assert (serve.path, client.status) == (path, 200)


@pytest.mark.parametrize("target", ["*", "host:443", "ftp://host/a"])
async def test_a_target_that_is_no_path_is_a_404_and_never_reaches_serve(target: str) -> None:
    serve, client = await cleaned(path=target)
    assert (serve.path, client.status) == (None, 404)
    assert orjson.loads(client.body)["error"]["code"] == "not_found"


async def test_a_websocket_is_refused_in_json_with_the_requests_id() -> None:
    serve, client = await cleaned((b"x-request-id", b"mine"), path="/v1/realtime", kind="websocket")
    assert (serve.path, client.status, client.sent[0]["type"]) == (None, 400, "websocket.http.response.start")
    error = orjson.loads(client.body)["error"]
    assert (error["code"], error["request_id"]) == ("bad_request", "mine")


@pytest.mark.parametrize("path", ["/v1/messages", "/prefix/v1/messages/count_tokens"])
async def test_anthropics_clients_get_a_refusal_in_their_form(path: str) -> None:
    _, client = await cleaned((b"x-name", b"\xff"), path=path)
    body = orjson.loads(client.body)
    assert (body["type"], body["error"]["type"], body["error"]["code"]) == (
        "error",
        "invalid_request_error",
        "bad_header",
    )


async def test_serve_accepts_the_middleware_in_this_form() -> None:
    from ray.serve._private.http_util import validate_http_proxy_callback_return

    assert [middleware.cls for middleware in validate_http_proxy_callback_return(before_serve())] == [CleanHeaders]
