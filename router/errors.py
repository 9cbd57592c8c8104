"""The error of wrong settings, and pydantic's problems as sentences with the key, the value and what is allowed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic import BaseModel, TypeAdapter, ValidationError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_ARM: Final = re.compile(r"str|int|float|bool|constrained-\w+|(literal|list|tuple|dict|function-\w+)\[.*\]")


class ConfigError(ValueError):
    """A setting in a profile, in `serve_config.yaml` or on the command line is wrong; nothing has started yet."""

    @classmethod
    def of(cls, error: ValidationError, model: type[BaseModel], where: str) -> ConfigError:
        """Return an error with all problems that pydantic found, one sentence each."""
        return cls(f"{where}: " + "; ".join(describe_problems(error, model)))


def describe_problems(error: ValidationError, model: type[BaseModel] | TypeAdapter[Any] | None = None) -> list[str]:
    """Return one sentence for each problem: the dotted key, what is allowed, what was given.

    Args:
        error: raised by validating into `model`.
        model: says what is allowed for an unknown key, and where several types are; None: pydantic's words alone.
    """
    schema = _schema(model) if model is not None else {}
    lines = []
    named: set[tuple[int | str, ...]] = set()
    for found in _by_key(error):
        key = ".".join(str(part) for part in found.loc) or "(top level)"
        problem = found.problems[0]
        if problem["type"] == "extra_forbidden":
            place = found.loc[:-1]
            allowed = [] if place in named else _keys(_at(schema, place))
            named.add(place)
            lines.append(f"{key}: unknown key" + (f", allowed are {', '.join(allowed)}" if allowed else ""))
            continue
        allowed = _allowed(_at(schema, found.loc)) if found.union else []
        words = f"must be {' or '.join(allowed)}" if allowed else " or ".join(map(_words, found.problems))
        given = problem["type"] in ("missing", "value_error") or isinstance(problem["input"], dict)
        lines.append(f"{key}: {words}" + ("" if given else f", got {_short(problem['input'])}"))
    return lines


def unknown_keys(data: object, model: type[BaseModel]) -> list[str]:
    """Return one sentence for each key that the model does not know, for a model that ignores these."""
    return list(_unknown(data, _schema(model), ()))


def _unknown(data: object, schema: Mapping[str, Any], loc: tuple[int | str, ...]) -> Iterator[str]:
    if isinstance(data, dict):
        objects = [place for place in _at(schema, loc) if place.get("type") == "object"]
        allowed = _keys(objects) if all("properties" in place for place in objects) else []
        for key, inner in data.items():
            if allowed and key not in allowed:
                name = ".".join(str(part) for part in (*loc, key))
                yield f"{name}: unknown key, allowed are {', '.join(allowed)}"
            else:
                yield from _unknown(inner, schema, (*loc, key))
    elif isinstance(data, list):
        for place, inner in enumerate(data):
            yield from _unknown(inner, schema, (*loc, place))


class _Found(NamedTuple):
    """What is wrong at one key."""

    loc: tuple[int | str, ...]
    problems: list[ErrorDetails]
    union: bool
    """Whether several types are allowed there, and these are the problems of each."""


def _by_key(error: ValidationError) -> list[_Found]:
    """Return the problems by key. Of a union of types, those inside the value if there are any, else all as one.

    pydantic reports a problem of each arm of a union, and names the arm as if it were a key.
    """
    unions: dict[tuple[int | str, ...], list[tuple[tuple[int | str, ...], ErrorDetails]]] = {}
    for problem in error.errors(include_url=False):
        if problem["type"] == "too_short" and len(problem["input"]) >= problem["ctx"]["min_length"]:
            continue  # pydantic counts only the right elements, and reports the wrong ones too
        arms = [place for place, part in enumerate(problem["loc"]) if isinstance(part, str) and _ARM.fullmatch(part)]
        loc = tuple(part for place, part in enumerate(problem["loc"]) if place not in arms)
        at = problem["loc"][: arms[0]] if arms else loc
        unions.setdefault(at, []).append((loc, problem))
    found = []
    for at, problems in unions.items():
        inside = [(loc, problem) for loc, problem in problems if len(loc) > len(at)]
        if inside or len(problems) == 1:
            found += [_Found(loc, [problem], union=False) for loc, problem in inside or problems]
        else:
            found.append(_Found(at, [problem for _, problem in problems], union=True))
    return found


@cache
def _schema(model: type[BaseModel] | TypeAdapter[Any]) -> dict[str, Any]:
    return model.json_schema() if isinstance(model, TypeAdapter) else model.model_json_schema()


def _at(schema: Mapping[str, Any], loc: Sequence[int | str]) -> list[Mapping[str, Any]]:
    """Return the JSON schemas at `loc`, one for each type that is allowed there."""
    places = _arms(schema, schema)
    for part in loc:
        inner = [_inside(place, part) for place in places]
        places = [arm for each in inner if isinstance(each, dict) for arm in _arms(each, schema)]
    return places


def _arms(place: Mapping[str, Any], schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return `X` and `Y` of `X | Y`; otherwise the schema itself."""
    if "$ref" in place:
        return _arms(schema["$defs"][place["$ref"].rsplit("/", 1)[1]], schema)
    return [arm for each in place["anyOf"] for arm in _arms(each, schema)] if "anyOf" in place else [place]


def _inside(place: Mapping[str, Any], part: int | str) -> Any:
    """Return the schema under `part` in an object or a list of that schema; None if there is none."""
    if isinstance(part, int):
        return place.get("items")
    return place.get("properties", {}).get(part) or place.get("additionalProperties")


def _keys(places: Sequence[Mapping[str, Any]]) -> list[str]:
    return next((list(place["properties"]) for place in places if "properties" in place), [])


def _allowed(places: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what is allowed, in words: `a number 0-1`, `'auto'`."""
    words = [_allowed_by(place) for place in places if place.get("type") != "null"]
    return [word for word in words if word]


def _allowed_by(place: Mapping[str, Any]) -> str:
    if "const" in place or "enum" in place:
        return ", ".join(repr(value) for value in place.get("enum", [place.get("const")]))
    match place.get("type"):
        case "integer":
            return "an integer" + _bounds(place)
        case "number":
            return "a number" + _bounds(place)
        case "string":
            return "a string"
        case "boolean":
            return "true or false"
        case "array":
            most = place.get("maxItems")
            return f"a list of at most {most}" if most else "a list"
        case "object":
            return "an object"
    return ""


def _bounds(place: Mapping[str, Any]) -> str:
    low, high = place.get("minimum"), place.get("maximum")
    if low is not None and high is not None:
        return f" {low:g}-{high:g}"
    return f" of at least {low:g}" if low is not None else f" of at most {high:g}" if high is not None else ""


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
