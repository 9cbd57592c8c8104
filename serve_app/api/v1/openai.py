"""The bodies of OpenAI's routes: chat, completions, responses."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from serve_app.api.v1.body import V1Api
from serve_app.api.v1.fields import (
    INT32,
    MAX_IDS,
    Count,
    Ids,
    Int,
    Object,
    OpenAIFields,
    Positive,
    Stop,
    Text,
    ToolChoice,
    Tools,
    Word,
)


class _StreamOptions(TypedDict, total=False):
    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]
    include_usage: bool | None
    continuous_usage_stats: bool | None
    include_obfuscation: bool | None


class _TextFields(OpenAIFields, total=False):
    """Of chat and completions."""

    # Length
    max_tokens: Positive
    min_tokens: Count
    n: Positive
    # Sampling
    allowed_token_ids: Ids
    bad_words: Annotated[list[Stop], Field(max_length=64)]
    # Form of the answer
    response_format: Object
    spaces_between_special_tokens: bool
    echo: bool
    prompt_logprobs: Int
    logprob_token_ids: Ids
    return_tokens_as_token_ids: bool
    return_token_ids: bool
    stream_options: _StreamOptions
    stream_interval: Positive
    # Prompt
    add_special_tokens: bool
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=INT32)]
    truncation_side: Literal["left", "right"]


class _ChatFields(_TextFields, total=False):
    messages: list[Object]
    max_completion_tokens: Positive
    logprobs: bool
    top_logprobs: Int
    tools: Tools
    tool_choice: ToolChoice
    parallel_tool_calls: bool
    reasoning_effort: Word
    thinking_token_budget: Int
    include_reasoning: bool
    add_generation_prompt: bool
    continue_final_message: bool
    documents: Annotated[list[Object], Field(max_length=MAX_IDS)]
    # No meaning
    store: bool
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)]


class _CompletionFields(_TextFields, total=False):
    prompt: Any  # `count_prompts` checks it
    logprobs: Int


class _ResponsesFields(OpenAIFields, total=False):
    input: str | list[Object]
    instructions: Text
    max_output_tokens: Positive
    max_tool_calls: Count
    parallel_tool_calls: bool
    reasoning: Object
    include_reasoning: bool
    text: Object
    tools: Tools
    tool_choice: ToolChoice
    top_logprobs: Int
    truncation: Literal["auto", "disabled"]
    include: Annotated[list[Text], Field(max_length=64)]
    # No meaning
    store: bool
    stream_options: Object
    context_management: list[Object]
    moderation: Object
    # What would need stored responses or OpenAI's servers; only values that do not are accepted (`_check_responses`).
    background: bool
    background_options: Object
    conversation: Any
    previous_response_id: Any
    prompt: Any
    access_programs: Any
    image: Any


STATELESS: Final = "responses are not stored here: send the whole conversation as `input`"
_NOT_HERE: Final = {
    "previous_response_id": STATELESS,
    "conversation": STATELESS,
    "prompt": "prompt templates are kept on OpenAI's servers; send their text as `instructions` and `input`",
    "access_programs": "is for OpenAI's servers",
    "image": "is for OpenAI's servers",
}
_SHOWN: Final = "message.output_text.logprobs"
"""The only entry of `include` that vLLM has something for; the others are of tools that OpenAI runs."""


def _check_responses(given: dict[str, Any]) -> list[str]:
    """Return what a client may not request; `include` keeps what has a meaning here."""
    problems = [f"{key}: {why}" for key, why in _NOT_HERE.items() if given.pop(key, None) is not None]
    if given.pop("background", False) is not False:
        problems.append("background: responses are not stored here, so they cannot be fetched later; got true")
    given.pop("background_options", None)
    if isinstance(given.get("include"), list):
        given["include"] = [one for one in given["include"] if one == _SHOWN or not isinstance(one, str)]
    return problems


CHAT: Final = V1Api("openai", _ChatFields, ("max_completion_tokens", "max_tokens"), frozenset(("store", "modalities")))
COMPLETIONS: Final = V1Api("openai", _CompletionFields, ("max_tokens",))
RESPONSES: Final = V1Api(
    "responses",
    _ResponsesFields,
    ("max_output_tokens",),
    frozenset(("store", "stream_options", "context_management", "moderation")),
    _check_responses,
)
