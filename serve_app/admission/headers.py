"""What every request passes before it is anybody's: two ASGI middlewares that need to know nothing of the application.

CleanHeaders   before Serve reads the request (`cluster/serve.env` names `before_serve`): which headers Serve obeys
Bounded        in the application: how many requests an ingress replica holds open; routes that only read always answer
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from typing import Final

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve_app.api.errors import bad_request, error_response, overloaded

Header = tuple[bytes, bytes]

REQUEST_ID: Final = b"x-request-id"
_SANE_ID: Final = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_SERVES_OWN: Final = (b"x-request-", b"x-session-id", b"x_session_id", b"serve_multiplexed", b"serve-multiplexed")
"""How headers begin by which Serve (2.60) lets a client steer it: to go on for nobody
(`x-request-disconnect-disabled`), with a time limit of its own (`x-request-timeout-seconds`), to a certain replica."""
SPARE_REQUESTS: Final = 64
"""Places of an ingress replica for requests that only read (health, tiers, models), beside those for work."""
_READING: Final = frozenset(("GET", "HEAD", "OPTIONS"))


def before_serve() -> list[Middleware]:
    """Middlewares that Serve puts around its own (`RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH`)."""
    return [Middleware(CleanHeaders)]


def request_id(headers: Iterable[Header]) -> str:
    """The client's id for its request where it is sane (128 visible characters of a safe set), else a new one."""
    given = next((value for key, value in headers if key == REQUEST_ID), b"")
    return given.decode() if _SANE_ID.fullmatch(given) else uuid.uuid4().hex


class CleanHeaders:
    """Takes away the headers by which a client would steer Serve, and gives the request one id.

    Serve decodes headers as UTF-8 before it looks at the request: others are refused here, in words. The id is in the
    response's `x-request-id` once, whoever else set one.

    Args:
        app: Serve's.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = request_id(scope["headers"])
        if not all(_is_utf8(key) and _is_utf8(value) for key, value in scope["headers"]):
            refusal = bad_request("a header is not UTF-8", code="bad_header")
            await error_response(refusal, name)(scope, receive, send)
            return
        kept = [header for header in scope["headers"] if not header[0].startswith(_SERVES_OWN)]
        scope["headers"] = [*kept, (REQUEST_ID, name.encode())]

        async def send_once(message: Message) -> None:
            if message["type"] == "http.response.start":
                others = [header for header in message.get("headers", ()) if header[0].lower() != REQUEST_ID]
                message = {**message, "headers": [*others, (REQUEST_ID, name.encode())]}
            await send(message)

        await self._app(scope, receive, send_once)


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


class Bounded:
    """Refuses work beyond so many requests that are open at a time, from their first byte to their last.

    Args:
        app: the application.
        most: requests; those that only read are not counted, so health is answered under any load.
        retry_after_s: `Retry-After` of refusals, s.
    """

    def __init__(self, app: ASGIApp, most: int, retry_after_s: int) -> None:
        self._app = app
        self._most = most
        self._retry_after_s = retry_after_s
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http" or scope["method"] in _READING:
            await self._app(scope, receive, send)
            return
        if self._open >= self._most:
            refusal = overloaded(f"this ingress replica has {self._most} requests open", self._retry_after_s)
            await error_response(refusal, request_id(scope["headers"]))(scope, receive, send)
            return
        self._open += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._open -= 1
