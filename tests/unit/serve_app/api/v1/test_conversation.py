"""What the router reads of a body."""

from __future__ import annotations

from typing import Any

import pytest

from serve_app.api.v1.conversation import characters, conversation, other_text, token_ids
from tests.support.agent_requests import CLAUDE_CODE, CODEX


def read(**fields: Any) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in conversation(fields)]


TURNS = [("user", "My son swallowed bleach"), ("assistant", "Call a doctor."), ("user", "And how much of it?")]
PLAIN = [{"role": role, "content": text} for role, text in TURNS]
PARTS = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in TURNS]
ITEMS = [{"role": role, "content": [{"type": "input_text", "text": text}]} for role, text in TURNS]


@pytest.mark.parametrize(
    "fields", [{"messages": PLAIN}, {"messages": PARTS}, {"input": PLAIN}, {"input": ITEMS}], ids=str
)
def test_a_conversation_reads_the_same_in_every_form(fields: dict[str, Any]) -> None:
    assert read(**fields) == TURNS


@pytest.mark.parametrize("fields", [{"prompt": "Hi"}, {"input": "Hi"}, {"prompt": ["", "Hi", "x"]}])
def test_a_text_is_the_users_and_the_longest_stands_for_several(fields: dict[str, Any]) -> None:
    assert read(**fields) == [("user", "Hi")]


def test_system_prompts_come_first_wherever_they_are() -> None:
    assert read(system="S", messages=PLAIN) == [("system", "S"), *TURNS]
    assert read(system=[{"type": "text", "text": "S"}, {"type": "text", "text": "T"}], messages=PLAIN) == [
        ("system", "S"),
        ("system", "T"),
        *TURNS,
    ]
    assert read(instructions="S", input="Hi") == [("system", "S"), ("user", "Hi")]
    assert read(messages=[{"role": "developer", "content": "S"}]) == [("system", "S")]


def test_only_what_a_user_wrote_is_the_users() -> None:
    read_ = read(**CLAUDE_CODE)
    assert [text for role, text in read_ if role == "user"] == ["What does setup.py do?"]
    assert [role for role, _ in read_] == ["system"] * 4 + ["user", "assistant", "assistant", "system"]
    assert '"file_path":"/src/setup.py"' in read_[5][1]
    assert "from setuptools import setup" in read_[6][1]
    users = [text for role, text in read(**CODEX) if role == "user"]
    assert users == ["List the files.", "And what is in tests?"]
    whole = "\n".join(text for _, text in read(**CODEX))
    for part in ("I need ls.", "command", "setup.py\\ntests"):
        assert part in whole


def test_calls_and_results_of_tools_in_a_chat_are_read() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "42"},
    ]
    [first, second] = read(messages=turns)
    assert (first[0], '"name":"f"' in first[1]) == ("assistant", True)
    assert second == ("assistant", "42")


def test_media_have_no_text() -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "AAAA"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [image, {"type": "text", "text": "seen"}]}
    content = [image, {"type": "image_url", "image_url": {"url": "data:AAAA"}}, {"type": "text", "text": "Hi"}, result]
    [(role, text), (_, seen)] = read(messages=[{"role": "user", "content": content}])
    assert (role, text) == ("user", "Hi")
    assert "seen" in seen
    assert "AAAA" not in seen
    assert characters(image) == 0


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"prompt": [1, 2, 3]},
        {"messages": []},
        {"messages": ["Hi", 3, None]},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": None}]},
        {"messages": [{"role": "user", "content": [3, "x", None]}]},
    ],
)
def test_a_body_without_text_is_an_empty_prompt(fields: dict[str, Any]) -> None:
    assert read(**fields) == [("user", " ")]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "function_call"},
        {"role": 3, "content": {}},
        {"role": ["x"], "content": [{}]},
        {"content": [[]]},
        {"role": "user", "content": [{"type": {}, "text": "x"}]},
        {"role": "user", "content": [{"type": "tool_result", "content": [{"type": []}]}]},
    ],
)
def test_items_of_any_form_are_read_and_counted_without_an_error(item: Any) -> None:
    assert conversation({"messages": [item]})
    assert characters(item) > 0


def test_tools_and_documents_are_other_text() -> None:
    assert other_text({"messages": PLAIN}) == ""
    assert "Executes a given bash command." in other_text(CLAUDE_CODE)
    assert other_text({"documents": [{"text": "d"}]}) == '[{"text":"d"}]'


@pytest.mark.parametrize(
    ("prompt", "count"), [([1, 2, 3], 3), ([[1], [1, 2]], 2), ("Hi", 0), (["Hi"], 0), ([], 0), (None, 0)]
)
def test_token_ids_are_counted(prompt: Any, count: int) -> None:
    assert token_ids({"prompt": prompt}) == count


@pytest.mark.parametrize(
    ("text", "turns"),
    [
        ("<system-reminder>a</system-reminder>\nMy son swallowed bleach", [("system", 0), ("user", 1)]),
        ("My son swallowed bleach <system-reminder>a</system-reminder>", [("user", 1), ("system", 0)]),
        ("<system-reminder>a</system-reminder>", [("system", 0)]),
        ("<system-reminder>My son swallowed bleach", [("user", 2)]),
    ],
)
def test_a_reminder_in_the_users_text_is_the_systems_and_the_rest_the_users(
    text: str, turns: list[tuple[str, int]]
) -> None:
    pieces = ("<system-reminder>a</system-reminder>", "My son swallowed bleach", text)
    for content in (text, [{"type": "text", "text": text}]):
        assert read(messages=[{"role": "user", "content": content}]) == [(role, pieces[n]) for role, n in turns]


def test_many_reminders_without_an_end_are_read_in_one_go() -> None:
    text = "<system-reminder>" * 10_000
    assert read(messages=[{"role": "user", "content": text}]) == [("user", text)]
