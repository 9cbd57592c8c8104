"""How a request's claim travels to vLLM's scheduler: among the extra arguments of its sampling parameters.

Clients cannot set it: `vllm_xargs` is refused on every route.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from serve_app.fairness.claims import ANYBODY, Claim

_KEY: Final = "power_lever_claim"


class EngineRequest(Protocol):
    """vLLM's `EngineCoreRequest`, as far as it is used here."""

    sampling_params: Any
    cache_salt: str | None


def put_claim(request: EngineRequest, claim: Claim) -> None:
    """Put a claim into a request that goes to the engine.

    Its salt stands before the client's own, so that no client can name another one's.
    """
    if claim.cache_salt is not None:
        request.cache_salt = f"{claim.cache_salt}:{request.cache_salt or ''}"
    params = request.sampling_params
    if params is not None and claim != ANYBODY:
        params.extra_args = {**(params.extra_args or {}), _KEY: [claim.tenant, claim.batch]}


def claim_of(sampling_params: Any) -> Claim:
    """Return the claim in the parameters of a request that has come to the scheduler."""
    arguments = (sampling_params.extra_args if sampling_params is not None else None) or {}
    tenant, batch = arguments.get(_KEY, (None, False))
    return Claim(tenant, batch)
