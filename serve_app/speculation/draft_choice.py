"""Whether an engine's own draft model or EAGLE head is good enough, or n-gram drafts take its place."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from router.registry import Drafts
from router.runs.wilson import highest_likely_rate
from serve_app.speculation.settings import FallbackSettings
from serve_app.speculation.window import Window


@dataclass(frozen=True, slots=True)
class DraftChoice:
    """Who drafts, and why."""

    drafts: Drafts = "own"
    reason: str | None = None
    """In words; None as long as nothing happened."""
    own: Window = field(default_factory=Window)
    """Of the own drafts."""

    def after(self, drafted: int, accepted: int, floor: float, settings: FallbackSettings) -> DraftChoice:
        """The choice after some more of the own drafts. It goes over and never back by itself.

        Args:
            drafted: draft tokens that were verified since the last call.
            accepted: how many of them were accepted.
            floor: acceptance rate (0-1) under which the own drafts are given up.
            settings: how sure that must be.
        """
        if self.drafts == "ngram" or not drafted:
            return self
        own = self.own.after(drafted, accepted, settings.memory_tokens)
        # Tokens of one run of drafts stand and fall together: a run is one trial.
        trials = own.drafted / settings.run_tokens
        if own.drafted < settings.min_tokens or highest_likely_rate(trials, own.rate, settings.z) >= floor:
            return replace(self, own=own)
        return DraftChoice("ngram", f"acceptance of the own drafts is {own.rate:.3f} lately, under {floor:g}")

    def told(self, drafts: Drafts) -> DraftChoice:
        """The choice when somebody says who shall draft; own drafts are then judged afresh."""
        return DraftChoice(drafts, "told to")
