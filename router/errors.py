"""The error of wrong settings, and pydantic's problems as sentences with the key, the value and what is allowed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_ARM: Final = re.compile(r"str|int|float|bool|constrained-\w+|(literal|list|tuple|dict|function-\w+)\[.*\]")


class ConfigError(ValueError):
    """A setting in a profile, in `serve_config.yaml` or on the command line is wrong; nothing has started yet."""

    @classmethod
    def of(cls, error: ValidationError, model: type[BaseModel], where: str) -> ConfigError:
        """Return an error with all problems that pydantic found, one sentence each."""
        return cls(f"{where}: " + "; ".join(describe_problems(error, model)))


def describe_problems(error: ValidationError, model: type[BaseModel] | None = None) -> list[str]:
    """Return one sentence for each problem: the dotted key, what is allowed, what was given.

    Args:
        error: raised by validating into `model`.
        model: lists the allowed keys for an unknown one; None: an unknown key is named alone.
    """
    lines = []
    for problem in error.errors(include_url=False):
        # pydantic names the arm of a union as if it were a key.
        loc = [part for part in problem["loc"] if not (isinstance(part, str) and _ARM.fullmatch(part))]
        key = ".".join(str(part) for part in loc) or "(top level)"
        message = _words(problem)
        if problem["type"] == "extra_forbidden":
            allowed = _keys_at(model, loc[:-1])
            lines.append(f"{key}: unknown key" + (f", allowed are {', '.join(allowed)}" if allowed else ""))
        elif problem["type"] in ("missing", "value_error") or isinstance(problem["input"], dict):
            lines.append(f"{key}: {message}")
        else:
            lines.append(f"{key}: {message}, got {_short(problem['input'])}")
    return lines


def _keys_at(model: type[BaseModel] | None, loc: Sequence[int | str]) -> list[str]:
    """Return the keys of the model at `loc` inside `model`; [] if there is no model."""
    places: list[Any] = [model]
    for part in loc:
        places = [inner for place in places for arm in _arms(place) for inner in _inside(arm, part)]
    return next((list(arm.model_fields) for place in places for arm in _arms(place) if _is_model(arm)), [])


def _arms(annotation: Any) -> list[Any]:
    """Return `X` and `Y` of `X | Y`; otherwise the annotation itself."""
    return list(get_args(annotation)) if get_origin(annotation) in (Union, UnionType) else [annotation]


def _inside(annotation: Any, part: int | str) -> list[Any]:
    """Return the types under `part` in a model, mapping or sequence of that type."""
    if _is_model(annotation):
        field = annotation.model_fields.get(part)
        return [field.annotation] if field else []
    arguments = get_args(annotation)
    if get_origin(annotation) in (dict, Mapping):
        return [arguments[1]]
    return [arguments[0]] if get_origin(annotation) in (tuple, list) else []


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _words(problem: ErrorDetails) -> str:
    """Return pydantic's message with `list` and `object`, as YAML and JSON call them."""
    match problem["type"]:
        case "tuple_type":
            return "Input should be a list"
        case "model_type" | "model_attributes_type" | "dict_type" | "mapping_type":
            return "Input should be an object"
        case "too_short":
            return f"Should have at least {problem['ctx']['min_length']} entries"
        case "too_long":
            return f"Should have at most {problem['ctx']['max_length']} entries"
        case _:
            return problem["msg"].removeprefix("Value error, ")


def _short(value: object, limit: int = 80) -> str:
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= limit else text[: limit - 3] + "..."
