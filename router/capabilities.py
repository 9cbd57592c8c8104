"""Which fields of a request an engine with speculative decoding refuses, and which tiers have an engine without it.

vLLM builds no processors for `logit_bias` and `min_p` into an engine with speculative decoding. It refuses them there
even if nothing would be drafted for the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from router.observation import Observation
from router.registry import TIER_NAMES, Profile, TierName

_LEAST_MIN_P: Final = 1e-5
"""vLLM ignores a `min_p` up to this."""


def fields_refused_with_drafts(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields of an OpenAI body that an engine with drafts refuses; vLLM checks the types of the values."""
    fields = ["logit_bias"] if body.get("logit_bias") else []
    min_p = body.get("min_p")
    if isinstance(min_p, int | float) and min_p > _LEAST_MIN_P:
        fields.append("min_p")
    return tuple(fields)


def tiers_without_drafts(profile: Profile, observation: Observation) -> tuple[TierName, ...]:
    """Return the tiers that can start and whose engine never drafts, by the entry that serves or is tried first."""
    return tuple(
        name
        for name in TIER_NAMES
        if profile.entry(name, observation.tier(name).active_entry).speculation is None
        and not observation.tier(name).failed
    )
