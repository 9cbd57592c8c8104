"""Whether somebody listens at the address of a Ray cluster. Ray itself tries for ten minutes."""

from __future__ import annotations

import socket
from typing import Final

from router.errors import ConfigError

_NO_HOST: Final = ("auto", "local")
_TIMEOUT_S: Final = 5.0


def raise_if_silent(address: str | None, where: str) -> None:
    """Check that something listens where a cluster should be.

    Args:
        address: as for `ray.init`. Only `HOST:PORT` is checked: the others name no host, or are a Ray client's.
        where: who says so, for the error.

    Raises:
        ConfigError: it is no address, or nothing answers there.
    """
    if not address or address in _NO_HOST or "://" in address:
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"{where}: got {address!r}, allowed are HOST:PORT, auto and ray://HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"{where}: no Ray cluster answers at {address}: {error}") from error
