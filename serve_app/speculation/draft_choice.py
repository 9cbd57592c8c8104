"""Whether an engine's own draft model or EAGLE head is good enough, or n-gram drafts take its place."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from router.tiers import Drafts
from serve_app.speculation.settings import FallbackSettings


@dataclass(frozen=True, slots=True)
class DraftChoice:
    """Who drafts, and why."""

    drafts: Drafts = "own"
    reason: str | None = None
    """In words; None as long as nothing happened."""

    def after(self, drafted: int, accepted: int, floor: float, settings: FallbackSettings) -> DraftChoice:
        """The choice when the own drafts have come to these totals. It goes over and never back by itself.

        Args:
            drafted: draft tokens of the own drafts that were verified since they were last chosen.
            accepted: how many of them were accepted.
            floor: acceptance rate (0-1) under which they are given up.
            settings: how sure that must be.
        """
        if self.drafts == "ngram" or drafted < settings.min_tokens:
            return self
        if highest_likely_rate(drafted, accepted, settings.z) >= floor:
            return self
        said = f"{accepted / drafted:.3f} over {drafted:,} tokens is under the floor {floor:g}"
        return DraftChoice("ngram", f"acceptance of the own drafts, {said}")

    def told(self, drafts: Drafts) -> DraftChoice:
        """The choice when somebody says who shall draft; own drafts are then judged afresh."""
        return DraftChoice(drafts, "told to")


def highest_likely_rate(drafted: int, accepted: int, z: float) -> float:
    """The highest acceptance rate that is still likely: upper end of Wilson's score interval.

    Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927).

    Args:
        drafted: trials, at least 1.
        accepted: successes.
        z: half width of the interval, standard deviations.
    """
    rate, part = accepted / drafted, z * z / drafted
    middle = rate + part / 2
    return (middle + z * sqrt(rate * (1 - rate) / drafted + part / (4 * drafted))) / (1 + part)
