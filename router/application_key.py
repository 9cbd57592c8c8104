"""The key that a program of ours sends to a running application: from the environment.

A key on the command line would be seen by every user of the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from router.errors import ConfigError

KEY_VARIABLE: Final = "POWER_LEVER_KEY"


def application_key(env: Mapping[str, str]) -> str:
    """Return the key; empty: there is none.

    Raises:
        ConfigError: it is not one word of the signs that keys have.
    """
    key = env.get(KEY_VARIABLE, "").strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigError(f"{KEY_VARIABLE}: must be a key as `power-lever keys new` prints it")
    return key


def key_headers(env: Mapping[str, str]) -> dict[str, str]:
    """Return the header that sends the key; none where there is none.

    Raises:
        ConfigError: it is not one word of the signs that keys have.
    """
    key = application_key(env)
    return {"authorization": f"Bearer {key}"} if key else {}
