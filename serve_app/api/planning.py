"""`router.plan.plan` for the routes: what no tier can serve is an error that the client must mend.

And what a plan asks of an engine.
"""

from __future__ import annotations

from router.needs import NOTHING_MORE, Needs, NoTierError, Refusal, Tried
from router.observation import Observation
from router.plan import Plan, plan
from router.registry import Profile
from router.request import InferenceRequest
from router.tokens import likely_tokens
from serve_app.admission.key_limits import USUAL_ANSWER_TOKENS
from serve_app.api.errors import ApiError, bad_request
from serve_app.engine.interface import GenerationRequest


def planned(request: InferenceRequest, observation: Observation, profile: Profile, needs: Needs = NOTHING_MORE) -> Plan:
    """Plan a request.

    Raises:
        ApiError: 400, no tier can ever serve it.
    """
    try:
        return plan(request, observation, profile, needs=needs)
    except NoTierError as error:
        raise bad_request(error.message, code=error.code) from error


def estimated_tokens(request: InferenceRequest) -> int:
    """Return about how many tokens a request will take of its key's, with its answer."""
    prompt = sum(likely_tokens(message.content) for message in request.chat())
    return prompt + (request.max_tokens or USUAL_ANSWER_TOKENS)


def generation_request(request_id: str, request: InferenceRequest, plan: Plan) -> GenerationRequest:
    """Return the request for the tier's engine."""
    return GenerationRequest(
        request_id=request_id,
        messages=request.chat(),
        max_tokens=plan.sampling.max_tokens,
        max_tokens_is_explicit=request.max_tokens is not None,
        temperature=plan.sampling.temperature,
        top_p=plan.sampling.top_p,
        seed=request.seed,
        stop=request.stop or (),
        logprobs=request.logprobs,
        spec=plan.spec,
        category=plan.classification.category,
    )


def tried_also(error: ApiError, made: Plan, tried: Tried) -> Tried | None:
    """Return what has been tried when a plan's tier has not taken the request; None: another tier would not help.

    Each further plan is for a tier with more room, or without those that could not start, so there are few.

    Args:
        error: the tier's.
        made: the plan.
        tried: before.
    """
    if made.mode == "manual":
        return None
    if error.code == "prompt_too_long":
        # The router's estimate was too low: the engine's count decides.
        return tried._replace(refusal=Refusal(made.entry.max_model_len, error.message))
    if error.code == "tier_unavailable" and made.tier not in tried.gone:
        return tried._replace(gone={**tried.gone, made.tier: error.message.partition(": ")[2]})
    return None
