"""Which requests come in at all: those to a name of ours, and from no foreign web page.

A browser sends whatever a page tells it to, from inside the user's network. Two checks keep foreign pages out, with
keys and without:

Host     a page can point its own name at this machine (DNS rebinding); its requests then have its name as `Host`, and
         the browser takes them for the page's own. Such a page never has an IP address or `localhost` as its name, so
         these are always right.
Origin   a browser names the page that sends a POST. It must be our own, or one that the operator allows. Programs that
         are no browser send none.

The third check is the content type (`serve_app/api/body.py`): without JSON's no preflight request comes before a POST.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from serve_app.api.errors import ApiError, error_form, error_response
from serve_app.api.request_record import record_of, request_id_of
from serve_app.auth.settings import ANY, AuthSettings

_READING: Final = frozenset(("GET", "HEAD", "OPTIONS"))
_LOCALHOST: Final = "localhost"
_DEFAULT_PORTS: Final = (":80", ":443")


def host_allowed(host: str, allowed: Iterable[str]) -> bool:
    """Return whether a `Host` header (name or address, perhaps with a port) names us.

    Args:
        host: the header.
        allowed: names in small letters; `*.x.com` stands for every name below x.com, `*` for every name.
    """
    name = _without_port(host.lower()).removesuffix(".")
    if name == _LOCALHOST or name.endswith("." + _LOCALHOST) or _is_address(name):
        return True
    return any(one in (ANY, name) or (one.startswith("*.") and name.endswith(one[1:])) for one in allowed)


def origin_allowed(origin: str, host: str, allowed: Iterable[str]) -> bool:
    """Return whether the page that sends a request may: it came from the host that it asks, or its origin is allowed.

    The scheme does not count, as a proxy may have taken TLS off.

    Args:
        origin: the header `Origin`: `https://chat.example`, or `null` for a page without one.
        host: the header `Host`.
        allowed: origins; `*` stands for all.
    """
    if any(one in (ANY, origin) for one in allowed):
        return True
    scheme, _, authority = origin.lower().partition("://")
    return scheme in ("http", "https") and _without_default_port(authority) == _without_default_port(host.lower())


def _without_port(host: str) -> str:
    if host.startswith("["):  # an IPv6 address
        name, _, port = host[1:].partition("]")
        return "" if port and not port.startswith(":") else name
    return host.partition(":")[0]


def _without_default_port(authority: str) -> str:
    return next((authority.removesuffix(port) for port in _DEFAULT_PORTS if authority.endswith(port)), authority)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class FrontDoor:
    """Refuses requests to names that are not ours, and those of foreign web pages.

    Args:
        settings: which names and which pages.
    """

    settings: AuthSettings

    def middleware(self, app: ASGIApp) -> ASGIApp:
        """Return the application with the checks before it."""

        async def checked(scope: Scope, receive: Receive, send: Send) -> None:
            error = self._refusal(scope) if scope["type"] == "http" else None
            if error is None:
                await app(scope, receive, send)
                return
            record = record_of(scope)
            record.code, record.stranger = error.code, record.key is None
            response = error_response(error, request_id_of(scope), error_form(scope["path"]))
            await response(scope, receive, send)

        return checked

    def _refusal(self, scope: Scope) -> ApiError | None:
        hosts = [value.decode("latin-1") for key, value in scope["headers"] if key == b"host" and value]
        # Every browser sends one; a load balancer's health check may not.
        wrong = next((host for host in hosts if not host_allowed(host, self.settings.allowed_hosts)), None)
        if wrong is not None:
            message = (
                f"Host: got {wrong!r}, allowed are localhost, IP addresses and the operator's `auth.allowed_hosts`"
            )
            return ApiError("host_not_allowed", message, status=421)
        if scope["method"] in _READING:
            return None  # they change nothing, and without CORS no other page can read the answer
        origins = [value.decode("latin-1") for key, value in scope["headers"] if key == b"origin"]
        host = hosts[0] if hosts else ""
        foreign = next((one for one in origins if not origin_allowed(one, host, self.settings.allowed_origins)), None)
        if foreign is not None:
            message = f"Origin: got {foreign!r}, allowed are this host and the operator's `auth.allowed_origins`"
            return ApiError("origin_not_allowed", message, status=403)
        return None
