"""Who sends a request: Starlette's authentication, with our keys behind it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from starlette.authentication import AuthCredentials, AuthenticationBackend, BaseUser, UnauthenticatedUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.types import Scope

from serve_app.api.errors import ApiError
from serve_app.auth.key_file import FollowedKeys
from serve_app.auth.keys import GRANTED, KEY_SCOPES, Key, KeyScope, utc_now

_BEARER: Final = re.compile(r"bearer +(\S+) *", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class KeyHolder(BaseUser):
    """Whoever sent a valid key."""

    key: Key

    @property
    def is_authenticated(self) -> bool:
        """Always."""
        return True

    @property
    def display_name(self) -> str:
        """The key's name."""
        return self.key.name

    @property
    def identity(self) -> str:
        """The key's id."""
        return self.key.id


class KeysUnknown(UnauthenticatedUser):
    """Whoever sent something before the keys file could be read: nobody can tell."""


class Anybody(AuthenticationBackend):
    """Mode `off`: everybody may do everything."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser]:
        """Return all scopes, and nobody's name."""
        return AuthCredentials(KEY_SCOPES), UnauthenticatedUser()


class KeyBackend(AuthenticationBackend):
    """Mode `keys`: whoever sends a key may do what its scope grants. What needs no key is open with a wrong one too.

    Args:
        keys: of the file.
        now: the time.
    """

    def __init__(self, keys: FollowedKeys, now: Callable[[], datetime] = utc_now) -> None:
        self._keys = keys
        self._now = now

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        """Return the scopes and the holder of the key that was sent; None: no valid one was."""
        ring = self._keys.ring
        if ring is None:
            return AuthCredentials(), KeysUnknown()
        key = ring.holder(sent_key(conn.headers), self._now())
        return None if key is None else (AuthCredentials(GRANTED[key.scope]), KeyHolder(key))


def authentication(keys: FollowedKeys | None) -> Middleware:
    """Return the middleware that says who sends a request. None: nobody is asked."""
    return Middleware(AuthenticationMiddleware, backend=Anybody() if keys is None else KeyBackend(keys))


def sent_key(headers: Mapping[str, str]) -> str:
    """Return the key that a client sent, as OpenAI's SDK (`Authorization: Bearer`) or Anthropic's (`x-api-key`) does.

    Where both are there, `Authorization: Bearer` counts. Empty: none was sent.
    """
    bearer = _BEARER.fullmatch(headers.get("authorization", ""))
    return bearer[1] if bearer else headers.get("x-api-key", "")


def raise_unless(request: Request, needed: KeyScope | None) -> None:
    """Check that whoever sends a request may.

    Args:
        request: with its sender.
        needed: scope; None: anybody may.

    Raises:
        ApiError: 401, no valid key was sent; 403, it has not the scope; 503, the keys file was never readable.
    """
    if needed is None or needed in request.auth.scopes:
        return
    if isinstance(request.user, KeysUnknown):
        message = "the server cannot read its keys file; its log says why"
        raise ApiError("keys_unavailable", message, status=503, retryable=True)
    if isinstance(request.user, KeyHolder):
        message = f"this needs a key with the scope {needed}; key {request.user.identity} has {request.user.key.scope}"
        raise ApiError("forbidden", message, status=403)
    # The same words for a key that is missing, malformed, unknown, revoked or expired.
    message = "this server needs a valid key, as `Authorization: Bearer KEY` or `x-api-key: KEY`"
    raise ApiError("unauthorized", message, status=401)


def key_in(scope: Scope) -> Key | None:
    """Return the key of whoever sends the request of a scope; None: nobody was asked, or no valid one was sent."""
    user = scope.get("user")
    return user.key if isinstance(user, KeyHolder) else None


def is_stranger(scope: Scope) -> bool:
    """Return whether keys are asked for, and the request of a scope came without a valid one."""
    return not scope["auth"].scopes


def may_see_decision(request: Request, made_by: str | None) -> bool:
    """Return whether whoever sends a request may read a decision record.

    Args:
        request: with its sender.
        made_by: id of the key whose request was decided on; None: nobody was asked for one.
    """
    return "admin" in request.auth.scopes or request.user.identity == made_by
