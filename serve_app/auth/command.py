"""`power-lever keys`: make, list, revoke and rotate API keys, in a file. No server is needed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import click
from rich.console import Console
from rich.table import Table

from router.errors import ConfigError
from serve_app.auth.key_file import changing, load_keys, write_keys
from serve_app.auth.keys import (
    KEY_SCOPES,
    MOST_COUNTED,
    NO_LIMITS,
    Key,
    KeyLimits,
    KeyList,
    KeyScope,
    NewKey,
    make_key,
    utc_now,
)
from serve_app.auth.settings import DEFAULT_KEYS_FILE
from serve_app.cli.numbers import FiniteRange

_WIDE: Final = 10_000
_NONE: Final = "none"
_ON_OFF: Final = ("off", "on")


Function = TypeVar("Function", bound=Callable[..., Any])
NoLimit = Literal["none"]


class _Limit(click.ParamType[float | NoLimit]):
    """A number, or the word for no limit."""

    name = "number"

    def __init__(self, number: click.ParamType[float]) -> None:
        self._number = number

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return f"NUMBER|{_NONE}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | NoLimit:
        if value == _NONE:
            return "none"
        number: float = self._number.convert(value, param, ctx)
        return number


def _limit_options(function: Function) -> Function:
    count, usd = _Limit(click.IntRange(1, MOST_COUNTED)), _Limit(FiniteRange(0))
    for option in (
        click.option("--agent-usd-per-day", type=usd, help="most that the router agent may cost each day, USD (UTC)"),
        click.option("--max-concurrent", type=count, help="requests that may be open at a time"),
        click.option("--tokens-per-minute", type=count, help="prompt and completion tokens in any minute"),
        click.option("--requests-per-minute", type=count, help="requests in any minute"),
    ):
        function = option(function)
    return function


def _limited(before: KeyLimits | None, given: dict[str, float | NoLimit | None]) -> KeyLimits | None:
    """Return the limits after those that were given; None: the application's default."""
    changed = {name: None if value == _NONE else value for name, value in given.items() if value is not None}
    if not changed:
        return before
    return KeyLimits.model_validate((before or NO_LIMITS).model_dump() | changed)


def _file_option(function: Function) -> Function:
    return click.option(
        "--file",
        "path",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="POWER_LEVER_KEYS_FILE",
        default=lambda: Path(DEFAULT_KEYS_FILE).expanduser(),
        show_default=DEFAULT_KEYS_FILE,
        show_envvar=True,
        help="the keys file, which `auth.keys_file` names",
    )(function)


@click.group()
def command() -> None:
    """Make, list, change, revoke and rotate API keys. A running application sees a change within seconds."""


@command.command()
@click.option("--name", required=True, help="who holds it, as it will stand in logs")
@click.option(
    "--scope",
    type=click.Choice(KEY_SCOPES),
    required=True,
    help="infer: may ask; admin: may also set who drafts, and read others' decisions",
)
@click.option(
    "--expires", type=click.DateTime(("%Y-%m-%d",)), metavar="DATE", help="2027-01-31: refused from then on, UTC"
)
@click.option(
    "--no-external-reasoning",
    "stays",
    is_flag=True,
    help="nothing of its requests goes to the router agent's API, outside the cluster",
)
@_limit_options
@_file_option
def new(
    path: Path, name: str, scope: KeyScope, expires: datetime | None, *, stays: bool, **limits: float | NoLimit | None
) -> None:
    """Make a key and print it, once: only its hash is kept. Makes the file where there is none.

    Keys that were revoked or expired more than 90 days ago are dropped from the file. A key without limits of its own
    has those of the application's config (`auth.default_limits`).

    \f
    Raises:
        ConfigError: there is a valid key of that name, or the file is wrong.
    """
    now = utc_now()
    expires_at = None if expires is None else expires.replace(tzinfo=UTC)
    if expires_at is not None and expires_at <= now:
        raise ConfigError(f"--expires: got {expires_at:%Y-%m-%d}, must be a day to come")
    made = make_key(name, scope, now, expires_at, _limited(None, limits), external_reasoning=not stays)
    with changing(path, new=True):
        listed = load_keys(path) if path.exists() else KeyList(version=1)
        if any(key.valid(now) for key in listed.named(name)):
            raise ConfigError(f"name: there is a valid key {name!r} already: rotate or revoke it, or take another name")
        write_keys(path, listed.with_new(made.key, now))
    _show(made)


@command.command("list")
@_file_option
def list_keys(path: Path) -> None:
    """List the keys of the file, also those that are revoked or expired."""
    now = utc_now()
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for column in ("id", "name", "scope", "state", "made", "expires", "external reasoning", "limits"):
        table.add_column(column, no_wrap=True)
    for key in load_keys(path).keys:
        end = key.expires_at if key.overlap_ends_at is None else key.ends_at
        expires = "-" if end is None else f"{end:%Y-%m-%d %H:%M}"
        made, limits = f"{key.created_at:%Y-%m-%d %H:%M}", _words(key.limits)
        table.add_row(
            key.id, key.name, key.scope, key.state(now), made, expires, _ON_OFF[key.external_reasoning], limits
        )
    (Console() if sys.stdout.isatty() else Console(width=_WIDE)).print(table)


@command.command()
@click.argument("name_or_id", metavar="NAME|ID")
@_file_option
def revoke(path: Path, name_or_id: str) -> None:
    """Revoke the valid keys of a name, or the one of an id.

    \f
    Raises:
        ConfigError: there is none, or the file is wrong.
    """
    now = utc_now()
    for key in _changed(path, name_or_id, now, lambda key: {"revoked_at": now}):
        click.echo(f"revoked {key.id} ({key.name}, {key.scope})", err=True)


@command.command()
@click.argument("name_or_id", metavar="NAME|ID")
@_limit_options
@click.option("--default", "default", is_flag=True, help="take its own limits away: `auth.default_limits` hold again")
@_file_option
def limits(path: Path, name_or_id: str, *, default: bool, **given: float | NoLimit | None) -> None:
    """Set limits of the valid keys of a name, or of the one of an id; `none` takes one away.

    A key with limits of its own has no others: what is not set has no limit, whatever `auth.default_limits` says.

    \f
    Raises:
        ConfigError: there is no such key, nothing to set, or the file is wrong.
    """
    if default == any(value is not None for value in given.values()):
        raise ConfigError("limits: give a limit, or --default, which goes with no other")

    def change(key: Key) -> dict[str, Any]:
        return {"limits": None if default else _limited(key.limits, given)}

    for key in _changed(path, name_or_id, utc_now(), change):
        click.echo(f"limits of {key.id} ({key.name}): {_words(key.limits)}", err=True)


@command.command("external-reasoning")
@click.argument("name_or_id", metavar="NAME|ID")
@click.argument("state", type=click.Choice(_ON_OFF))
@_file_option
def external_reasoning(path: Path, name_or_id: str, state: str) -> None:
    """Let something of a key's requests go to the router agent's API, or nothing: of the valid keys of a name, or of an
    id.

    \f
    Raises:
        ConfigError: there is no such key, or the file is wrong.
    """
    for key in _changed(path, name_or_id, utc_now(), lambda key: {"external_reasoning": state == "on"}):
        click.echo(f"external reasoning of {key.id} ({key.name}): {state}", err=True)


@command.command()
@click.argument("name_or_id", metavar="NAME|ID")
@click.option(
    "--overlap-hours",
    type=FiniteRange(0, 24 * 90),
    default=0.0,
    show_default=True,
    help="the old key stays valid for so long",
)
@_file_option
def rotate(path: Path, name_or_id: str, overlap_hours: float) -> None:
    """Make a new key of the same name, scope, day of expiry, limits and external reasoning, print it once, and end the
    old one.

    \f
    Raises:
        ConfigError: there is none, or the file is wrong.
    """
    now = utc_now()
    with changing(path):
        listed = load_keys(path)
        keys = _valid(listed, name_or_id, now)
        old = keys[-1]
        made = make_key(old.name, old.scope, now, old.expires_at, old.limits, external_reasoning=old.external_reasoning)
        ends_at = now + timedelta(hours=overlap_hours)
        ended = [_ending(key, now, ends_at) for key in keys]
        write_keys(path, listed.replaced(ended).with_new(made.key, now))
    _show(made)


def _ending(key: Key, now: datetime, ends_at: datetime) -> Key:
    """Return a key that ends then, or before."""
    if ends_at <= now:
        return key.model_copy(update={"revoked_at": now})
    # Not as its expiry, which the next rotation hands on.
    return key.model_copy(update={"overlap_ends_at": min(ends_at, key.overlap_ends_at or ends_at)})


def _words(limits: KeyLimits | None) -> str:
    return "default" if limits is None else str(limits)


def _changed(path: Path, name_or_id: str, now: datetime, change: Callable[[Key], dict[str, Any]]) -> list[Key]:
    """Change fields of the valid keys of a name, or of the one of an id, in the file; return these keys."""
    with changing(path):
        listed = load_keys(path)
        keys = [key.model_copy(update=change(key)) for key in _valid(listed, name_or_id, now)]
        write_keys(path, listed.replaced(keys))
    return keys


def _valid(listed: KeyList, name_or_id: str, now: datetime) -> list[Key]:
    keys = [key for key in listed.named(name_or_id) if key.valid(now)]
    if not keys:
        valid = ", ".join(f"{key.name} ({key.id})" for key in listed.keys if key.valid(now)) or "none"
        raise ConfigError(f"there is no valid key {name_or_id!r}; valid are: {valid}")
    return keys


def _show(made: NewKey) -> None:
    click.echo(f"id {made.key.id}, scope {made.key.scope}; the key, which is shown only now:", err=True)
    click.echo(made.secret)
