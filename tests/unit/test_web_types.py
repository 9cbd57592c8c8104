"""The page's types (`serve_app/web/types.d.ts`) name only fields that docs/api.md has, and every event that it has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import get_args

import pytest

from router.registry import Escalate
from router.request import Constraints, Goal, InferenceRequest
from serve_app.engine.interface import Token
from tests.unit.test_api_doc import PAGE, ROOT, documented

TYPES = (ROOT / "serve_app/web/types.d.ts").read_text(encoding="utf-8")
_OPEN = re.compile(r"(\w+)\??: (Array<)?\{$")
_FIELD = re.compile(r"(\w+)\??: ([^;]+);$")


def fields(interface: str) -> Iterator[str]:
    """The dotted places of an interface's fields, as docs/api.md writes them; `Expected` stands for its own fields."""
    lines = iter(TYPES.split(f"export interface {interface} {{\n", 1)[1].splitlines())
    place: list[str] = []
    for line in lines:
        text = line.strip()
        if line == "}":
            return
        if opened := _OPEN.match(text):
            place.append(opened[1] + ("[]" if opened[2] else ""))
        elif text.startswith("}"):
            place.pop()
        elif field := _FIELD.match(text):
            name = ".".join([*place, field[1]])
            yield from [f"{name}.{each}" for each in fields("Expected")] if field[2] == "Expected" else [name]


def in_tiers(place: str) -> str:
    return f"tiers[].{place}"


@pytest.mark.parametrize(
    ("interface", "heading"),
    [("Config", "#### `config`"), ("Metrics", "#### `metrics`"), ("Decision", "## The decision")],
)
def test_the_page_reads_only_documented_fields_of_an_event(interface: str, heading: str) -> None:
    read = list(fields(interface))
    assert len(read) > 5
    assert sorted(set(read) - set(documented(heading))) == []


def test_the_page_reads_only_documented_fields_of_the_tiers() -> None:
    read = [*fields("Tiers"), *map(in_tiers, fields("Tier"))]
    listed = documented("## GET /api/tiers")
    assert len(read) > 15
    assert sorted(set(read) - set(listed) - {"tiers"}) == []


def test_the_page_knows_every_documented_event_and_no_other() -> None:
    table = PAGE.split("| event | data |", 1)[1].split("\n\n", 1)[0]
    events = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    known = set(
        re.findall(r"^  (\w+):", TYPES.split("export interface EventData {", 1)[1].split("}\n", 1)[0], re.MULTILINE)
    )
    assert known == events


def test_the_page_knows_every_field_of_a_token() -> None:
    assert sorted(fields("Token")) == sorted(Token._fields)


def test_the_page_sends_only_fields_that_a_request_has() -> None:
    assert set(fields("InferenceRequest")) <= set(InferenceRequest.model_fields)
    html = (ROOT / "serve_app/web/index.html").read_text(encoding="utf-8")
    assert set(re.findall(r'id="(\w+)"[^>]*data-limit', html)) == set(Constraints.model_fields)
    assert options(html, "goal") == list(get_args(Goal))
    # `rewrite` is `auto` with the field of that name.
    assert options(html, "escalate") == [*get_args(Escalate), "rewrite"]


def options(html: str, select: str) -> list[str]:
    """The values of a select box, without that of nothing chosen."""
    body = html.split(f'<select id="{select}"', 1)[1].split("</select>", 1)[0]
    return re.findall(r'<option value="(\w+)">', body)
