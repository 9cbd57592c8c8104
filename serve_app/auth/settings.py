"""The settings of who may do what."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Annotated, Final, Literal

from pydantic import Field, field_validator, model_validator

from router.registry import YAML_OFF, Frozen
from serve_app.auth.keys import NO_LIMITS, KeyLimits

AuthMode = Literal["off", "keys"]
ANY: Final = "*"
DEFAULT_CAP: Final = "auth.default_limits.agent_usd_per_day"
"""Where the agent's daily cap of keys without limits of their own is set."""
DEFAULT_KEYS_FILE: Final = "~/.config/power-lever/keys.json"
_HOST: Final = re.compile(r"\*|(\*\.)?[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")
_ORIGIN: Final = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/?#@\s*A-Z]+")


class AuthSettings(Frozen):
    """Who may use the application, and from where."""

    mode: Annotated[AuthMode, YAML_OFF] = Field(
        default="off",
        description="`keys`: every request but those for health and the page needs a key ([security](security.md)). "
        "`off`: nobody is asked, and the application refuses to listen beyond this machine.",
    )
    keys_file: str | None = Field(
        default=None,
        description="Absolute path of the file that `power-lever keys` writes, the same on every node; null: "
        f"`{DEFAULT_KEYS_FILE}`. Changes count within seconds.",
    )
    allow_anonymous: bool = Field(
        default=False,
        description="True: with mode `off` it may listen beyond this machine, where anybody who reaches it may use it.",
    )
    separate_caches: bool = Field(
        default=True,
        description="True: with mode `keys` the engines' caches of prompt beginnings are separate for each key, since "
        "the time to the first token tells what is in them. False: all keys share one, which answers faster where they "
        "begin alike.",
    )
    allowed_hosts: tuple[str, ...] = Field(
        default=(),
        description="Names by which clients reach the application, without port: `llm.example.com`, `*.example.com`, "
        "or `*` for any. `localhost` and IP addresses always may.",
    )
    allowed_origins: tuple[str, ...] = Field(
        default=(),
        description="Other origins whose web pages may use the API: `https://chat.example`, or `*` for all.",
    )

    default_limits: KeyLimits = Field(
        default=NO_LIMITS,
        description="How much each key may take that has no limits of its own (`power-lever keys limits`).",
    )

    @field_validator("keys_file")
    @classmethod
    def _path_is_absolute(cls, path: str | None) -> str | None:
        if path is not None and not PurePosixPath(path).is_absolute():
            raise ValueError(f"got {path!r}, must be an absolute path: replicas run in other folders")
        return path

    @field_validator("allowed_hosts")
    @classmethod
    def _hosts_are_names(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if not _HOST.fullmatch(host.lower()):
                raise ValueError(f"got {host!r}, must be names without scheme and port: llm.example.com, *.x.com or *")
        return tuple(host.lower() for host in hosts)

    @field_validator("allowed_origins")
    @classmethod
    def _origins_have_no_path(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"got {origin!r}, must be as browsers send it, in small letters and without a path or slash at its "
                    "end: https://chat.example, or *"
                )
        return origins

    @model_validator(mode="after")
    def _mode_fits(self) -> AuthSettings:
        if self.mode == "keys" and self.allow_anonymous:
            raise ValueError("mode 'keys' takes no `allow_anonymous`, got true: it goes with mode 'off'")
        if self.mode == "off" and self.keys_file is not None:
            raise ValueError(
                f"mode 'off' takes no `keys_file`, got {self.keys_file!r}: nobody would be asked for a key"
            )
        if self.mode == "off" and self.default_limits != NO_LIMITS:
            raise ValueError(f"mode 'off' takes no `default_limits`, got {self.default_limits}: there are no keys")
        return self

    @property
    def keys_path(self) -> Path:
        """Where the keys file is on this machine."""
        return Path(self.keys_file or DEFAULT_KEYS_FILE).expanduser()
