"""The bodies of the OpenAI routes: an allowlist of vLLM's fields with their types, and limits where size costs.

vLLM 0.32 ignores fields that it does not know, and obeys some that a client must not set: `priority` overtakes other
requests, `kv_transfer_params` reaches the cache of another engine, `vllm_xargs` reaches our scheduler, `chat_template`
is a program, beam search multiplies the work. So a field that is not listed here is refused by its name. vLLM itself
checks the ranges of numbers (`temperature`, `top_p`, ...). Nothing here converts a value: vLLM gets what was checked.
As in OpenAI's API, null means that a field is not given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from serve_app.api.body import check_characters
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
_MAX_STOPS: Final = 16
"""As in `/api/inference`: the engine searches for each of them after each token."""
_MAX_IDS: Final = 1024
"""Token ids in `logit_bias`, `allowed_token_ids` and similar fields: the engine processes them at each step."""
_MAX_TOOLS: Final = 128
_MAX_PROBLEMS: Final = 10
"""Problems in one error message."""
_MAX_ANSWER_TOKENS: Final = 1_000_000
"""Completion tokens of all answers of a request with several (`n` x prompts x `max_tokens`). More would hold an engine
longer than a request may take: 900 s at 1000 tokens/s."""

_COUNT: Final = whole(0, _INT32)
_INT: Final = whole(-_INT64 - 1, _INT64)
_TEXT: Final = text(0, 1_000_000)
_OBJECT: Final = mapping(anything, _INT32)
_IDS: Final = listing(whole(0, _INT32), _MAX_IDS)


def _empty(value: object) -> Iterator[Problem]:
    if value != {}:
        yield "", "must be {}: vLLM's extra arguments are not allowed; use `spec` for speculative decoding"


_SHARED: Final[Mapping[str, Check]] = MappingProxyType(
    {
        "model": _TEXT,
        # Our own field; `tier_choice.py` reads it.
        "spec": anything,
        # Length
        "max_tokens": whole(1, _INT32),
        "min_tokens": _COUNT,
        "n": whole(1, _INT32),
        "stop": either(
            f"a string, or a list of at most {_MAX_STOPS} strings, of 1 to 256 characters",
            text(1, 256),
            listing(text(1, 256), _MAX_STOPS),
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
        "logit_bias": mapping(number, _MAX_IDS),
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
        "vllm_xargs": _empty,
    }
)
_CHAT: Final[Mapping[str, Check]] = MappingProxyType(
    {
        **_SHARED,
        "messages": listing(_OBJECT, _INT32),
        "max_completion_tokens": whole(1, _INT32),
        "logprobs": boolean,
        "top_logprobs": _INT,
        "tools": listing(_OBJECT, _MAX_TOOLS),
        "tool_choice": either("none, auto, required or an object", one_of("none", "auto", "required"), _OBJECT),
        "parallel_tool_calls": boolean,
        "reasoning_effort": text(1, 32),
        "thinking_token_budget": _INT,
        "include_reasoning": boolean,
        "add_generation_prompt": boolean,
        "continue_final_message": boolean,
        "documents": listing(_OBJECT, _MAX_IDS),
        "chat_template_kwargs": _OBJECT,
        # OpenAI's clients send these; they have no meaning here.
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
        more = f"; and {len(problems) - _MAX_PROBLEMS} more" if len(problems) > _MAX_PROBLEMS else ""
        raise bad_request("; ".join(problems[:_MAX_PROBLEMS]) + more, code="invalid_request")
    chars = characters([given[key] for key in _READ_BY_THE_MODEL if key in given])
    check_characters(chars, limits)
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


def _problems(given: Mapping[str, Any], fields: Mapping[str, Check]) -> Iterator[Problem]:
    for key, value in given.items():
        if key not in fields:
            yield shown(key)[1:-1], "unknown field, or one that this server does not allow"
        else:
            yield from ((key + path, words) for path, words in fields[key](value))


def _prompts(prompt: object) -> int | None:
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
