"""The router agent's settings: its mode, its model, and how much time and money it may take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import Field

from router.registry import YAML_OFF, Frozen

AgentMode = Literal["off", "auto", "single_shot", "multi_turn", "agent_sdk"]
ActiveMode = Literal["single_shot", "multi_turn", "agent_sdk"]
MAX_TURNS: Final = 4
"""Most turns of the model for one plan: the tools are four, and most plans need one round of them."""


class AgentPrices(Frozen):
    """What the agent's model costs, USD per million tokens."""

    input: float = Field(default=0.10, ge=0, description="Input tokens, USD per million.")
    cache_write: float = Field(default=0.125, ge=0, description="Input tokens written to the cache, USD per million.")
    cache_read: float = Field(default=0.01, ge=0, description="Input tokens read from the cache, USD per million.")
    output: float = Field(default=0.50, ge=0, description="Output tokens, USD per million.")
    source: str = Field(
        default="platform.claude.com/docs/en/models/haiku-5-5/overview, prompts up to 100,000 tokens, 2026-11",
        description="Where these prices come from; they are the default model's.",
    )


class AgentSettings(Frozen):
    """The router agent. It needs `ANTHROPIC_API_KEY` in the environment of the ingress."""

    mode: Annotated[AgentMode, YAML_OFF] = Field(
        default="auto",
        description="`single_shot`: Claude explains the router's choice, beside the answer; `multi_turn`, `agent_sdk`: "
        "Claude makes the choice first, within bounds; `off`: no agent; `auto`: `single_shot` if `ANTHROPIC_API_KEY` "
        "is set and the engines are real, else `off`.",
    )
    model: str = Field(default="claude-haiku-5-5", min_length=1, description="Model of the agent.")
    base_url: str | None = Field(
        default=None, description="URL of the Messages API; null: the SDK's own (`ANTHROPIC_BASE_URL` or Anthropic's)."
    )
    thinking: Literal["disabled", "default"] = Field(
        default="disabled",
        description="`disabled`: the model does not think before it answers; `default`: the model's own default, for "
        "models that cannot be told not to think.",
    )
    timeout_s: float = Field(
        default=8.0, gt=0, le=120, description="Longest time of all the agent's work on one request, s."
    )
    max_output_tokens: int = Field(default=400, ge=64, le=8192, description="Most output tokens of one call.")
    budget_usd: float = Field(default=0.005, ge=0, description="Most that the agent may cost for one request, USD.")
    usd_per_day: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        strict=True,
        description="Most that the agent may cost for all requests from 00:00 UTC to the next, USD; null: no limit. At "
        "it, answers come without the agent.",
    )
    prompt_chars: int = Field(
        default=4000,
        ge=0,
        le=100_000,
        description="How much of the user's prompt the agent sees, characters; 0: no word, only its length and "
        "classification.",
    )
    max_concurrent: int = Field(
        default=32, ge=1, description="Requests that may use the agent at a time, for each ingress replica."
    )
    pause_s: float = Field(
        default=30.0,
        ge=0,
        description="How long the API is not called after it failed three times in a row, s; 0: it always is.",
    )
    prices: AgentPrices = Field(default=AgentPrices(), description="Prices of the model.")


def active_mode(settings: AgentSettings, *, has_key: bool, mock: bool) -> ActiveMode | None:
    """Return the mode of the agent; None: off.

    Args:
        settings: from the config.
        has_key: whether there is an API key.
        mock: whether the engines are stubs. `auto` is then off, so that front-end development and tests call nobody.
    """
    if settings.mode == "off":
        return None
    if settings.mode == "auto":
        return "single_shot" if has_key and not mock else None
    return settings.mode


def never_asked(settings: AgentSettings, caps: Mapping[str, float | None]) -> list[str]:
    """Return a line for each daily cap that has no room for one request, so that the agent is never asked.

    Args:
        settings: of the agent.
        caps: beside `usd_per_day`, USD by where they are set; None: no cap. 0 says what it does.
    """
    if settings.mode == "off":
        return []
    return [
        f"{where}: {usd:g} USD is below agent.budget_usd = {settings.budget_usd:g}, which is held for each request: "
        "the agent is never asked"
        for where, usd in {"agent.usd_per_day": settings.usd_per_day, **caps}.items()
        if usd is not None and 0 < usd < settings.budget_usd
    ]
