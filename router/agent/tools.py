"""The router's tools, each defined once: its input, its output, its function and its description.

The tools of the Messages API (`messages_api_tool`), of the MCP server (`mcp_server.py`) and of the Agent SDK (`sdk.py`)
are made from these definitions, and so are the trace steps of tools that an agent calls. All tools are read-only and
pure: the live state comes in with the `ToolContext`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError
from pydantic.json_schema import GenerateJsonSchema

from router.decision import Decision
from router.dials import DEFAULT_SPEED
from router.difficulty.categories import Category
from router.difficulty.classify import classify_prompt
from router.errors import describe_problems
from router.needs import NoTierError
from router.observation import Observation
from router.plan import classify_chat, engine_settings, plan
from router.registry import DraftTokens, Frozen, Power, Profile, TierName
from router.request import InferenceRequest
from router.runs.summary import NO_RUNS, Recent, RunSummary
from router.spec_params import SpecParams
from router.trace_steps import BuiltConfig, ClassifiedPrompt, RecentRuns, TierPool, built_config, classified, tier_pool

if TYPE_CHECKING:
    from anthropic.types import ToolParam

InputT = TypeVar("InputT", bound=BaseModel)
OutputT = TypeVar("OutputT", bound=BaseModel)

MOST_PROMPT_CHARS: Final = 200_000


class ToolError(Exception):
    """A tool cannot answer. The message says why and goes to the caller of the tool."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What the tools work on."""

    profile: Profile
    observation: Observation
    request: InferenceRequest | None = None
    """The current request; None outside of one (a call by an MCP client)."""


class ClassifyPromptInput(Frozen):
    """Arguments of `classify_prompt`."""

    prompt: str | None = Field(
        default=None,
        max_length=MOST_PROMPT_CHARS,
        description="Text to classify; null: the prompt of the current request, in its conversation.",
    )


class CheckGpuPoolInput(Frozen):
    """Arguments of `check_gpu_pool`."""

    tier: TierName = Field(description="Tier to look at.")


class BuildConfigInput(Frozen):
    """Arguments of `build_config`."""

    tier: TierName = Field(description="Tier to answer on.")
    speed: Power | None = Field(
        default=None, description="Speed dial, 0 (thorough) to 100 (terse); null: the request's, or 50."
    )
    k: DraftTokens | None = Field(
        default=None, description="Draft tokens per step, 0-32 or `auto`; null: the request's, or the tier's own."
    )
    tau: float | None = Field(
        default=None, ge=0, le=1, description="Acceptance rate (0-1) below which drafting stops; null: as for `k`."
    )


class DecisionInput(Frozen):
    """Arguments of `decision`."""

    prompt: str | None = Field(
        default=None,
        min_length=1,
        max_length=MOST_PROMPT_CHARS,
        description="Prompt of an imagined request; null: the current request.",
    )


class RecentRunsInput(Frozen):
    """Arguments of `recent_runs`."""

    tier: TierName = Field(description="Tier to look at.")
    category: Category | None = Field(default=None, description="Category of the prompts; null: all together.")


@dataclass(frozen=True, slots=True)
class Tool(Generic[InputT, OutputT]):
    """One tool."""

    name: str
    description: str
    input_type: type[InputT]
    output_type: type[OutputT]
    run: Callable[[InputT, ToolContext], OutputT]

    def call(self, arguments: Mapping[str, Any], context: ToolContext) -> OutputT:
        """Return the tool's answer to arguments that are not yet checked.

        Raises:
            ToolError: the arguments are wrong, or there is no answer.
        """
        try:
            return self.run(self.input_type.model_validate(arguments), context)
        except ValidationError as error:
            raise ToolError("; ".join(describe_problems(error, self.input_type))) from error


def _classify_prompt(arguments: ClassifyPromptInput, context: ToolContext) -> ClassifiedPrompt:
    if arguments.prompt is not None:
        return classified(classify_prompt(arguments.prompt, auto=context.profile.auto))
    if context.request is None:
        raise ToolError("prompt: there is no current request, so the text must be given")
    # Neither may the agent see words of it beyond those in its block of data.
    return classified(classify_chat(context.request.chat(), context.profile.auto), quoting=False)


def _check_gpu_pool(arguments: CheckGpuPoolInput, context: ToolContext) -> TierPool:
    return tier_pool(arguments.tier, context.profile.tiers[arguments.tier], context.observation)


def _build_config(arguments: BuildConfigInput, context: ToolContext) -> BuiltConfig:
    tier, state = context.profile.tiers[arguments.tier], context.observation.tier(arguments.tier)
    entry = tier.entry(state.active_entry)
    request = context.request or InferenceRequest(prompt="?")
    speed = next(value for value in (arguments.speed, request.speed, DEFAULT_SPEED) if value is not None)
    spec_fields = request.spec.model_dump(exclude_unset=True) if request.spec else {}
    spec_fields |= {key: value for key, value in (("k", arguments.k), ("tau", arguments.tau)) if value is not None}
    category: Category = "general_reasoning"
    if context.request is not None:
        category = classify_chat(request.chat(), context.profile.auto).category
    requested = SpecParams.model_validate(spec_fields)
    settings = engine_settings(request, category, speed, entry, state, requested)
    return built_config(tier.power[0], speed, arguments.tier, entry, settings)


def _decision(arguments: DecisionInput, context: ToolContext) -> Decision:
    request = context.request if arguments.prompt is None else InferenceRequest(prompt=arguments.prompt)
    if request is None:
        raise ToolError("prompt: there is no current request, so the text must be given")
    try:
        return Decision.model_validate(plan(request, context.observation, context.profile).decision)
    except NoTierError as error:
        raise ToolError(error.message) from error


def _recent_runs(arguments: RecentRunsInput, context: ToolContext) -> RecentRuns:
    state = context.observation.tier(arguments.tier)
    summary = state.recent if arguments.category is None else state.recent_by_category.get(arguments.category, NO_RUNS)
    return _summarised(arguments.tier, arguments.category, summary)


def _summarised(tier: TierName, category: Category | None, summary: RunSummary) -> RecentRuns:
    return RecentRuns(
        tier=tier,
        category=category,
        runs=summary.runs,
        ttft_ms=_mean(summary.ttft_ms),
        ttft_deviation_ms=summary.ttft_ms.deviation if summary.ttft_ms else None,
        engine_ttft_ms=_mean(summary.engine_ttft_ms),
        total_ms=_mean(summary.total_ms),
        tokens_per_s=_mean(summary.tokens_per_s),
        completion_tokens=_mean(summary.completion_tokens),
        acceptance_rate=summary.acceptance_rate,
        energy_wh=_mean(summary.energy_wh),
        cost_usd=_mean(summary.cost_usd),
    )


def _mean(quantity: Recent | None) -> float | None:
    return quantity.mean if quantity else None


CLASSIFY_PROMPT: Final = Tool(
    "classify_prompt",
    "The category of a prompt (safety_critical, code, math, creative, simple_question, general_reasoning), its "
    "difficulty from 1 to 10, and the reasons. Deterministic, learned from outcomes.",
    ClassifyPromptInput,
    ClassifiedPrompt,
    _classify_prompt,
)
CHECK_GPU_POOL: Final = Tool(
    "check_gpu_pool",
    "The live state of one tier: its replicas, whether it is warm, how long a cold start takes, and how long requests "
    "wait in its queue.",
    CheckGpuPoolInput,
    TierPool,
    _check_gpu_pool,
)
BUILD_CONFIG: Final = Tool(
    "build_config",
    "What a request would run with on a tier: the model that answers, sampling, speculative decoding.",
    BuildConfigInput,
    BuiltConfig,
    _build_config,
)
DECISION: Final = Tool(
    "decision",
    "The router's own choice of a tier, and for each tier the predicted time to first token, total time, cost, energy "
    "and CO2, what it is good enough for, and why it was not taken.",
    DecisionInput,
    Decision,
    _decision,
)
RECENT_RUNS: Final = Tool(
    "recent_runs",
    "Recent requests on a tier, for one category of prompts or all: time to first token, tokens per second, "
    "acceptance of drafts, energy and cost.",
    RecentRunsInput,
    RecentRuns,
    _recent_runs,
)
TOOLS: Final[Mapping[str, Tool[Any, Any]]] = {
    tool.name: tool for tool in (CLASSIFY_PROMPT, CHECK_GPU_POOL, BUILD_CONFIG, RECENT_RUNS, DECISION)
}


class _Untitled(GenerateJsonSchema):
    """A JSON schema without the titles that pydantic makes from names: they add no information and cost tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def json_schema(model: type[BaseModel], mode: Literal["validation", "serialization"] = "validation") -> dict[str, Any]:
    """Return the JSON schema of a model, an object at its root."""
    schema = model.model_json_schema(schema_generator=_Untitled, mode=mode)
    schema.pop("title", None)
    schema.pop("description", None)  # the docstring; a tool has its own description
    return schema


def messages_api_tool(tool: Tool[Any, Any]) -> ToolParam:
    """Return a tool as the Messages API takes it."""
    return {"name": tool.name, "description": tool.description, "input_schema": json_schema(tool.input_type)}
