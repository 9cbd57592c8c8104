"""The options of `ask` and `plan` that are fields of a request."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar, get_args

import click

from router.errors import ConfigError
from router.request import LIMITS, Goal
from serve_app.cli.numbers import FiniteRange

Function = TypeVar("Function", bound=Callable[..., Any])
_DIAL: Final = click.IntRange(0, 100)
_LIMIT_HELP: Final = {
    "max_ttft_ms": "most time to the first token, ms",
    "max_total_ms": "most time to the last token, ms",
    "max_cost_usd": "most cost of the answer, USD",
    "max_energy_wh": "most energy of the answer, Wh",
    "max_co2_g": "most CO2 of the answer, g",
}
_LIMIT: Final = FiniteRange(min=0, min_open=True)


def request_options(function: Function) -> Function:
    """Add the argument and the options that `request_body` takes."""
    decorators = [
        click.argument("prompt", required=False),
        click.option("--system", metavar="TEXT", help="a system message before the prompt"),
        click.option("--power", type=_DIAL, metavar="0-100", help="power dial; without it AUTO sets it by the prompt"),
        click.option("--speed", type=_DIAL, metavar="0-100", help="speed dial: 0 is longest, 100 shortest"),
        click.option("--goal", type=click.Choice(get_args(Goal)), help="what matters most, in AUTO"),
        click.option("--max-tokens", type=int, metavar="N", help="most tokens of the answer"),
        *(
            click.option(f"--{limit.replace('_', '-')}", type=_LIMIT, metavar="X", help=_LIMIT_HELP[limit])
            for limit in LIMITS
        ),
    ]
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def request_body(prompt: str | None, system: str | None, power: int | None, **given: Any) -> dict[str, Any]:
    """Return the body of a request: what was given, and no more.

    Args:
        prompt: None, or `-`: read from stdin.
        system: a message before it.
        power: sets manual mode.
        given: other fields, among them the limits; None: not given.

    Raises:
        click.UsageError: the prompt is empty.
        ConfigError: a text is not UTF-8.
    """
    text = _stdin() if prompt is None or prompt == "-" else prompt
    if not text.strip():
        raise click.UsageError("the prompt is empty")
    body: dict[str, Any] = {"prompt": text}
    if system is not None:
        body = {"messages": [{"role": "system", "content": system}, {"role": "user", "content": text}]}
    if power is not None:
        body |= {"mode": "manual", "power": power}
    limits = {name: given.pop(name) for name in LIMITS if given.get(name) is not None}
    if limits:
        body["constraints"] = limits
    body |= {name: value for name, value in given.items() if value is not None}
    try:
        json.dumps(body, ensure_ascii=False).encode()  # Python keeps what it cannot decode as lone surrogates
    except UnicodeEncodeError as error:
        raise ConfigError("the prompt or an option is not UTF-8 text") from error
    return body


def _stdin() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ConfigError(f"the prompt on stdin is not {error.encoding} text") from error
