"""A `/v1` request as the router sees it, its plan, and the request for the engine.

Every route has the same `plan()`. A tier's name as `model` is manual mode with a power of that tier.
"""

from __future__ import annotations

from typing import Any, Final

import orjson
from starlette.requests import Request

from router.capabilities import fields_refused_with_drafts, tiers_without_drafts
from router.needs import NOTHING_TRIED, Needs, Tried, not_with_drafts
from router.observation import Observation
from router.plan import Plan
from router.registry import TIER_NAMES, ChainEntry, Profile, TierName
from router.request import InferenceRequest
from serve_app.admission.headers import route_of
from serve_app.api.errors import bad_request
from serve_app.api.planning import planned
from serve_app.api.v1.body import V1Body
from serve_app.api.v1.conversation import conversation, other_text, token_ids
from serve_app.api.v1.models import AUTO, model_not_found
from serve_app.config import AppConfig
from serve_app.fairness.claims import ANYBODY, Claim
from serve_app.transport.asgi_call import HttpCall

_THINKERS: Final = ("reasoning_parser", "reasoning_config")
"""Engine arguments of an entry whose model thinks. vLLM refuses a budget of thoughts for any other."""


def router_request(body: V1Body, profile: Profile, tried: Tried = NOTHING_TRIED) -> tuple[InferenceRequest, Needs]:
    """Return what the router sees: the whole conversation, our own fields, the sampling that the client set; and what
    else the body needs of a tier.

    Raises:
        ApiError: no such model.
    """
    fields = body.fields
    model = fields.get("model", AUTO)
    if model != AUTO and model not in TIER_NAMES:
        raise model_not_found(model)
    request = InferenceRequest.model_validate({"messages": conversation(fields), **body.own})
    # Unchecked, as vLLM checks their ranges, which are wider than those of `/api/inference`.
    sampling = {key: fields[key] for key in ("temperature", "top_p", "seed") if key in fields}
    limit = None if body.api.must_limit else body.max_tokens
    request = request.model_copy(update=sampling | ({"max_tokens": limit} if limit else {}))
    request = request if model == AUTO else _in(model, request, profile)
    needs = Needs(
        other_text=other_text(fields),
        token_ids=token_ids(fields),
        refused_with_drafts=fields_refused_with_drafts(fields),
        tried=tried,
    )
    return request, needs


def plan_v1(body: V1Body, observation: Observation, config: AppConfig, tried: Tried = NOTHING_TRIED) -> Plan:
    """Plan a request.

    Args:
        body: checked.
        observation: the state of the tiers.
        config: with the profile.
        tried: by earlier plans for it.

    Raises:
        ApiError: no such model; no tier can ever serve it, or the one that the client picked cannot.
    """
    request, needs = router_request(body, config, tried)
    made = planned(request, observation, config, needs)
    if needs.refused_with_drafts and made.entry.speculation is not None:
        others = tiers_without_drafts(config, observation)
        allowed = f"tier {made.tier} uses; allowed models are {', '.join(others)} and {AUTO}"
        raise bad_request(not_with_drafts(needs.refused_with_drafts, allowed if others else "every tier uses now"))
    if not body.api.max_tokens and not made.warm and request.mode == "auto":
        # Any tokenizer will do for a count. It must not wake a tier while another is warm.
        warm = next((name for name in TIER_NAMES if observation.tier(name).warm), made.tier)
        return planned(_in(warm, request, config), observation, config, needs)
    return made


def _in(tier: TierName, request: InferenceRequest, profile: Profile) -> InferenceRequest:
    """Return the request for that tier."""
    return request.model_copy(update={"mode": "manual", "power": sum(profile.tiers[tier].power) // 2, "goal": None})


def engine_call(request: Request, body: V1Body, made: Plan, request_id: str, claim: Claim = ANYBODY) -> HttpCall:
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
    return HttpCall(request.method, route_of(request.scope), headers, raw, body.sequences, claim)


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
