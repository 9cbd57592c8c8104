"""What the controller is told before it begins: what an operator can set, and what is known of the engine.

The controller's other numbers are constants beside their formulas. They are this project's own choice, found on the
simulated engines of `bench/shapes/chosen_on.yaml` and of the H100 shapes (one set for all of them).
"""

from __future__ import annotations

from typing import Literal

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


class EngineFacts(Frozen):
    """Known from the engine's arguments when it starts. The defaults are those of an engine without graphs."""

    graph: Literal["none", "k_max", "per_k", "any"] = Field(
        default="none",
        description="Decode steps that run in a full CUDA graph: none (no step differs from another); those in which "
        "all requests verify `k_max` drafts; those in which all verify the same number; any.",
    )
    graph_tokens: int | None = Field(
        default=None, ge=1, description="Most batched tokens of a step that runs in a graph; null: no limit."
    )
    draft: Literal["depth", "k_max", "always"] = Field(
        default="depth",
        description="Draft iterations of a step: the deepest draft requested; `k_max` as soon as any is requested; "
        "`k_max` at every step.",
    )

    def captured(self, uniform: int | None, tokens: float, k_max: int) -> bool:
        """Return whether a decode step runs in a full graph.

        Args:
            uniform: draft tokens that each request verifies; None: not the same for all.
            tokens: batched tokens.
            k_max: most draft tokens of a request.
        """
        if self.graph == "none":
            return False
        if self.graph_tokens is not None and tokens > self.graph_tokens:
            return False
        return self.graph == "any" or (uniform is not None and (self.graph == "per_k" or uniform == k_max))

    def iterations(self, depth: int, k_max: int) -> int:
        """Return the draft iterations of a step in which drafts of that depth are requested."""
        if self.draft == "depth":
            return depth
        return k_max if depth or self.draft == "always" else 0
