"""A benchmark's prompt as a user would type it: without the template that the benchmark wraps around the task.

In training, each prompt counts half as given and half bare, so that the model learns little about the template's form.
The benchmark also scores the router on bare prompts. Only RouterArena's templates are known; another text stays as it
is.
"""

from __future__ import annotations

_PLAIN_WORDS = {
    "executable Python function": "Write this in Python.",
    "reading comprehension assistant": "Answer yes or no.",
    "Natural Language Inference": "Answer yes or no.",
}
"""Parts of a template that say what is asked, in plain words."""
_CONTEXT_HEADINGS = ("Context:", "Passage:")
_DROPPED_STARTS = (
    "Provide ",
    "Instructions:",
    "Options:",
    "- State the correct",
    "- Format your final",
    "- Keep your explanation",
    "Is the provided answer correct? Provide",
)
"""Beginnings of lines that belong to the template."""
_OPTIONS_HEADING = "Options : "


def bare_prompt(prompt: str) -> str:
    """Return the task of a prompt; the prompt itself if it has no known template."""
    head, question_heading, question = prompt.partition("Question:")
    if not question_heading:
        return _without_template_lines(prompt)
    plain_words = [plain for words, plain in _PLAIN_WORDS.items() if words in head]
    context = next((head.partition(heading)[2].strip() for heading in _CONTEXT_HEADINGS if heading in head), "")
    parts = [*plain_words, "" if context == "None" else context, question]
    return _without_template_lines("\n".join(part for part in parts if part))


def _without_template_lines(text: str) -> str:
    lines = [line for line in text.splitlines() if not line.strip().startswith(_DROPPED_STARTS)]
    return "\n".join(line.removeprefix(_OPTIONS_HEADING) for line in lines).strip()
