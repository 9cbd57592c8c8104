"""Where an application that asks nobody may listen: on this machine only."""

from __future__ import annotations

import ipaddress
from typing import Final

from router.errors import ConfigError
from serve_app.auth.settings import AuthSettings

_LOOPBACK_NAME: Final = "localhost"


def raise_if_open(settings: AuthSettings, host: str | None, where: str) -> None:
    """Check that an application that asks for no key listens on this machine only.

    Args:
        settings: who is asked.
        host: on which Serve's proxy listens; None: on none.
        where: the host is set, for the error.

    Raises:
        ConfigError: it would listen beyond this machine, and `allow_anonymous` does not say that this is meant.
    """
    if settings.mode == "keys" or settings.allow_anonymous or host is None or _is_loopback(host):
        return
    raise ConfigError(
        f"{where}: got {host!r}, where anybody who reaches this machine could use it, as auth.mode is 'off': listen on "
        "127.0.0.1, or set auth.mode: keys (docs/security.md), or, if this is meant, auth.allow_anonymous: true"
    )


def _is_loopback(host: str) -> bool:
    if host == _LOOPBACK_NAME:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
