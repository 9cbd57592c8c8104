"""The bodies that the OpenAI routes take: an allowlist of vLLM's fields, with types and the bounds of what costs.

vLLM 0.32 ignores fields that it does not know, and knows some that are no client's business: `priority` overtakes
others, `kv_transfer_params` speaks to the cache of another engine, `vllm_xargs` reaches our scheduler, `chat_template`
is a program, beam search multiplies the work. So a field that is not listed here is refused by its name. What a number
may be (`temperature`, `top_p`, ...) is left to vLLM, which says so itself; nothing here converts a value, so what was
checked is what vLLM gets. As in OpenAI's API, null stands for a field that is not given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from serve_app.api.errors import bad_request
from serve_app.api.openai.json_checks import (
    Check,
    Problem,
    anything,
    boolean,
    either,
    listing,
    mapping,
    number,
    one_of,
    record,
    shown,
    text,
    whole,
)
from serve_app.config import Limits

_INT32: Final = 2**31 - 1
_INT64: Final = 2**63 - 1
_MOST_STOPS: Final = 16
"""As on `/api/inference`: the engine looks for each of them after each token."""
_MOST_IDS: Final = 1024
"""Token ids in `logit_bias`, `allowed_token_ids` and the like, which the engine handles at each step."""
_MOST_TOOLS: Final = 128
_MOST_PROBLEMS: Final = 10
"""Problems that one message tells."""

_COUNT: Final = whole(0, _INT32)
_INT: Final = whole(-_INT64 - 1, _INT64)
_TEXT: Final = text(0, 1_000_000)
_OBJECT: Final = mapping(anything, _INT32)
_IDS: Final = listing(whole(0, _INT32), _MOST_IDS)


def _none(value: object) -> Iterator[Problem]:
    if value != {}:
        yield "", "extra arguments of vLLM are not taken; `spec` is the field for speculative decoding"


_SHARED: Final[Mapping[str, Check]] = MappingProxyType(
    {
        "model": _TEXT,
        # Ours; `openai_relay.choose` reads it.
        "spec": anything,
        # Length
        "max_tokens": whole(1, _INT32),
        "min_tokens": _COUNT,
        "n": whole(1, _INT32),
        "stop": either(
            f"a string, or a list of at most {_MOST_STOPS} strings, of 1 to 256 characters",
            text(1, 256),
            listing(text(1, 256), _MOST_STOPS),
        ),
        "stop_token_ids": _IDS,
        "include_stop_str_in_output": boolean,
        "ignore_eos": boolean,
        # Sampling
        "temperature": number,
        "top_p": number,
        "top_k": _INT,
        "min_p": number,
        "seed": _INT,
        "presence_penalty": number,
        "frequency_penalty": number,
        "repetition_penalty": number,
        "logit_bias": mapping(number, _MOST_IDS),
        "allowed_token_ids": _IDS,
        "bad_words": listing(text(1, 256), 64),
        # Form of the answer
        "response_format": _OBJECT,
        "structured_outputs": _OBJECT,
        "skip_special_tokens": boolean,
        "spaces_between_special_tokens": boolean,
        "echo": boolean,
        "prompt_logprobs": _INT,
        "logprob_token_ids": _IDS,
        "return_tokens_as_token_ids": boolean,
        "return_token_ids": boolean,
        "stream": boolean,
        "stream_options": record(
            {"include_usage": boolean, "continuous_usage_stats": boolean, "include_obfuscation": boolean}
        ),
        "stream_interval": whole(1, _INT32),
        # Prompt
        "add_special_tokens": boolean,
        "truncate_prompt_tokens": whole(-1, _INT32),
        "truncation_side": one_of("left", "right"),
        "cache_salt": text(1, 1024),
        "user": _TEXT,
        "vllm_xargs": _none,
    }
)
_CHAT: Final[Mapping[str, Check]] = MappingProxyType(
    {
        **_SHARED,
        "messages": listing(_OBJECT, _INT32),
        "max_completion_tokens": whole(1, _INT32),
        "logprobs": boolean,
        "top_logprobs": _INT,
        "tools": listing(_OBJECT, _MOST_TOOLS),
        "tool_choice": either("none, auto, required or an object", one_of("none", "auto", "required"), _OBJECT),
        "parallel_tool_calls": boolean,
        "reasoning_effort": text(1, 32),
        "thinking_token_budget": _INT,
        "include_reasoning": boolean,
        "add_generation_prompt": boolean,
        "continue_final_message": boolean,
        "documents": listing(_OBJECT, _MOST_IDS),
        "chat_template_kwargs": _OBJECT,
        # Taken from OpenAI's clients, and without meaning here.
        "metadata": _OBJECT,
        "store": boolean,
        "service_tier": text(1, 32),
        "modalities": listing(one_of("text"), 1),
        "prompt_cache_key": _TEXT,
        "prompt_cache_retention": text(1, 32),
        "safety_identifier": _TEXT,
    }
)
_COMPLETION: Final[Mapping[str, Check]] = MappingProxyType({**_SHARED, "prompt": anything, "logprobs": _INT})
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
"""Fields that the engine does not get."""
_READ_BY_THE_MODEL: Final = (
    "messages",
    "prompt",
    "tools",
    "documents",
    "chat_template_kwargs",
    "response_format",
    "structured_outputs",
)
"""Fields whose text counts against `max_prompt_chars`: the template or the grammar compiler reads them."""


@dataclass(frozen=True, slots=True)
class OpenAIBody:
    """A body that was checked."""

    fields: dict[str, Any]
    """What was given and has a meaning here; no field is null."""
    sequences: int
    """Answers that it asks for: `n` for each prompt."""

    @property
    def streaming(self) -> bool:
        """Whether the client asked for SSE."""
        return self.fields.get("stream") is True

    def check_length(self, max_model_len: int, limits: Limits) -> None:
        """Hold what may be generated in all sequences together against the limit.

        Args:
            max_model_len: how long a chat's answer may get that names no length.
            limits: of the application.

        Raises:
            ApiError: 400.
        """
        named = [self.fields[key] for key in ("max_completion_tokens", "max_tokens") if key in self.fields]
        each = named[0] if named else max_model_len
        if self.sequences > 1 and self.sequences * each > limits.max_answer_tokens:
            raise bad_request(
                f"max_tokens: {self.sequences} sequences (n x prompts) of {each} tokens are "
                f"{self.sequences * each} tokens, allowed are max_answer_tokens = {limits.max_answer_tokens}",
                code="invalid_request",
            )


def parse_openai(body: Any, *, chat: bool, limits: Limits) -> OpenAIBody:
    """The body of `/v1/chat/completions` (`chat`) or `/v1/completions`.

    Raises:
        ApiError: 400 naming each wrong field, or what is too long or too many.
    """
    if not isinstance(body, dict):
        raise bad_request(f"the body must be a JSON object, got {shown(body)}")
    given = {key: value for key, value in body.items() if value is not None}
    problems = [f"{path}: {words}" for path, words in _problems(given, _CHAT if chat else _COMPLETION)]
    prompts = 1
    if "prompt" in given and not chat:
        counted = _prompts(given["prompt"])
        if counted is None:
            words = "must be a string, a list of strings, a list of token ids, or a list of such lists"
            problems.append(f"prompt: {words}, got {shown(given['prompt'])}")
        else:
            prompts = counted
    if problems:
        more = f"; and {len(problems) - _MOST_PROBLEMS} more" if len(problems) > _MOST_PROBLEMS else ""
        raise bad_request("; ".join(problems[:_MOST_PROBLEMS]) + more, code="invalid_request")
    chars = characters([given[key] for key in _READ_BY_THE_MODEL if key in given])
    check_characters(chars, limits)
    sequences = prompts * given.get("n", 1)
    if sequences > limits.max_sequences:
        raise bad_request(
            f"n: {given.get('n', 1)} answers to each of {prompts} prompts are {sequences} sequences, "
            f"allowed are max_sequences = {limits.max_sequences}",
            code="invalid_request",
        )
    return OpenAIBody({key: value for key, value in given.items() if key not in _WITHOUT_MEANING}, sequences)


def characters(value: object) -> int:
    """Characters of all the texts inside a JSON value, names of fields included; a token id counts as one."""
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


def check_characters(chars: int, limits: Limits) -> None:
    """Hold the length of a whole conversation against the limit.

    Raises:
        ApiError: 400.
    """
    if chars > limits.max_prompt_chars:
        message = f"prompt: has {chars} characters, allowed are max_prompt_chars = {limits.max_prompt_chars}"
        raise bad_request(message, code="prompt_too_long")


def _problems(given: Mapping[str, Any], fields: Mapping[str, Check]) -> Iterator[Problem]:
    for key, value in given.items():
        if key not in fields:
            yield shown(key)[1:-1], "unknown field, or one that this server does not take"
        else:
            yield from ((key + path, words) for path, words in fields[key](value))


def _prompts(prompt: object) -> int | None:
    """How many prompts these are; None for what is none."""
    if isinstance(prompt, str) or _are_token_ids(prompt):
        return 1
    if isinstance(prompt, list) and (
        all(isinstance(one, str) for one in prompt) or all(_are_token_ids(one) for one in prompt)
    ):
        return len(prompt)
    return None


def _are_token_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int and 0 <= one <= _INT32 for one in value)
