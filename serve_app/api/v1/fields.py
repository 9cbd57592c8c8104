"""The fields that bodies of the `/v1` routes share, as types."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, ConfigDict, Field
from typing_extensions import TypedDict

from router.request import MAX_STOPS

INT32: Final = 2**31 - 1
INT64: Final = 2**63 - 1
MAX_IDS: Final = 1024
"""Token ids in `logit_bias`, `allowed_token_ids` and similar fields: the engine processes them at each step."""
MAX_TOOLS: Final = 128


def _empty(value: dict[str, Any]) -> dict[str, Any]:
    if value:
        raise ValueError("vLLM's extra arguments are not allowed; use `spec` for speculative decoding")
    return value


Count = Annotated[int, Field(ge=0, le=INT32)]
Positive = Annotated[int, Field(ge=1, le=INT32)]
Int = Annotated[int, Field(ge=-INT64 - 1, le=INT64)]
Text = Annotated[str, Field(max_length=1_000_000)]
Word = Annotated[str, Field(min_length=1, max_length=32)]
Stop = Annotated[str, Field(min_length=1, max_length=256)]
Stops = Annotated[list[Stop], Field(max_length=MAX_STOPS)]
Object = dict[str, Any]
Ids = Annotated[list[Count], Field(max_length=MAX_IDS)]
Tools = Annotated[list[Object], Field(max_length=MAX_TOOLS)]
Salt = Annotated[str, Field(min_length=1, max_length=1024)]
Nothing = Annotated[Object, AfterValidator(_empty)]


class OwnFields(TypedDict, total=False):
    """Our own fields of every body. `InferenceRequest` checks them, as it does on `/api/inference`."""

    # Of all bodies: unknown fields are errors, and no value is converted, as vLLM gets what was checked.
    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]
    mode: Any
    power: Any
    speed: Any
    goal: Any
    constraints: Any
    spec: Any
    priority: Any


OWN_FIELDS: Final = tuple(OwnFields.__annotations__)


class SharedFields(OwnFields, total=False):
    """Fields that mean the same on every route, to vLLM or to nobody."""

    model: Text
    stream: bool
    temperature: float
    top_p: float
    top_k: Int
    cache_salt: Salt
    chat_template_kwargs: Object
    vllm_xargs: Nothing
    # Clients of OpenAI and Anthropic send these; they have no meaning here.
    metadata: Object
    service_tier: Word


class OpenAIFields(SharedFields, total=False):
    """Fields that mean the same on OpenAI's routes."""

    min_p: float
    seed: Int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Annotated[dict[str, float], Field(max_length=MAX_IDS)]
    stop: Stop | Stops
    stop_token_ids: Ids
    include_stop_str_in_output: bool
    ignore_eos: bool
    structured_outputs: Object
    skip_special_tokens: bool
    user: Text
    # No meaning
    prompt_cache_key: Text
    prompt_cache_options: Object
    prompt_cache_retention: Word
    safety_identifier: Text


NO_MEANING: Final = frozenset(
    (
        "metadata",
        "service_tier",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "vllm_xargs",
    )
)
"""Fields of all routes that are accepted and not passed on to the engine."""
ToolChoice = Literal["none", "auto", "required"] | Object
