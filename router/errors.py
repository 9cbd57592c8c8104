"""Errors shared by every room.

ConfigError: a profile, `serve_config.yaml` or command-line setting is wrong; nothing has started yet.
"""

from __future__ import annotations

from pydantic import ValidationError


class ConfigError(ValueError):
    """A setting is wrong. The message names the key, what it got and what it allows."""

    @classmethod
    def of(cls, error: ValidationError, where: str) -> ConfigError:
        """All problems that pydantic found, one line each."""
        return cls(f"{where}: " + "; ".join(describe_problems(error)))


def describe_problems(error: ValidationError) -> list[str]:
    """One sentence per problem: the dotted key, what is allowed, what was given."""
    lines = []
    for problem in error.errors(include_url=False):
        key = ".".join(str(part) for part in problem["loc"]) or "(top level)"
        message = problem["msg"].removeprefix("Value error, ")
        given = problem.get("input")
        if problem["type"] in ("missing", "value_error") or isinstance(given, dict):
            lines.append(f"{key}: {message}")
        else:
            lines.append(f"{key}: {message}, got {_short(given)}")
    return lines


def _short(value: object, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
