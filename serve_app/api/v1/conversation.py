"""What the router reads of a body: the conversation as plain messages, and other text that the model reads.

One reader serves all routes, as their fields have different names: `messages` (chat, Anthropic), `input` (responses),
`prompt` (completions), `system` and `instructions`. It takes any JSON, since the engine checks the rest.

Only what a user wrote is a user's message to the classifier. Results of tools and calls of tools are counted as the
assistant's, and what an agent adds in `<system-reminder>` as the system's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import orjson

from router.request import Message

Role = Literal["system", "user", "assistant"]
_ROLES: Final[dict[str, Role]] = {"system": "system", "developer": "system", "user": "user"}
"""All others are the assistant's, or a tool's."""
_MEDIA: Final = frozenset(
    (
        "audio",
        "container_upload",
        "document",
        "file",
        "image",
        "image_url",
        "input_audio",
        "input_file",
        "input_image",
        "redacted_thinking",
        "video_url",
    )
)
"""Parts without text for the router: mostly base64."""
_REMINDER: Final = "<system-reminder>"
_REMINDER_END: Final = "</system-reminder>"
"""Claude Code's marks of what it adds to the user's message."""


def conversation(fields: Mapping[str, Any]) -> tuple[Message, ...]:
    """Return the conversation of a body, oldest first; at least one message."""
    turns: list[tuple[Role, str]] = []
    for key in ("system", "instructions"):
        turns += [("system", text) for _, text in _pieces("system", fields.get(key))]
    turns += [piece for item in _items(fields) for piece in _turn(item)]
    return tuple(Message(role=role, content=text) for role, text in turns) or (Message(role="user", content=" "),)


def other_text(fields: Mapping[str, Any]) -> str:
    """Return what a chat template shows beside the messages, as JSON: tools and documents."""
    return "\n".join(_json(fields[key]) for key in ("tools", "documents") if fields.get(key))


def token_ids(fields: Mapping[str, Any]) -> int:
    """Return the tokens of the longest prompt that is given as ids."""
    prompt = fields.get("prompt")
    if not isinstance(prompt, list) or not prompt or isinstance(prompt[0], str):
        return 0
    return max(len(one) for one in prompt) if isinstance(prompt[0], list) else len(prompt)


def characters(value: object) -> int:
    """Count the characters of all strings in a JSON value, keys included. A number (a token id) counts as one.

    Images and other media are left out: their size is the body's.
    """
    count, level = 0, [value]
    while level:
        inner: list[object] = []
        for item in level:
            if isinstance(item, str):
                count += len(item)
            elif isinstance(item, dict):
                if not _is_media(item):
                    inner += item.keys()
                    inner += item.values()
            elif isinstance(item, list):
                inner += item
            elif isinstance(item, int):
                count += 1
        level = inner
    return count


def _items(fields: Mapping[str, Any]) -> list[Any]:
    """Return the turns of the conversation, in whichever field they are."""
    given = next((fields[key] for key in ("messages", "input") if key in fields), None)
    if isinstance(given, list):
        return given
    prompt = fields.get("prompt") if given is None else given
    if isinstance(prompt, list):  # several prompts: the longest stands for them
        prompt = max((one for one in prompt if isinstance(one, str)), key=len, default=None)
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else []


def _turn(item: Any) -> Iterator[tuple[Role, str]]:
    """Yield the pieces of one message or item, those of one role after each other as one."""
    if not isinstance(item, dict):
        return
    pieces: list[tuple[Role, str]] = []
    if "role" in item:
        pieces += _pieces(_ROLES.get(str(item["role"]), "assistant"), item.get("content"))
        for key in ("reasoning", "reasoning_content"):
            pieces += _pieces("assistant", item.get(key))
        if item.get("tool_calls"):
            pieces.append(("assistant", _json(item["tool_calls"])))
    else:  # an item of the Responses API that is no message: a call of a tool, its result, thoughts
        pieces += _pieces("assistant", [item])
    joined: list[tuple[Role, list[str]]] = []
    for role, text in pieces:
        if joined and joined[-1][0] == role:
            joined[-1][1].append(text)
        else:
            joined.append((role, [text]))
    for role, texts in joined:
        yield role, "\n".join(texts)


def _pieces(role: Role, content: Any) -> Iterator[tuple[Role, str]]:
    """Yield the texts of a content, which is a string or a list of parts; each with whose it is."""
    if isinstance(content, str):
        content = [{"text": content}]
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, dict) or _is_media(part):
            continue
        text = part.get("text")
        if not isinstance(text, str):
            yield "assistant", _without_media(part)
        elif role == "user":
            yield from _without_reminders(text)
        else:
            yield role, text


def _without_reminders(text: str) -> Iterator[tuple[Role, str]]:
    """Yield the user's own parts of a text, and the reminders in it as the system's. One that has no end is none."""
    rest = 0
    while (begin := text.find(_REMINDER, rest)) >= 0 and (end := text.find(_REMINDER_END, begin)) >= 0:
        if own := text[rest:begin].strip():
            yield "user", own
        rest = end + len(_REMINDER_END)
        yield "system", text[begin:rest]
    if own := text[rest:] if not rest else text[rest:].strip():
        yield "user", own


def _without_media(part: Mapping[str, Any]) -> str:
    """Return a part that is no text (a call of a tool, its result, a thought) as JSON."""
    for key in ("content", "output"):
        inner = part.get(key)
        if isinstance(inner, list):
            kept = [one for one in inner if not (isinstance(one, dict) and _is_media(one))]
            part = {**part, key: kept}
    return _json(part)


def _is_media(part: Mapping[str, Any]) -> bool:
    kind = part.get("type")  # of any type: an object could not be looked up
    return isinstance(kind, str) and kind in _MEDIA


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
