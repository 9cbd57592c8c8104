"""What an engine that drafts cannot do, and which tiers have one that does not.

vLLM builds no processors of `logit_bias` and `min_p` into an engine with speculative decoding, so it refuses them
there, also where nothing would be drafted for the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from router.observation import Observation
from router.registry import TIER_NAMES, Profile, TierName

_LEAST_MIN_P: Final = 1e-5
"""What vLLM takes for no `min_p`."""


def fields_without_drafts(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Those fields of an OpenAI body that an engine which drafts refuses. Values of a wrong type are left to vLLM."""
    fields = ["logit_bias"] if body.get("logit_bias") else []
    min_p = body.get("min_p")
    if isinstance(min_p, int | float) and min_p > _LEAST_MIN_P:
        fields.append("min_p")
    return tuple(fields)


def tiers_without_drafts(profile: Profile, observation: Observation) -> tuple[TierName, ...]:
    """Tiers whose engine never drafts, by the entry that serves or would be tried first; none that cannot start."""
    return tuple(
        name
        for name in TIER_NAMES
        if profile.entry(name, observation.tier(name).active_entry).speculation is None
        and not observation.tier(name).failed
    )


def nearest(tier: TierName, among: tuple[TierName, ...]) -> TierName | None:
    """The tier nearest in power, of two the more powerful one; None where there is none."""
    place = TIER_NAMES.index(tier)
    return min(among, key=lambda name: (abs(TIER_NAMES.index(name) - place), -TIER_NAMES.index(name)), default=None)
