"""Checks of JSON values that convert nothing, so that what was checked is passed on. Messages use JSON's terms.

A check yields a `(path, message)` pair for each problem. The path leads to a place inside the value; "" is the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import orjson

Problem = tuple[str, str]
Check = Callable[[object], Iterator[Problem]]

_SHOWN_CHARS = 80


def boolean(value: object) -> Iterator[Problem]:
    """Check for `true` or `false`."""
    if not isinstance(value, bool):
        yield "", f"must be true or false, got {shown(value)}"


def number(value: object) -> Iterator[Problem]:
    """Check for any number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        yield "", f"must be a number, got {shown(value)}"


def whole(least: int, most: int) -> Check:
    """Return a check for a whole number from `least` to `most`, both included."""

    def check(value: object) -> Iterator[Problem]:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            yield "", f"must be a whole number from {least} to {most}, got {shown(value)}"

    return check


def text(least: int, most: int) -> Check:
    """Return a check for a string of so many characters."""

    def check(value: object) -> Iterator[Problem]:
        if not isinstance(value, str):
            yield "", f"must be a string, got {shown(value)}"
        elif not least <= len(value) <= most:
            yield "", f"must be a string of {least} to {most} characters, has {len(value)}"

    return check


def one_of(*words: str) -> Check:
    """Return a check for one of these strings."""

    def check(value: object) -> Iterator[Problem]:
        if value not in words:
            yield "", f"must be {' or '.join(words)}, got {shown(value)}"

    return check


def listing(of: Check, most: int) -> Check:
    """Return a check for a list of at most so many values that all pass `of`."""

    def check(value: object) -> Iterator[Problem]:
        if not isinstance(value, list):
            yield "", f"must be a list, got {shown(value)}"
        elif len(value) > most:
            yield "", f"must be a list of at most {most}, has {len(value)}"
        else:
            for index, item in enumerate(value):
                yield from _under(f"[{index}]", of(item))

    return check


def mapping(of: Check, most: int) -> Check:
    """Return a check for an object of at most so many fields whose values all pass `of`."""

    def check(value: object) -> Iterator[Problem]:
        if not isinstance(value, dict):
            yield "", f"must be an object, got {shown(value)}"
        elif len(value) > most:
            yield "", f"must be an object of at most {most} fields, has {len(value)}"
        else:
            for key, item in value.items():
                yield from _under(f".{key}", of(item))

    return check


def record(fields: Mapping[str, Check]) -> Check:
    """Return a check for an object with these fields only; null means that a field is not given."""

    def check(value: object) -> Iterator[Problem]:
        if not isinstance(value, dict):
            yield "", f"must be an object, got {shown(value)}"
            return
        for key, item in value.items():
            if key not in fields:
                yield f".{key}", "unknown field"
            elif item is not None:
                yield from _under(f".{key}", fields[key](item))

    return check


def either(words: str, *checks: Check) -> Check:
    """Return a check for a value that passes any of the checks. `words` say what is allowed."""

    def check(value: object) -> Iterator[Problem]:
        if all(any(True for _ in check(value)) for check in checks):
            yield "", f"must be {words}, got {shown(value)}"

    return check


def anything(value: object) -> Iterator[Problem]:
    """Accept any value: it is checked elsewhere."""
    yield from ()


def shown(value: object) -> str:
    """Return a value as JSON, cut to a length for messages."""
    written = orjson.dumps(value).decode()
    return written if len(written) <= _SHOWN_CHARS else written[: _SHOWN_CHARS - 3] + "..."


def _under(path: str, problems: Iterable[Problem]) -> Iterator[Problem]:
    for inner, words in problems:
        yield path + inner, words
