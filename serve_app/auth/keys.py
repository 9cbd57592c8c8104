"""API keys: what one looks like, what is kept of it, and who holds a key that a client sent. Pure.

A key is `pl_ID_SECRET`. The id is public: it stands in logs and decision records. The secret has 256 random bits, so a
fast hash keeps it as safe as a slow one would: nobody can try 2^256 secrets. Slow, salted hashes are for secrets that
people choose (NIST SP 800-63B, 5.1.2.2: look-up secrets of at least 112 bits need an approved one-way function, shorter
ones a key derivation function), and would cost every request 50 ms or more of CPU.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Literal, NamedTuple, get_args

from pydantic import AwareDatetime, Field, ValidationError, field_validator

from router.errors import ConfigError
from router.registry import Frozen

KeyScope = Literal["infer", "admin"]
KEY_SCOPES: Final[tuple[KeyScope, ...]] = get_args(KeyScope)
GRANTED: Final[Mapping[KeyScope, tuple[KeyScope, ...]]] = {"infer": ("infer",), "admin": ("infer", "admin")}
"""What a key of a scope may do."""
ID: Final = r"[0-9a-f]{12}"
ENDED_KEPT_FOR: Final = timedelta(days=90)
"""How long a key that has ended stays in the file, so that whoever reads a log can tell whose it was."""
MOST_KEYS: Final = 2000
"""In a file: one of more is not made. Every ingress replica reads the file each second."""
MOST_COUNTED: Final = 10**12
"""The largest limit of a count: below what a float counts exactly."""
NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}"
_SECRET_BYTES: Final = 32
_KEY: Final = re.compile(rf"pl_({ID})_[A-Za-z0-9_-]{{43}}")
_NOBODYS: Final = hashlib.sha256(secrets.token_bytes(_SECRET_BYTES)).hexdigest()
"""Stands for the hash of a key that there is not, so that it is compared all the same."""


class KeyLimits(Frozen):
    """How much a key may take. Keys of one name, as a rotation leaves them, take from the same limits: the smallest."""

    requests_per_minute: int | None = Field(
        default=None, ge=1, le=MOST_COUNTED, strict=True, description="Requests in any minute; null: no limit."
    )
    tokens_per_minute: int | None = Field(
        default=None,
        ge=1,
        le=MOST_COUNTED,
        strict=True,
        description="Prompt and completion tokens in any minute, of all answers; null: no limit.",
    )
    max_concurrent: int | None = Field(
        default=None,
        ge=1,
        le=MOST_COUNTED,
        strict=True,
        description="Requests that may be open at a time; null: no limit.",
    )
    agent_usd_per_day: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        strict=True,
        description="Most that the router agent may cost from 00:00 UTC to the next, USD; null: no limit.",
    )

    def __str__(self) -> str:
        """Return the limits in words."""
        words = {
            "requests_per_minute": "requests/min",
            "tokens_per_minute": "tokens/min",
            "max_concurrent": "at a time",
            "agent_usd_per_day": "agent USD/day",
        }
        return ", ".join(f"{value:,} {words[name]}" for name, value in self if value is not None) or "none"

    @classmethod
    def smallest(cls, all_of_them: Sequence[KeyLimits]) -> KeyLimits:
        """Return the smallest of each limit; None where none has it."""
        by_name = {name: [getattr(one, name) for one in all_of_them] for name in cls.model_fields}
        least = {name: min((one for one in each if one is not None), default=None) for name, each in by_name.items()}
        return cls.model_validate(least)


NO_LIMITS: Final = KeyLimits()


class Key(Frozen):
    """What is kept of a key. The key itself is shown once, when it is made."""

    id: Annotated[str, Field(pattern=f"^{ID}$")] = Field(description="Public, 12 hexadecimal digits.")
    name: Annotated[str, Field(pattern=f"^{NAME}$")] = Field(description="Who holds it.")
    scope: KeyScope = Field(description="`infer`: may ask. `admin`: may also change state and read others' decisions.")
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] = Field(description="Of the whole key, hexadecimal.")
    created_at: AwareDatetime = Field(description="When it was made.")
    expires_at: AwareDatetime | None = Field(default=None, description="From when on it is refused; null: never.")
    overlap_ends_at: AwareDatetime | None = Field(
        default=None, description="From when on it is refused as it was rotated; null: it was not, or at once."
    )
    revoked_at: AwareDatetime | None = Field(default=None, description="When it was revoked; null: it was not.")
    limits: KeyLimits | None = Field(
        default=None, description="How much it may take; null: as `auth.default_limits` says."
    )
    external_reasoning: bool = Field(
        default=True,
        strict=True,
        description="False: nothing of its requests goes to the router agent's API, outside the cluster.",
    )

    @property
    def ends_at(self) -> datetime | None:
        """From when on it is refused, as it was revoked, expires or was rotated; None: never."""
        ends = (self.revoked_at, self.expires_at, self.overlap_ends_at)
        return min((end for end in ends if end is not None), default=None)

    def valid(self, now: datetime) -> bool:
        """Return whether it is neither revoked nor expired."""
        return self.revoked_at is None and (self.ends_at is None or now < self.ends_at)

    def state(self, now: datetime) -> str:
        """Return `valid`, `revoked` or `expired`."""
        return "valid" if self.valid(now) else "expired" if self.revoked_at is None else "revoked"


class KeyList(Frozen):
    """The content of a keys file. An unknown field is an error: a limit that this version ignores would be none."""

    version: Literal[1] = Field(description="Of the form of this file.")
    keys: tuple[Key, ...] = Field(default=(), description="Also those that are revoked or expired.")

    @field_validator("keys")
    @classmethod
    def _ids_are_unique(cls, keys: tuple[Key, ...]) -> tuple[Key, ...]:
        if twice := [one for one, times in Counter(key.id for key in keys).items() if times > 1]:
            raise ValueError(f"each id must be there once, twice are {', '.join(sorted(twice))}")
        return keys

    def named(self, name_or_id: str) -> list[Key]:
        """Return the keys of a name, or the one of an id."""
        return [key for key in self.keys if name_or_id in (key.name, key.id)]

    def with_new(self, key: Key, now: datetime) -> KeyList:
        """Return the list with one more key, and without those that ended more than `ENDED_KEPT_FOR` ago.

        Raises:
            ConfigError: it has too many keys.
        """
        since = now - ENDED_KEPT_FOR
        kept = [one for one in self.keys if one.ends_at is None or one.ends_at >= since]
        if len(kept) >= MOST_KEYS:
            raise ConfigError(f"there are {len(kept)} keys, must be at most {MOST_KEYS} with the new one: remove some")
        return KeyList(version=self.version, keys=(*kept, key))

    def replaced(self, keys: Iterable[Key]) -> KeyList:
        """Return the list with these keys in the place of those with their ids, new ones at its end."""
        given = {key.id: key for key in keys}
        old = [given.pop(key.id, key) for key in self.keys]
        return KeyList(version=self.version, keys=(*old, *given.values()))


def read_key_list(raw: bytes, where: str) -> KeyList:
    """Return the content of a keys file.

    Raises:
        ConfigError: it is none; the message names every wrong field.
    """
    try:
        return KeyList.model_validate_json(raw)
    except ValidationError as error:
        if any(problem["type"] == "json_invalid" for problem in error.errors()):
            raise ConfigError(f"{where}: is not JSON: {error.errors()[0]['msg']}") from error
        raise ConfigError.of(error, KeyList, where) from error


class NewKey(NamedTuple):
    """A key that was just made."""

    key: Key
    secret: str
    """The whole key, to be shown once."""


def make_key(
    name: str,
    scope: KeyScope,
    now: datetime,
    expires_at: datetime | None = None,
    limits: KeyLimits | None = None,
    *,
    external_reasoning: bool = True,
) -> NewKey:
    """Make a key.

    Raises:
        ConfigError: the name is none.
    """
    if not re.fullmatch(NAME, name) or re.fullmatch(ID, name):
        raise ConfigError(
            f"name: got {name!r}, must have 1 to 64 letters, digits and ._@-, begin with a letter or digit, and not be "
            "12 hexadecimal digits, as ids are"
        )
    key_id = secrets.token_hex(6)
    secret = f"pl_{key_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    key = Key(
        id=key_id, name=name, scope=scope, sha256=_hash(secret), created_at=now.replace(microsecond=0),
        expires_at=expires_at, limits=limits, external_reasoning=external_reasoning,
    )  # fmt: skip
    return NewKey(key, secret)


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The keys, to look one up."""

    keys: Mapping[str, Key]
    """By id."""
    named: Mapping[str, Sequence[Key]]
    """By name, without those that had ended when the ring was made: of daily rotations that would be 90 to look at."""

    @classmethod
    def of(cls, listed: KeyList, now: datetime) -> KeyRing:
        """Return the ring of a list."""
        named: dict[str, list[Key]] = {}
        for key in listed.keys:
            if key.valid(now):
                named.setdefault(key.name, []).append(key)
        return cls({key.id: key for key in listed.keys}, named)

    def holder(self, sent: str, now: datetime) -> Key | None:
        """Return the key that a client sent; None: it is malformed, unknown, revoked or expired.

        All four take the same steps: a hash and a comparison in constant time.
        """
        match = _KEY.fullmatch(sent)
        key = self.keys.get(match[1]) if match else None
        same = hmac.compare_digest(_hash(sent), _NOBODYS if key is None else key.sha256)
        return key if same and key is not None and key.valid(now) else None

    def limits(self, key: Key, default: KeyLimits, now: datetime) -> KeyLimits:
        """Return what a key may take: the smallest limits of all valid keys of its name, which share what they use.

        Args:
            key: that was let in. Where no key of its name is valid any more, its own limits hold until it ends.
            default: limits of keys that have none of their own.
            now: the time.
        """
        valid = [one for one in self.named.get(key.name, ()) if one.valid(now)] or [key]
        limits = [default if one.limits is None else one.limits for one in valid]
        return limits[0] if len(limits) == 1 else KeyLimits.smallest(limits)


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def utc_now() -> datetime:
    """Return the time."""
    return datetime.now(UTC)
