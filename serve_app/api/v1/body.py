"""Bodies of the `/v1` routes: an allowlist of fields with their types, and limits where size costs.

vLLM 0.32 ignores fields that it does not know, and obeys some that a client must not set: `priority` overtakes other
requests, `kv_transfer_params` reaches the cache of another engine, `vllm_xargs` reaches our scheduler, `chat_template`
is a program, beam search multiplies the work. So a field that is not listed is refused by its name. vLLM itself checks
the ranges of numbers (`temperature`, `top_p`, ...) and what is inside messages, items and tools. Nothing here converts
a value: vLLM gets what was checked. As in OpenAI's API, null means that a field is not given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from router.errors import describe_problems
from router.registry import TIER_NAMES
from router.request import InferenceRequest
from serve_app.admission.key_limits import USUAL_ANSWER_TOKENS
from serve_app.api.body import check_characters
from serve_app.api.errors import ErrorForm, bad_request
from serve_app.api.v1.conversation import characters
from serve_app.api.v1.fields import NO_MEANING, OWN_FIELDS
from serve_app.config import Limits

_MAX_PROBLEMS: Final = 10
"""Problems in one error message."""
_MAX_ANSWER_TOKENS: Final = 1_000_000
"""Completion tokens of all answers of a request with several (`n` x prompts x `max_tokens`). More would hold an engine
longer than a request may take: 900 s at 1000 tokens/s."""
_READ_BY_THE_MODEL: Final = (
    "messages",
    "prompt",
    "input",
    "system",
    "instructions",
    "tools",
    "documents",
    "chat_template_kwargs",
    "response_format",
    "structured_outputs",
    "text",
    "output_config",
)
"""Fields whose text counts towards `max_prompt_chars`: the chat template or the grammar compiler reads them."""
_CHARACTERS_PER_TOKEN: Final = 4
_OWN: Final = TypeAdapter(InferenceRequest)


@dataclass(frozen=True, slots=True)
class V1Api:
    """What distinguishes one route's body and answer from another's."""

    form: ErrorForm
    """Of its errors."""
    fields: type
    """Allowed fields: a `TypedDict`."""
    max_tokens: tuple[str, ...] = ()
    """Fields that limit the answer's tokens, the one that counts most first; none: the route generates nothing."""
    no_meaning: frozenset[str] = frozenset()
    """Fields that are accepted and not passed on, beside those of all routes."""
    check: Callable[[dict[str, Any]], list[str]] = lambda given: []
    """Returns what else is wrong with a body, and may take fields out of it."""
    must_limit: bool = False
    """Whether every request must limit its answer. Clients then give a limit that they do not need."""

    @property
    def known(self) -> frozenset[str]:
        """The names of the allowed fields."""
        return frozenset(self.fields.__annotations__)


@dataclass(frozen=True, slots=True)
class V1Body:
    """A checked body."""

    api: V1Api
    fields: dict[str, Any]
    """The given fields that have a meaning to the engine; none is null."""
    own: dict[str, Any]
    """Our own fields, checked."""
    sequences: int = 1
    """Requested answers: `n` for each prompt."""
    characters: int = 0
    """That the model reads; a token id counts as one."""

    @property
    def streaming(self) -> bool:
        """Whether the client requested SSE."""
        return self.fields.get("stream") is True

    @property
    def max_tokens(self) -> int | None:
        """Most tokens of one answer; None: the client set no limit."""
        return next((self.fields[key] for key in self.api.max_tokens if key in self.fields), None)

    @property
    def estimated_tokens(self) -> int:
        """About how many tokens it will take of its key's, with its answers; 0: it takes none."""
        if not self.api.max_tokens:
            return 0
        each = self.max_tokens or USUAL_ANSWER_TOKENS
        if self.api.must_limit:
            each = min(each, USUAL_ANSWER_TOKENS)
        return self.characters // _CHARACTERS_PER_TOKEN + self.sequences * each

    def check_length(self, max_model_len: int) -> None:
        """Check how many tokens all answers together may have.

        Args:
            max_model_len: length of an answer for which the body sets none.

        Raises:
            ApiError: 400.
        """
        each = self.max_tokens or max_model_len
        if self.sequences > 1 and self.sequences * each > _MAX_ANSWER_TOKENS:
            raise bad_request(
                f"max_tokens: {self.sequences} sequences (n x prompts) of {each} tokens are "
                f"{self.sequences * each} tokens, allowed are {_MAX_ANSWER_TOKENS}",
                code="invalid_request",
            )


def parse_v1(body: Any, api: V1Api, limits: Limits, *, betas: bool = False) -> V1Body:
    """Check the body of a `/v1` route.

    Args:
        body: as parsed.
        api: the route's.
        limits: on its size.
        betas: whether to leave out unknown fields, for clients whose beta features bring new ones.

    Raises:
        ApiError: 400 naming each wrong field, or the limit that is exceeded.
    """
    if not isinstance(body, dict):
        raise bad_request(f"the body must be a JSON object, got {type(body).__name__}")
    given = {key: value for key, value in body.items() if value is not None and (key in api.known or not betas)}
    problems = api.check(given) + _problems(_adapter(api.fields), given)
    own = {key: given.pop(key) for key in OWN_FIELDS if key in given}
    problems += _own_problems(own, given.get("model"))
    prompts = count_prompts(given["prompt"]) if "prompt" in given else 1
    if prompts is None:
        problems.append("prompt: must be a string, a list of strings, a list of token ids, or a list of such lists")
    if problems or prompts is None:
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
    without = NO_MEANING | api.no_meaning
    return V1Body(api, {key: value for key, value in given.items() if key not in without}, own, sequences, chars)


def count_prompts(prompt: object) -> int | None:
    """Return how many prompts these are; None if they are not prompts."""
    if isinstance(prompt, str) or are_token_ids(prompt):
        return 1
    if isinstance(prompt, list) and (
        all(isinstance(one, str) for one in prompt) or all(are_token_ids(one) for one in prompt)
    ):
        return len(prompt)
    return None


def are_token_ids(value: object) -> bool:
    """Return whether this is a prompt of token ids."""
    return isinstance(value, list) and bool(value) and all(type(one) is int and 0 <= one < 2**31 for one in value)


@cache
def _adapter(fields: type) -> TypeAdapter[Any]:
    return TypeAdapter(fields)


def _problems(adapter: TypeAdapter[Any], given: Mapping[str, Any]) -> list[str]:
    try:
        adapter.validate_python(given)
    except ValidationError as error:
        return describe_problems(error, adapter)
    return []


def _own_problems(own: Mapping[str, Any], model: object) -> list[str]:
    """Return what is wrong with our own fields, in the words of `/api/inference`."""
    if model in TIER_NAMES:
        clash = [key for key in ("mode", "power", "goal") if key in own]
        if clash:
            return [f"{key}: goes with model auto; model {model} is a tier's name" for key in clash]
    return _problems(_OWN, {"prompt": " ", **own})
