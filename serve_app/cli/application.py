"""A running application, as its commands reach it: over HTTP, at `--url`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import click
import httpx2

from router.application_key import KEY_VARIABLE, key_headers
from router.errors import ConfigError

DEFAULT_URL: Final = "http://localhost:8000"
_READ_WITHIN_S: Final = 10.0
_SILENT_S: Final = 60.0
"""A stream sends a status or a ping every few seconds; after a silence of this length, s, it is dead."""
Function = TypeVar("Function", bound=Callable[..., Any])


class ApplicationUrl(click.ParamType[str]):
    """The URL of an application, returned without a slash at its end."""

    name = "url"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the URL; wrong usage where it does not begin with `http://` or `https://`."""
        if not value.startswith(("http://", "https://")):
            self.fail(f"{value!r} needs http:// or https:// at its start, as in {DEFAULT_URL}", param, ctx)
        return value.rstrip("/")


def url_option(function: Function) -> Function:
    """Add `--url`: of the application; the environment's POWER_LEVER_URL, else the default of `make serve`."""
    return click.option(
        "--url",
        type=ApplicationUrl(),
        envvar="POWER_LEVER_URL",
        default=DEFAULT_URL,
        show_default=True,
        show_envvar=True,
        help="of the application",
    )(function)


class KeyNeededError(ConfigError):
    """The application asks for a key, and has got none or a wrong one."""


def read_tiers_view(url: str) -> dict[str, Any]:
    """Return the body of `GET /api/tiers`.

    Raises:
        ConfigError: the application does not answer, or something else does.
        KeyNeededError: it asks for a key.
    """
    place = f"{url}/api/tiers"
    headers = key_headers(os.environ)
    try:
        response = httpx2.get(place, timeout=_READ_WITHIN_S, headers=headers)
        if response.status_code == httpx2.codes.UNAUTHORIZED:
            was = f"the one in {KEY_VARIABLE} is not valid" if headers else f"set {KEY_VARIABLE}"
            raise KeyNeededError(f"{place} asks for a key: {was}")
        response.raise_for_status()
        body = response.json()
    except (httpx2.HTTPError, httpx2.InvalidURL, json.JSONDecodeError) as error:
        raise ConfigError(f"{place} cannot be read: {error}") from error
    if not isinstance(body, dict) or not isinstance(body.get("tiers"), list):
        raise ConfigError(f"{place} cannot be read: its answer is not that of Power Lever")
    return body


def served_entry(tier: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the chain entry of a tier of `/api/tiers` that it serves, or would try first."""
    chain: list[Mapping[str, Any]] = tier["chain"]
    return next((entry for entry in chain if entry["name"] == tier["active_entry"]), chain[0])


@contextmanager
def answer_events(url: str, body: Mapping[str, Any]) -> Iterator[Iterator[dict[str, Any]]]:
    """Ask `POST /api/inference`, and yield the events of its stream. Leaving the context ends the request.

    A refusal, a broken connection and a stream that ends too early are an `error` event, as an error in the stream is.
    """
    with httpx2.Client(timeout=httpx2.Timeout(_READ_WITHIN_S, read=_SILENT_S)) as client:
        yield _events(client, f"{url}/api/inference", body)


def _events(client: httpx2.Client, place: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    began = False
    try:
        with client.stream("POST", place, json=dict(body), headers=key_headers(os.environ)) as response:
            if response.status_code != httpx2.codes.OK:
                yield _refusal(place, response)
                return
            for line in response.iter_lines():
                if line.startswith("data: "):
                    event = json.loads(line.removeprefix("data: "))
                    began = True
                    yield event
                    if event["type"] in ("done", "error"):
                        return
    except (httpx2.HTTPError, httpx2.InvalidURL, json.JSONDecodeError) as error:
        what = "the answer was cut off" if began else f"{place} does not answer"
        yield error_event("connection", f"{what}: {error}")
    else:
        yield error_event("connection", "the answer was cut off")


def error_event(code: str, message: str, *, retryable: bool = True) -> dict[str, Any]:
    """Return an `error` event of the client's own."""
    return {"type": "error", "data": {"code": code, "message": message, "retryable": retryable, "request_id": None}}


def _refusal(place: str, response: httpx2.Response) -> dict[str, Any]:
    """Return the error event of an HTTP error; its body may come from a proxy."""
    response.read()
    try:
        error = response.json()["error"]
        return error_event(error["code"], error["message"], retryable=bool(error.get("retryable")))
    except (json.JSONDecodeError, KeyError, TypeError):
        return error_event("http_error", f"{place} answered with status {response.status_code}", retryable=False)
