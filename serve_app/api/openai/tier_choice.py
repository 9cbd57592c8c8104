"""Decide which tier answers an OpenAI request, and how its engine speculates.

Of the checked body (`body.py`) only `model` and `spec` (our own field) are rewritten. Everything else (tools, logprobs,
stop, usage, structured output) goes to the engine as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.requests import Request

from router.capabilities import fields_refused_with_drafts, nearest_tier, tiers_without_drafts
from router.difficulty.categories import Category
from router.difficulty.classify import classify_prompt
from router.observation import Observation
from router.plan import plan
from router.registry import TIER_NAMES, TierName
from router.request import InferenceRequest
from router.runs.past_drafts import drafts_are_waste
from router.runs.summary import NO_RUNS
from router.spec_params import SpecParams
from serve_app.api.errors import bad_request
from serve_app.api.openai.models import AUTO, model_not_found
from serve_app.api.spec_view import planned_spec
from serve_app.config import AppConfig
from serve_app.transport.asgi_call import HttpCall

SPEC = "spec"
"""Our own field of an OpenAI body, as in `/api/inference`."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The router's decision for an OpenAI request."""

    tier: TierName
    spec: SpecParams
    """Resolved."""
    category: Category
    """Of the prompt."""
    planned: Mapping[str, Any]
    """What will be done about speculation, as the `config` event of `/api/inference` shows it."""


def choose(body: Mapping[str, Any], config: AppConfig, observation: Observation) -> Choice:
    """Choose the tier, and how its engine speculates.

    Raises:
        ApiError: no such model, or a field that no allowed tier accepts.
    """
    picked, category = _picked(body, config, observation)
    tier = _accepting(picked, body, config, observation)
    requested = SpecParams.model_validate(body.get(SPEC) or {})
    state = observation.tier(tier)
    entry = config.entry(tier, state.active_entry)
    past = state.recent_by_category.get(category, NO_RUNS)
    wasteful = drafts_are_waste(entry.speculation, requested, past)
    spec, no_drafts = requested.resolve(entry.speculation, wasteful=wasteful)
    drafts = requested.who_drafts(entry.speculation, spec, state.drafts, state.drafts_reason)
    return Choice(tier, spec, category, planned_spec(entry, spec, drafts, no_drafts))


def _picked(body: Mapping[str, Any], config: AppConfig, observation: Observation) -> tuple[TierName, Category]:
    """Return the tier that `model` names, or the router's choice for `auto`; and the category of the prompt.

    Raises:
        ApiError: no such model.
    """
    model, text = body.get("model", AUTO), _prompt_text(body)
    for name in TIER_NAMES:
        if model == name:
            return name, classify_prompt(text).category
    if model != AUTO:
        raise model_not_found(model)
    made = plan(InferenceRequest(prompt=text or " "), observation, config)
    return made.tier, made.classification.category


def _accepting(tier: TierName, body: Mapping[str, Any], config: AppConfig, observation: Observation) -> TierName:
    """Return the tier itself, or the nearest that accepts fields which an engine with drafts refuses.

    Raises:
        ApiError: the client named a tier with drafts, or every tier has drafts.
    """
    fields = fields_refused_with_drafts(body)
    accepting = tiers_without_drafts(config, observation) if fields else ()
    if not fields or tier in accepting:
        return tier
    other = nearest_tier(tier, accepting)
    if other is not None and body.get("model", AUTO) == AUTO:
        return other
    problem = f"{' and '.join(fields)}: not allowed with speculative decoding, which"
    if other is None:
        raise bad_request(f"{problem} every tier uses now")
    raise bad_request(f"{problem} tier {tier} uses; allowed models are {', '.join(accepting)} and {AUTO}")


def _prompt_text(body: Mapping[str, Any]) -> str:
    """Return the text to classify: the last user message of a chat, or the prompt; "" if there is none."""
    messages = body.get("messages")
    if isinstance(messages, list):
        users = [m for m in messages if isinstance(m, dict) and m.get("role") == "user"]
        content = users[-1].get("content") if users else None
        if isinstance(content, list):
            return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        return content if isinstance(content, str) else ""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and all(isinstance(part, str) for part in prompt):
        return "\n".join(prompt)
    return prompt if isinstance(prompt, str) else ""


def engine_call(request: Request, body: Mapping[str, Any], choice: Choice, request_id: str) -> HttpCall:
    """Return the request for the tier's engine, with `spec` as vLLM's extra sampling arguments."""
    rest = {key: value for key, value in body.items() if key != SPEC}
    raw = orjson.dumps({**rest, "model": choice.tier, "vllm_xargs": choice.spec.to_arguments(choice.category)})
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(raw)).encode()),
        (b"x-request-id", request_id.encode()),
    ]
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    return HttpCall(request.method, path, headers, raw)
