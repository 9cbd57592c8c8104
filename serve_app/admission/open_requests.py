"""The open requests of one ingress replica: counted, limited, and refused while the application drains."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from serve_app.admission.headers import route_of
from serve_app.api.errors import ApiError, error_form, error_response, overloaded
from serve_app.api.request_record import record_of, request_id_of
from serve_app.auth.identity import key_in
from serve_app.fairness.claims import Claim
from serve_app.fairness.places import Holders, open_to

SPARE_REQUESTS: Final = 64
"""Requests that Serve lets into an ingress replica beyond the limit, so that health is answered under any load."""
_READING: Final = frozenset(("GET", "HEAD", "OPTIONS"))
_ALWAYS_OPEN: Final = "/healthz"
"""The process serves until its end. `/readyz` is refused during a drain, so load balancers go elsewhere."""


class OpenRequests:
    """Counts each request from its first byte to its last. Requests that only read are not counted and have no limit.

    Args:
        limit: requests that may be open at a time, some of them kept for keys with few; more get a 503.
    """

    def __init__(self, limit: int) -> None:
        self._holders = Holders()
        self.draining = False
        """True: refuse every new request but `/healthz`."""
        self._limit = limit

    @property
    def count(self) -> int:
        """Requests that are open."""
        return self._holders.all

    def middleware(self, app: ASGIApp) -> ASGIApp:
        """Return the application with the count and the limit around it."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or route_of(scope) == _ALWAYS_OPEN:
                await app(scope, receive, send)
            elif (error := self._refusal(scope["method"], claim := _claim(scope))) is not None:
                record_of(scope).code = error.code
                response = error_response(error, request_id_of(scope), error_form(scope["path"]))
                await response(scope, receive, send)
            elif scope["method"] in _READING:
                await app(scope, receive, send)
            else:
                self._holders.take(claim)
                try:
                    await app(scope, receive, send)
                finally:
                    self._holders.free(claim)

        return counted

    def _refusal(self, method: str, claim: Claim) -> ApiError | None:
        if self.draining:
            message = "the server is stopping and accepts no new requests"
            return ApiError("stopping", message, status=503, retryable=True)
        if method not in _READING and not self._holders.may_take(claim, self._limit):
            limit = open_to(claim, self._holders.of(claim), self._limit)
            kept = "" if limit == self._limit else f" for a key with so many; {self._limit - limit} are kept for others"
            return overloaded(f"this ingress replica has {self.count} open requests, its limit{kept}")
        return None


def _claim(scope: Scope) -> Claim:
    key = key_in(scope)
    return Claim(None if key is None else key.name)
