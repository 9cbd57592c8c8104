"""The bodies of the OpenAI routes: an allowlist of vLLM's fields with their types, and limits where size costs.

vLLM 0.32 ignores fields that it does not know, and obeys some that a client must not set: `priority` overtakes other
requests, `kv_transfer_params` reaches the cache of another engine, `vllm_xargs` reaches our scheduler, `chat_template`
is a program, beam search multiplies the work. So a field that is not listed here is refused by its name. vLLM itself
checks the ranges of numbers (`temperature`, `top_p`, ...). Nothing here converts a value: vLLM gets what was checked.
As in OpenAI's API, null means that a field is not given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from router.errors import describe_problems
from router.request import MAX_STOPS
from router.spec_params import SpecParams
from serve_app.api.body import check_characters
from serve_app.api.errors import bad_request
from serve_app.config import Limits

_INT32: Final = 2**31 - 1
_INT64: Final = 2**63 - 1
_MAX_IDS: Final = 1024
"""Token ids in `logit_bias`, `allowed_token_ids` and similar fields: the engine processes them at each step."""
_MAX_TOOLS: Final = 128
_MAX_PROBLEMS: Final = 10
"""Problems in one error message."""
_MAX_ANSWER_TOKENS: Final = 1_000_000
"""Completion tokens of all answers of a request with several (`n` x prompts x `max_tokens`). More would hold an engine
longer than a request may take: 900 s at 1000 tokens/s."""


def _empty(value: dict[str, Any]) -> dict[str, Any]:
    if value:
        raise ValueError("vLLM's extra arguments are not allowed; use `spec` for speculative decoding")
    return value


Count = Annotated[int, Field(ge=0, le=_INT32)]
Positive = Annotated[int, Field(ge=1, le=_INT32)]
Int = Annotated[int, Field(ge=-_INT64 - 1, le=_INT64)]
Text = Annotated[str, Field(max_length=1_000_000)]
Word = Annotated[str, Field(min_length=1, max_length=32)]
Stop = Annotated[str, Field(min_length=1, max_length=256)]
Object = dict[str, Any]
Ids = Annotated[list[Count], Field(max_length=_MAX_IDS)]


class _StreamOptions(TypedDict, total=False):
    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]
    include_usage: bool | None
    continuous_usage_stats: bool | None
    include_obfuscation: bool | None


class _Body(TypedDict, total=False):
    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]
    model: Text
    spec: SpecParams  # our own field
    # Length
    max_tokens: Positive
    min_tokens: Count
    n: Positive
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)]
    stop_token_ids: Ids
    include_stop_str_in_output: bool
    ignore_eos: bool
    # Sampling
    temperature: float
    top_p: float
    top_k: Int
    min_p: float
    seed: Int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Annotated[dict[str, float], Field(max_length=_MAX_IDS)]
    allowed_token_ids: Ids
    bad_words: Annotated[list[Stop], Field(max_length=64)]
    # Form of the answer
    response_format: Object
    structured_outputs: Object
    skip_special_tokens: bool
    spaces_between_special_tokens: bool
    echo: bool
    prompt_logprobs: Int
    logprob_token_ids: Ids
    return_tokens_as_token_ids: bool
    return_token_ids: bool
    stream: bool
    stream_options: _StreamOptions
    stream_interval: Positive
    # Prompt
    add_special_tokens: bool
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=_INT32)]
    truncation_side: Literal["left", "right"]
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)]
    user: Text
    vllm_xargs: Annotated[Object, AfterValidator(_empty)]


class _ChatBody(_Body, total=False):
    messages: list[Object]
    max_completion_tokens: Positive
    logprobs: bool
    top_logprobs: Int
    tools: Annotated[list[Object], Field(max_length=_MAX_TOOLS)]
    tool_choice: Literal["none", "auto", "required"] | Object
    parallel_tool_calls: bool
    reasoning_effort: Word
    thinking_token_budget: Int
    include_reasoning: bool
    add_generation_prompt: bool
    continue_final_message: bool
    documents: Annotated[list[Object], Field(max_length=_MAX_IDS)]
    chat_template_kwargs: Object
    # OpenAI's clients send these; they have no meaning here.
    metadata: Object
    store: bool
    service_tier: Word
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)]
    prompt_cache_key: Text
    prompt_cache_retention: Word
    safety_identifier: Text


class _CompletionBody(_Body, total=False):
    prompt: Any  # `_count_prompts` checks it
    logprobs: Int


_CHAT: Final = TypeAdapter(_ChatBody)
_COMPLETION: Final = TypeAdapter(_CompletionBody)
_WITHOUT_MEANING: Final = frozenset(
    (
        "metadata",
        "store",
        "service_tier",
        "modalities",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "vllm_xargs",
    )
)
"""Fields that are accepted and not passed on to the engine."""
_READ_BY_THE_MODEL: Final = (
    "messages",
    "prompt",
    "tools",
    "documents",
    "chat_template_kwargs",
    "response_format",
    "structured_outputs",
)
"""Fields whose text counts towards `max_prompt_chars`: the chat template or the grammar compiler reads them."""


@dataclass(frozen=True, slots=True)
class OpenAIBody:
    """A checked body."""

    fields: dict[str, Any]
    """The given fields that have a meaning here; none is null."""
    sequences: int
    """Requested answers: `n` for each prompt."""

    @property
    def streaming(self) -> bool:
        """Whether the client requested SSE."""
        return self.fields.get("stream") is True

    def check_length(self, max_model_len: int) -> None:
        """Check how many tokens all answers together may have.

        Args:
            max_model_len: length of an answer for which the body sets none.

        Raises:
            ApiError: 400.
        """
        given = [self.fields[key] for key in ("max_completion_tokens", "max_tokens") if key in self.fields]
        each = given[0] if given else max_model_len
        if self.sequences > 1 and self.sequences * each > _MAX_ANSWER_TOKENS:
            raise bad_request(
                f"max_tokens: {self.sequences} sequences (n x prompts) of {each} tokens are "
                f"{self.sequences * each} tokens, allowed are {_MAX_ANSWER_TOKENS}",
                code="invalid_request",
            )


def parse_openai(body: Any, *, chat: bool, limits: Limits) -> OpenAIBody:
    """Check the body of `/v1/chat/completions` (`chat`) or `/v1/completions`.

    Raises:
        ApiError: 400 naming each wrong field, or the limit that is exceeded.
    """
    if not isinstance(body, dict):
        raise bad_request(f"the body must be a JSON object, got {type(body).__name__}")
    given = {key: value for key, value in body.items() if value is not None}
    problems = _problems(_CHAT if chat else _COMPLETION, given)
    prompts: int | None = 1
    if "prompt" in given and not chat:
        prompts = _count_prompts(given["prompt"])
        if prompts is None:
            problems.append("prompt: must be a string, a list of strings, a list of token ids, or a list of such lists")
    if problems or prompts is None:
        more = f"; and {len(problems) - _MAX_PROBLEMS} more" if len(problems) > _MAX_PROBLEMS else ""
        raise bad_request("; ".join(problems[:_MAX_PROBLEMS]) + more, code="invalid_request")
    check_characters(characters([given[key] for key in _READ_BY_THE_MODEL if key in given]), limits)
    sequences = prompts * given.get("n", 1)
    if sequences > limits.max_sequences:
        raise bad_request(
            f"n: {given.get('n', 1)} answers to each of {prompts} prompts are {sequences} sequences, "
            f"allowed are limits.max_sequences = {limits.max_sequences}",
            code="invalid_request",
        )
    return OpenAIBody({key: value for key, value in given.items() if key not in _WITHOUT_MEANING}, sequences)


def characters(value: object) -> int:
    """Count the characters of all strings in a JSON value, keys included. A number (a token id) counts as one."""
    count, level = 0, [value]
    while level:
        inner: list[object] = []
        for item in level:
            if isinstance(item, str):
                count += len(item)
            elif isinstance(item, dict):
                inner += item.keys()
                inner += item.values()
            elif isinstance(item, list):
                inner += item
            elif isinstance(item, int):
                count += 1
        level = inner
    return count


def _problems(model: TypeAdapter[Any], given: Mapping[str, Any]) -> list[str]:
    try:
        model.validate_python(given)
    except ValidationError as error:
        return describe_problems(error, model)
    return []


def _count_prompts(prompt: object) -> int | None:
    """Return how many prompts these are; None if they are not prompts."""
    if isinstance(prompt, str) or _are_token_ids(prompt):
        return 1
    if isinstance(prompt, list) and (
        all(isinstance(one, str) for one in prompt) or all(_are_token_ids(one) for one in prompt)
    ):
        return len(prompt)
    return None


def _are_token_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int and 0 <= one <= _INT32 for one in value)
