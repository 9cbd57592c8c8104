"""What an operator can set about speculation.

The controller's other numbers are constants beside their formulas. They are this project's own choice, found on the
simulated engines of `bench/shapes/chosen_on.yaml` and of the H100 shapes (one set for all of them).
"""

from __future__ import annotations

from pydantic import Field

from router.registry import Frozen


class SpeculationSettings(Frozen):
    """Settings of the speculation controller, the drift alarm and the draft fallback."""

    exploration_share: float = Field(
        default=0.015,
        ge=0,
        le=0.5,
        description="Most of an engine's time (0-1) that the controller may spend on finding out whether drafts pay.",
    )
    min_gain: float = Field(
        default=0.005,
        ge=0,
        description="Least predicted gain of the requests' mean speed for which `auto` drafts (0.005: half a percent).",
    )
    drift_min_tokens: int = Field(
        default=500, ge=1, description="Draft tokens, recent and earlier ones each, that a drift alarm needs."
    )
    drift_min_fall: float = Field(
        default=0.1, ge=0, le=1, description="Least fall of the acceptance rate (absolute, 0-1) that is a drift alarm."
    )
    fallback_min_tokens: int = Field(
        default=2_000,
        ge=1,
        description="Draft tokens of a draft model or EAGLE head to see before a tier may switch to n-gram drafting "
        "(a chain entry's `floor`).",
    )
