"""Clean a request's target and headers before Serve reads them, and give the request its id.

`cluster/serve.env` names `before_serve`, so Serve's HTTP server runs `CleanHeaders` ahead of Serve's own code.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from typing import Final

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve_app.api.errors import ApiError, bad_request, error_form, error_response

Header = tuple[bytes, bytes]

REQUEST_ID: Final = b"x-request-id"
_VALID_ID: Final = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_SERVE_CONTROLS: Final = (b"x-request-", b"x-session-id", b"x_session_id", b"serve_multiplexed", b"serve-multiplexed")
"""Prefixes of the headers by which a client could control Serve (2.60): keep a request running after the client left
(`x-request-disconnect-disabled`), set a time limit (`x-request-timeout-seconds`), choose a replica."""


_AUTHORITY: Final = re.compile(r"^https?://[^/?#]*", re.IGNORECASE)
"""Begins the target of a request that is a whole URL, as clients send to a proxy; any server must accept it."""


def before_serve() -> list[Middleware]:
    """Return the middlewares that Serve puts around its own (`RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH`)."""
    return [Middleware(CleanHeaders)]


def request_id(headers: Iterable[Header]) -> str:
    """Return the client's request id if it has 1 to 128 characters of a safe set, else a new one."""
    given = next((value for key, value in headers if key == REQUEST_ID), b"")
    return given.decode() if _VALID_ID.fullmatch(given) else uuid.uuid4().hex


def route_of(scope: Scope) -> str:
    """Return the path of a request below the application's route prefix."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


class CleanHeaders:
    """ASGI middleware: drops the headers that control Serve, and puts one id on the request and on its response.

    It refuses what Serve and its HTTP server would answer in their own way: a WebSocket, a target that is no path, and
    headers that are not UTF-8, on which Serve fails.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        name = request_id(scope["headers"])
        scope["path"] = _AUTHORITY.sub("", scope["path"], count=1) or "/"
        if (error := _refusal(scope)) is not None:
            await error_response(error, name, error_form(scope["path"]))(scope, receive, send)
            return
        kept = [header for header in scope["headers"] if not header[0].startswith(_SERVE_CONTROLS)]
        scope["headers"] = [*kept, (REQUEST_ID, name.encode())]

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                others = [header for header in message.get("headers", ()) if header[0].lower() != REQUEST_ID]
                message = {**message, "headers": [*others, (REQUEST_ID, name.encode())]}
            await send(message)

        await self._app(scope, receive, send_with_id)


def _refusal(scope: Scope) -> ApiError | None:
    if scope["type"] == "websocket":
        return bad_request("there are no WebSockets here: send plain HTTP requests")
    if not scope["path"].startswith("/"):
        return ApiError("not_found", f"{scope['path']!r} is no path", status=404)
    if not all(_is_utf8(key) and _is_utf8(value) for key, value in scope["headers"]):
        return bad_request("a header is not UTF-8", code="bad_header")
    return None


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
