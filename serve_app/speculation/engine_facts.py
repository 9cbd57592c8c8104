"""What is known of an engine before it runs: which steps CUDA graphs cover, and what drafting always costs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from router.registry import Frozen


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
        description="Draft iterations of a step: the deepest draft asked for; `k_max` as soon as any is asked for; "
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
        """Return the draft iterations of a step in which drafts of that depth are asked for."""
        if self.draft == "depth":
            return depth
        return k_max if depth or self.draft == "always" else 0
