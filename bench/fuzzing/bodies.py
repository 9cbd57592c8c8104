"""Bodies of the routes: valid by their own schema, nearly valid, and no JSON at all, as hypothesis's strategies."""

from __future__ import annotations

import copy
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final

from hypothesis import strategies as st
from pydantic import TypeAdapter

from router.registry import TIER_NAMES
from router.request import InferenceRequest
from serve_app.api.body import DraftsRequest
from serve_app.api.v1.anthropic import COUNT_TOKENS, MESSAGES
from serve_app.api.v1.fields import OWN_FIELDS
from serve_app.api.v1.openai import CHAT, COMPLETIONS, RESPONSES

Json = dict[str, Any]
Values = st.SearchStrategy[Any]

MODELS: Final = {
    "/api/inference": InferenceRequest,
    "/api/tiers/eco/drafts": DraftsRequest,
    "/v1/chat/completions": CHAT.fields,
    "/v1/completions": COMPLETIONS.fields,
    "/v1/responses": RESPONSES.fields,
    "/v1/messages": MESSAGES.fields,
    "/v1/messages/count_tokens": COUNT_TOKENS.fields,
}
"""What each route that reads a body takes."""
_NEEDS: Final = {
    "/v1/chat/completions": ("messages",),
    "/v1/completions": ("prompt",),
    "/v1/responses": ("input",),
    "/v1/messages": ("messages", "max_tokens"),
    "/v1/messages/count_tokens": ("messages",),
}
"""Fields that a request must have though its schema, which is open, does not say so."""
_NOT_HERE: Final = frozenset(("mcp_servers", "background", "include", "betas"))
"""Fields that must be empty, or that only servers elsewhere have, beside those whose type is open."""
_MOST_OPTIONS: Final = 6
"""Optional fields of one body."""
_LONGEST_TEXT: Final = 60

_deep = {f"@deep {levels}@": b"[" * levels + b"]" * levels for levels in (63, 64, 65, 250, 20_000)}
_RAW: Final[Mapping[str, bytes]] = {
    **_deep,
    "@objects@": b'{"a":' * 2_000 + b"1" + b"}" * 2_000,
    "@digits@": b"9" * 5_000,
    "@fraction@": b"0." + b"1" * 5_000,
    "@1e999@": b"1e999",
    "@-1e999@": b"-1e999",
    "@-0@": b"-0",
    "@twice@": b'{"role":"user","role":"system","content":"a","content":"b"}',
}
"""JSON that Python's writer does not write, by what stands for it until then."""
NASTY: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 1, 0.5, -0.5, 33, 65, 101, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1),
    *(2**64, 10**30, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf")),
    *(
        "",
        " ",
        "\x00",
        "a\x00b",
        "\x1b[31m",
        "\r\n\r\n",
        "\ud800",
        "\udfff\ud800",
        "a" * 257,
        "é" * 1_025,
        "\u202e",
        "🦔" * 500,
    ),
    *("NaN", "null", "auto", "eco", "0", "../../etc/passwd", "%s%n", "{{7*7}}", "<system-reminder>", "stub:tokens=-1"),
    *("<system-reminder></system-reminder>", "stub:", "stub:nothing=1", "stub:until=/etc/passwd", "stub:rate=1e9"),
    *("x" * 199_990, "x" * 200_001, "y " * 3_000, "data: [DONE]\n\n", "event: done\n\n"),
    *(
        [],
        {},
        [None],
        [[]],
        [{}],
        {"": None},
        {"type": "image"},
        ["a", 1],
        [-1],
        [2**31],
        list(range(1_025)),
        [{}] * 129,
    ),
    *(["s"] * 5, ["p"] * 65, [[1, 2], [3]], {"a": {"b": {"c": [1, {"d": None}]}}}, {"$ref": "#"}, *_RAW),
)
"""Values that readers of JSON, numbers and texts trip over, and those at the limits of docs/api.md and just over."""


@cache
def valid(path: str) -> st.SearchStrategy[Json]:
    """Return bodies as the route's schema has them."""
    schema = _schema(path)
    native = path == "/api/inference"
    body = _objects(schema, schema.get("$defs", {}), _NEEDS.get(path, ()))
    return body.map(_one_input) if native else body.map(_no_clash)


def nearly_valid(path: str) -> st.SearchStrategy[bytes]:
    """Return the JSON of bodies that have one to three faults."""
    change = st.tuples(st.integers(0, 10**6), st.sampled_from(("set", "set", "drop", "add", "wrap")), _nasty())
    return st.tuples(valid(path), st.lists(change, min_size=1, max_size=3)).map(lambda drawn: _spoilt(*drawn))


def not_json(path: str) -> st.SearchStrategy[bytes]:
    """Return bytes that no server may take for a JSON object."""
    return st.one_of(
        st.binary(max_size=200).map(lambda raw: b"\xff" + raw),
        st.tuples(valid(path), st.sampled_from(_SPOILERS)).map(lambda drawn: drawn[1](encoded(drawn[0]))),
        st.sampled_from((b"", b" ", b"null", b"[]", b"[{}]", b'"x"', b"1", b"{", b"{}}", b"{'a': 1}", b"NaN", b"true")),
    )


def encoded(body: Any) -> bytes:
    """Return the JSON of a body, with what stands for other JSON replaced."""
    # Surrogates that stand alone are written as their escapes.
    written = json.dumps(body).encode()
    for name, raw in _RAW.items():
        written = written.replace(json.dumps(name).encode(), raw)
    return written


_SPOILERS: Final[tuple[Callable[[bytes], bytes], ...]] = (
    lambda raw: raw[:-1],
    lambda raw: raw[: len(raw) // 2],
    lambda raw: raw + raw,
    lambda raw: raw[:-1] + b",}",
    lambda raw: b"\xef\xbb\xbf" + raw,
    lambda raw: raw.decode().encode("utf-16"),
    lambda raw: raw.decode().encode("utf-32-le"),
    lambda raw: raw[:1] + b'"\xe9\xff": 1, ' + raw[1:] if len(raw) > 2 else b'{"\xe9\xff": 1}',
    lambda raw: raw[:1] + b'"\x00\x01": 1, ' + raw[1:] if len(raw) > 2 else b'{"\x00": 1}',
    zlib.compress,
    lambda raw: b"&".join((b"prompt=x", raw)),
    lambda raw: b"[" + raw + b"]",
    lambda raw: raw[:1] + b" " * 1_000_001 + raw[1:],  # longer than `max_body_bytes`
)
"""Each makes something else of a JSON object."""


def _nasty() -> Values:
    return st.one_of(st.sampled_from(NASTY), st.floats(), st.integers(), st.text(max_size=20))


@cache
def _schema(path: str) -> Json:
    return TypeAdapter(MODELS[path]).json_schema()


def _one_input(body: Json) -> Json:
    """Keep to what fields of `/api/inference` allow one another."""
    if (body.get("prompt") is None) == (body.get("messages") is None):
        body = {key: value for key, value in body.items() if key != "messages"} | {"prompt": "hi stub:tokens=2"}
    if "messages" in body:  # whose contents are texts here
        body["messages"] = [said | {"content": _text(said["content"])} for said in body["messages"] or ()]
    return _no_clash({key: value for key, value in body.items() if key != "mock"})


def _text(content: str | list[Json]) -> str:
    return content if isinstance(content, str) else " ".join(part["text"] for part in content)


def _no_clash(body: Json) -> Json:
    """Leave out what does not go with other fields."""
    without = {"goal"} if body.get("mode") == "manual" else {"power"}
    if body.get("model", "auto") != "auto":
        without = {"mode", "power", "goal"}
    return {key: value for key, value in body.items() if key not in without}


def _objects(schema: Json, defs: Mapping[str, Json], needed: tuple[str, ...] = ()) -> st.SearchStrategy[Json]:
    properties: Json = schema.get("properties", {})
    if not properties:
        return st.dictionaries(st.text(max_size=8), _json(), max_size=3)
    made = {
        name: _named(name, given, defs)
        for name, given in properties.items()
        if name not in _NOT_HERE and (name in OWN_FIELDS or name in needed or not _is_open(given))
    }
    must = {name: made.pop(name) for name in {*schema.get("required", ()), *needed}}
    options = st.lists(st.sampled_from(sorted(made)), max_size=_MOST_OPTIONS, unique=True) if made else st.just([])
    return options.flatmap(lambda chosen: st.fixed_dictionaries({**must, **{name: made[name] for name in chosen}}))


def _is_open(schema: Json) -> bool:
    """Return whether any value has this type."""
    return not schema.keys() & {"type", "anyOf", "$ref", "const", "enum"}


def _named(name: str, schema: Json, defs: Mapping[str, Json]) -> Values:
    """Return values of a field: by its name where the schema leaves open what it is, else by the schema."""
    if name in OWN_FIELDS and _is_open(schema):
        own = _schema("/api/inference")
        return _values(own["properties"][name], own["$defs"])
    by_name = _by_name().get(name)
    return _values(schema, defs) if by_name is None else by_name


@cache
def _by_name() -> Mapping[str, Values]:
    few = st.integers(1, 48)
    return {
        "max_tokens": few,
        "max_completion_tokens": few,
        "max_output_tokens": few,
        "n": st.integers(1, 3),
        "model": st.sampled_from(("auto", *TIER_NAMES)),
        "prompt": _prompt(),
        "content": _prompt(),
        "input": st.one_of(_prompt(), _messages()),
        "messages": _messages(),
        "tools": st.lists(_tool(), max_size=3),
        "logit_bias": st.dictionaries(st.integers(0, 40_000).map(str), st.floats(-100, 100), max_size=3),
        "vllm_xargs": st.just({}),
    }


def _prompt() -> Values:
    """Return texts that the stub engine answers at once."""
    words = st.text(max_size=_LONGEST_TEXT).map(lambda text: text.replace("stub:", ""))
    return st.tuples(words, st.integers(0, 30)).map(lambda drawn: f"{drawn[0]} stub:tokens={drawn[1]} stub:rate=0")


def _messages() -> Values:
    part = st.fixed_dictionaries({"type": st.just("text"), "text": _prompt()})
    content = st.one_of(_prompt(), st.lists(part, min_size=1, max_size=3))
    said = st.fixed_dictionaries({"role": st.sampled_from(("user", "assistant", "system")), "content": content})
    return st.lists(said, min_size=1, max_size=4)


def _tool() -> Values:
    return st.fixed_dictionaries({"name": st.text("abc_", min_size=1, max_size=8), "input_schema": _json()})


def _json() -> Values:
    leaves = st.one_of(st.none(), st.booleans(), st.integers(-10, 10), st.text(max_size=8))
    return st.recursive(leaves, lambda inner: st.lists(inner, max_size=2), max_leaves=4)


def _values(schema: Json, defs: Mapping[str, Json]) -> Values:
    """Return the values of a JSON schema, of the kind that pydantic writes."""
    if "$ref" in schema:
        return _values(defs[schema["$ref"].rpartition("/")[2]], defs)
    if "anyOf" in schema:
        return st.one_of([_values(each, defs) for each in schema["anyOf"]])
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(schema.get("minimum", -(2**63)), schema.get("maximum", 2**63 - 1))
        case "number":
            low, high = schema.get("minimum", schema.get("exclusiveMinimum", -2)), schema.get("maximum", 1e6)
            return st.floats(low, high, exclude_min="exclusiveMinimum" in schema)
        case "string":
            low, high = schema.get("minLength", 0), schema.get("maxLength", _LONGEST_TEXT)
            return st.text(min_size=low, max_size=min(high, _LONGEST_TEXT))
        case "array":
            low, high = schema.get("minItems", 0), schema.get("maxItems", 3)
            return st.lists(_values(schema.get("items", {}), defs), min_size=low, max_size=min(high, 3))
        case "object":
            return _objects(schema, defs)
    return _json()


def _spoilt(body: Json, changes: list[tuple[int, str, Any]]) -> bytes:
    whole: Any = json.loads(json.dumps(body))  # a copy
    for number, change, given in changes:
        value = copy.deepcopy(given)  # later changes may be made inside it
        places = list(_places(whole))
        if change == "wrap" or not places:
            whole = {"body": whole} if number % 3 else [whole]
            continue
        container, key = places[number % len(places)]
        if change == "drop":
            del container[key]
        elif change == "add" and isinstance(container, dict):
            container[f"x{number}"] = value
        else:
            container[key] = value
    return encoded(whole)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield where values are, outer ones first: an object or a list, and the key or index there."""
    level = [value]
    while level:
        inner = []
        for container in level:
            for key in list(container) if isinstance(container, dict) else range(len(container)):
                yield container, key
                if isinstance(container[key], dict | list):
                    inner.append(container[key])
        level = inner
