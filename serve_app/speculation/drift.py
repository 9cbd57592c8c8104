"""Has acceptance fallen? A recent window against a reference: one watch per tier and prompt family.

The rule is a two-proportion z-test, made careful in three ways. Draft tokens of a run stand and fall together, so a
window counts as tokens / `run_tokens` trials. Both windows must hold `min_tokens`. And the fall must be large enough to
matter (`min_fall`), however certain it is: with enough tokens any difference is certain.
"""

from __future__ import annotations

from enum import StrEnum
from math import exp, sqrt
from typing import NamedTuple

from serve_app.speculation.settings import DriftSettings
from serve_app.speculation.window import Window


class DriftReason(StrEnum):
    """Why there is, or is no, alarm."""

    TOO_FEW = "too_few"
    """One of the windows holds too few draft tokens to say."""
    STEADY = "steady"
    """No fall, or one that chance explains."""
    SMALL = "small"
    """A certain fall, too small to matter."""
    FELL = "fell"
    """A certain and large fall: the alarm."""


class Drift(NamedTuple):
    """What the comparison says."""

    recent: float
    """Acceptance rate of the recent window (0-1)."""
    reference: float
    """Acceptance rate of the reference (0-1)."""
    z: float
    """How many standard deviations the recent rate is above (negative: below) the reference; 0 where too few."""
    alert: bool
    reason: DriftReason


def compare(recent: Window, reference: Window, settings: DriftSettings) -> Drift:
    """Compare two windows that share no tokens.

        z = (recent - reference) / sqrt(p (1 - p) (1 / n_recent + 1 / n_reference))

    with p the rate of both windows together and n = drafted / `run_tokens` the independent trials in each.
    """
    rates = recent.rate, reference.rate
    if min(recent.drafted, reference.drafted) < settings.min_tokens:
        return Drift(*rates, 0.0, False, DriftReason.TOO_FEW)
    together = (recent.accepted + reference.accepted) / (recent.drafted + reference.drafted)
    trials = settings.run_tokens * (1 / recent.drafted + 1 / reference.drafted)
    deviation = sqrt(together * (1 - together) * trials)
    # All accepted, or none, in both windows: no difference.
    z = (rates[0] - rates[1]) / deviation if deviation > 0 else 0.0
    if z > -settings.z:
        return Drift(*rates, z, False, DriftReason.STEADY)
    if rates[1] - rates[0] < settings.min_fall:
        return Drift(*rates, z, False, DriftReason.SMALL)
    return Drift(*rates, z, True, DriftReason.FELL)


class DriftWatch(NamedTuple):
    """The two windows of one tier and family. What the recent one forgets passes on to the reference."""

    recent: Window = Window()
    reference: Window = Window()

    def after(self, drafted: int, accepted: int, settings: DriftSettings) -> DriftWatch:
        """With some more draft tokens, of one step or of many."""
        passed = 1 - exp(-drafted / settings.recent_memory_tokens)
        kept_reference = exp(-drafted / settings.reference_memory_tokens)
        return DriftWatch(
            self.recent.after(drafted, accepted, settings.recent_memory_tokens),
            Window(
                self.reference.drafted * kept_reference + self.recent.drafted * passed,
                self.reference.accepted * kept_reference + self.recent.accepted * passed,
            ),
        )

    def drift(self, settings: DriftSettings) -> Drift:
        """The comparison as of now."""
        return compare(self.recent, self.reference, settings)
