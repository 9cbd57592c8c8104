"""The body of `POST /api/inference`: one frozen model that refuses unknown keys."""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args

from pydantic import BeforeValidator, Field, StrictBool, model_validator

from router.registry import Escalate, Frozen, Power
from router.spec_params import SpecParams

Mode = Literal["auto", "manual"]
Goal = Literal["faster", "cheaper", "greener", "better"]
Priority = Literal["normal", "batch"]
MAX_STOPS: Final = 4
"""Stop strings of a request: vLLM's own limit (`VLLM_MAX_STOP_STRINGS`), as in OpenAI's API."""
Limit = Literal["max_ttft_ms", "max_total_ms", "max_cost_usd", "max_energy_wh", "max_co2_g"]
LIMITS: tuple[Limit, ...] = get_args(Limit)


Dial = Annotated[Power, Field(strict=True)]
"""JSON's numbers alone: `true` and `"5"` are mistakes."""
StopString = Annotated[str, Field(min_length=1, max_length=256)]


def _listed(value: object) -> object:
    """Return one string as a list of one, as OpenAI's API allows it."""
    return [value] if isinstance(value, str) else value


class Message(Frozen):
    """One chat message."""

    role: Literal["system", "user", "assistant"] = Field(description="Who wrote it.")
    content: str = Field(description="Its text.")


class Constraints(Frozen):
    """Limits that the plan should keep; the fields are those of `Limit`."""

    max_ttft_ms: float | None = Field(default=None, gt=0, strict=True, description="Time to first token, ms.")
    max_total_ms: float | None = Field(default=None, gt=0, strict=True, description="Time to the last token, ms.")
    max_cost_usd: float | None = Field(default=None, gt=0, strict=True, description="Cost of the answer, USD.")
    max_energy_wh: float | None = Field(default=None, gt=0, strict=True, description="Energy of the answer, Wh.")
    max_co2_g: float | None = Field(default=None, gt=0, strict=True, description="CO2 of the answer, g.")


class InferenceRequest(Frozen):
    """The body: exactly one of `prompt` and `messages`, the dials, limits, and sampling parameters."""

    prompt: str | None = Field(default=None, min_length=1, description="The user's text.")
    messages: tuple[Message, ...] | None = Field(default=None, min_length=1, description="A chat, oldest first.")
    mode: Mode = Field(
        default="auto", description="`auto`: power follows the prompt's difficulty; `manual`: power is the dial."
    )
    power: Dial | None = Field(default=None, description="Power dial, 0-100; only in manual mode (default 50).")
    speed: Dial | None = Field(default=None, description="Speed dial, 0-100 (default 50).")
    spec: SpecParams | None = Field(default=None, description="Speculative decoding of this request.")
    constraints: Constraints | None = Field(default=None, description="Limits that the plan should keep.")
    goal: Goal | None = Field(
        default=None, description="What matters most, in auto mode: it shifts the tier (`router/selection.py`)."
    )
    escalate: Escalate | None = Field(
        default=None,
        description="What happens where the answer goes wrong in mid-stream (`router/escalation.py`): `off`: nothing; "
        "`advise`: a trace step says which tier should go on; `auto`: that tier goes on. Default: the tier's.",
    )
    rewrite: StrictBool | None = Field(
        default=None,
        description="With `auto`: whether a stronger tier begins the answer anew instead of going on with its text. "
        "Default: the tier's.",
    )
    max_tokens: int | None = Field(
        default=None, ge=1, strict=True, description="Most completion tokens; default from the speed dial."
    )
    temperature: float | None = Field(
        default=None, ge=0, le=2, strict=True, description="Sampling temperature; default from speed."
    )
    top_p: float | None = Field(
        default=None, gt=0, le=1, strict=True, description="Nucleus sampling mass; default from speed."
    )
    seed: int | None = Field(default=None, ge=0, lt=2**63, strict=True, description="Sampling seed.")
    stop: Annotated[tuple[StopString, ...] | None, BeforeValidator(_listed)] = Field(
        default=None,
        max_length=MAX_STOPS,
        description="String or list of strings that end the answer; they are not part of it.",
    )
    logprobs: StrictBool = Field(default=False, description="True: each token event carries its log-probability.")
    reasoning: StrictBool = Field(
        default=True,
        description="True: a `reasoning` event explains the choice. False: none does, and nothing of the request goes "
        "to the router agent's API, whatever `agent.mode` is.",
    )
    priority: Priority = Field(
        default="normal",
        description="`batch`: it only uses what others leave: it waits behind them, and never takes the last quarter "
        "of a tier. For work that nobody waits for.",
    )
    mock: StrictBool = Field(
        default=False,
        description="True: the stub engine answers, for front-end development; only where the operator allows it.",
    )

    @model_validator(mode="after")
    def _one_input(self) -> InferenceRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give exactly one of `prompt` and `messages`")
        if self.mode == "auto" and self.power is not None:
            raise ValueError("`power` is set by the prompt in auto mode; send mode `manual` to set it yourself")
        if self.mode == "manual" and self.goal is not None:
            raise ValueError("`goal` shifts the tier in auto mode; in manual mode `power` picks the tier")
        return self

    def chat(self) -> tuple[Message, ...]:
        """Return the conversation as messages, whichever of the two inputs was given."""
        if self.messages is not None:
            return self.messages
        return (Message(role="user", content=self.prompt or ""),)
