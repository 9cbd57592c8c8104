"""`power-lever settings`: print `docs/settings.md` from the config classes. A test compares the two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from serve_app.config import AppConfig

# Set by `load_config`, not by an operator.
_INTERNAL = frozenset({"profile_reason"})
_HEADER = """\
# Settings

Every key that `serve_config.yaml` may set under `args`. Generated: `power-lever settings > docs/settings.md`.

Environment variables win over the file: `INFERENCE_MODE=mock` (the stub engine in every tier), `DEMO_MODE=1` (one warm
replica in every tier), `MODELS_DIR`. `ANTHROPIC_API_KEY` can only be a variable; the ingress reads it. On a running
cluster set the others in `serve_config.yaml`: the application is built there, not in your shell.

"""


@click.command()
def command() -> None:
    """Print every setting as Markdown, for docs/settings.md."""
    print(settings_page(), end="")


def settings_page() -> str:
    """Return the page: one row per setting (dotted key, default, description)."""
    rows = ["| key | default | meaning |", "| --- | --- | --- |"]
    for key, field in _settings(AppConfig, ""):
        rows.append(f"| `{key}` | {_default(field)} | {field.description} |")
    return _HEADER + "\n".join(rows) + "\n"


def _settings(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        if name in _INTERNAL:
            continue
        key = prefix + name
        inner = _inner_model(field.annotation)
        if inner is None:
            yield key, field
        else:
            yield from _settings(inner[1], key + inner[0])


def _inner_model(annotation: Any) -> tuple[str, type[BaseModel]] | None:
    """Return how the keys of a nested config class continue the path, and the class; None for a plain value."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return ".", annotation
    if origin is dict and isinstance(arguments[1], type) and issubclass(arguments[1], BaseModel):
        return ".NAME.", arguments[1]
    if origin is tuple and isinstance(arguments[0], type) and issubclass(arguments[0], BaseModel):
        return "[].", arguments[0]
    if origin is Union or type(None) in arguments:
        return next((found for found in map(_inner_model, arguments) if found), None)
    return None


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "from the profile"
    value = field.get_default(call_default_factory=True)
    return "none" if value in (None, (), {}) else f"`{str(value).lower() if isinstance(value, bool) else value}`"
