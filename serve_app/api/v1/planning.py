"""A `/v1` request as the router sees it, its plan, and the request for the engine.

Every route has the same `plan()`. A tier's name as `model` is manual mode with a power of that tier.
"""

from __future__ import annotations

from typing import Any, Final

import orjson
from starlette.requests import Request

from router.capabilities import fields_refused_with_drafts, nearest_tier, tiers_without_drafts
from router.observation import Observation
from router.plan import Plan, plan
from router.registry import TIER_NAMES, ChainEntry, Profile, TierName
from router.request import InferenceRequest, Message
from serve_app.api.errors import bad_request
from serve_app.api.v1.body import V1Body
from serve_app.api.v1.conversation import conversation, other_text
from serve_app.api.v1.models import AUTO, model_not_found
from serve_app.config import AppConfig
from serve_app.transport.asgi_call import HttpCall

_THINKERS: Final = ("reasoning_parser", "reasoning_config")
"""Engine arguments of an entry whose model thinks. vLLM refuses a budget of thoughts for any other."""


def router_request(body: V1Body, profile: Profile) -> InferenceRequest:
    """Return what the router sees: the whole conversation, our own fields, and the sampling that the client set.

    Raises:
        ApiError: no such model.
    """
    fields, own = body.fields, dict(body.own)
    model = fields.get("model", AUTO)
    if model in TIER_NAMES:
        own |= {"mode": "manual", "power": sum(profile.tiers[model].power) // 2}
    elif model != AUTO:
        raise model_not_found(model)
    messages = conversation(fields)
    if more := other_text(fields):
        messages = (Message(role="system", content=more), *messages)
    request = InferenceRequest.model_validate({"messages": messages, **own})
    # Unchecked, as vLLM checks their ranges, which are wider than those of `/api/inference`.
    sampling = {key: fields[key] for key in ("temperature", "top_p", "seed") if key in fields}
    limit = None if body.api.must_limit else body.max_tokens
    return request.model_copy(update=sampling | ({"max_tokens": limit} if limit else {}))


def plan_v1(body: V1Body, observation: Observation, config: AppConfig) -> Plan:
    """Plan a request.

    Raises:
        ApiError: no such model, or a field that no allowed tier accepts.
    """
    request = router_request(body, config)
    made = plan(request, observation, config)
    tier = _accepting(made.tier, body, config, observation)
    if tier == made.tier:
        return made
    named = {"mode": "manual", "goal": None, "power": sum(config.tiers[tier].power) // 2}
    return plan(request.model_copy(update=named), observation, config)


def _accepting(tier: TierName, body: V1Body, config: AppConfig, observation: Observation) -> TierName:
    """Return the tier itself, or the nearest that accepts fields which an engine with drafts refuses.

    Raises:
        ApiError: the client named a tier with drafts, or every tier has drafts.
    """
    fields = fields_refused_with_drafts(body.fields)
    accepting = tiers_without_drafts(config, observation) if fields else ()
    if not fields or tier in accepting:
        return tier
    other = nearest_tier(tier, accepting)
    if other is not None and body.fields.get("model", AUTO) == AUTO:
        return other
    problem = f"{' and '.join(fields)}: not allowed with speculative decoding, which"
    if other is None:
        raise bad_request(f"{problem} every tier uses now")
    raise bad_request(f"{problem} tier {tier} uses; allowed models are {', '.join(accepting)} and {AUTO}")


def engine_call(request: Request, body: V1Body, made: Plan, request_id: str) -> HttpCall:
    """Return the request for the tier's engine, with the plan's speculation as vLLM's extra sampling arguments.

    A client that turns the speed dial gets its sampling where it says nothing else. Without the dial, vLLM's own
    defaults hold, as clients of these APIs expect.
    """
    fields = {**body.fields, "model": made.tier}
    if body.api.max_tokens:
        fields["vllm_xargs"] = made.spec.to_arguments(made.classification.category)
        if "speed" in body.own:
            fields = _dialled(body, made) | fields
    if body.api.form == "anthropic":
        fields = _for_messages(fields, made.entry)
    raw = orjson.dumps(fields)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(raw)).encode()),
        (b"x-request-id", request_id.encode()),
    ]
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    return HttpCall(request.method, path, headers, raw, body.sequences)


def _dialled(body: V1Body, made: Plan) -> dict[str, Any]:
    sampling: dict[str, Any] = {"temperature": made.sampling.temperature, "top_p": made.sampling.top_p}
    if body.max_tokens is None:
        sampling[body.api.max_tokens[0]] = made.sampling.max_tokens
    return sampling


def _for_messages(fields: dict[str, Any], entry: ChainEntry) -> dict[str, Any]:
    """Return an Anthropic body without what clients say to every model and this one cannot do.

    Every request must have `max_tokens`, so clients send a limit of Claude's. vLLM cuts one that the prompt leaves no
    room for, and refuses one that is longer than the context.
    """
    if "max_tokens" in fields:
        fields["max_tokens"] = min(fields["max_tokens"], entry.max_model_len)
    thinking = fields.get("thinking")
    if isinstance(thinking, dict) and thinking.get("type") == "enabled" and not set(_THINKERS) & set(entry.engine_args):
        del fields["thinking"]
    return fields
