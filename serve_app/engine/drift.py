"""Has acceptance fallen? Compare a recent window with a reference, per tier and category.

The rule is a two-proportion z-test, made careful in three ways. Draft tokens of a run stand and fall together, so a
window counts as tokens / `RUN_TOKENS` trials. Both windows must hold a minimum of tokens. And the fall must be large
enough to matter, however certain it is: with enough tokens any difference is certain.
"""

from __future__ import annotations

from math import exp, sqrt
from typing import Final, NamedTuple

RUN_TOKENS: Final = 8.0
"""Draft tokens that stand and fall together (drafts come in runs): each run counts as one trial."""
Z: Final = 4.0
"""Standard deviations that a fall must have. It is tested every second, so chance alone must not reach it."""
RECENT_MEMORY_TOKENS: Final = 2_000.0
"""Memory of the recent window, draft tokens: older ones fade by e."""
REFERENCE_MEMORY_TOKENS: Final = 100_000.0
"""Memory of the reference, draft tokens: older ones fade by e."""


class Window(NamedTuple):
    """Draft tokens and how many of them were accepted; both may be exponentially forgotten."""

    drafted: float = 0.0
    accepted: float = 0.0

    @property
    def rate(self) -> float:
        """Acceptance rate (0-1); 0 while empty."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def after(self, drafted: int, accepted: int, memory_tokens: float) -> Window:
        """Return the window with some more draft tokens; older ones fade by e in `memory_tokens` of them."""
        kept = exp(-drafted / memory_tokens)
        return Window(self.drafted * kept + drafted, self.accepted * kept + accepted)


class Drift(NamedTuple):
    """The result of a comparison."""

    recent: float
    """Acceptance rate of the recent window (0-1)."""
    reference: float
    """Acceptance rate of the reference (0-1)."""
    z: float
    """How many standard deviations the recent rate is above (negative: below) the reference; 0 where too few."""
    alert: bool
    """The fall is certain and large."""


def compare(recent: Window, reference: Window, min_tokens: int, min_fall: float) -> Drift:
    """Compare two windows that share no tokens.

        z = (recent - reference) / sqrt(p (1 - p) (1 / n_recent + 1 / n_reference))

    with p the rate of both windows together and n = drafted / `RUN_TOKENS` the independent trials in each.

    Args:
        recent: the newer draft tokens.
        reference: the older ones.
        min_tokens: draft tokens that each must hold.
        min_fall: least fall of the rate (absolute, 0-1) that is an alarm.
    """
    rates = recent.rate, reference.rate
    if min(recent.drafted, reference.drafted) < min_tokens:
        return Drift(*rates, z=0.0, alert=False)
    together = (recent.accepted + reference.accepted) / (recent.drafted + reference.drafted)
    trials = RUN_TOKENS * (1 / recent.drafted + 1 / reference.drafted)
    deviation = sqrt(together * (1 - together) * trials)
    # All accepted, or none, in both windows: no difference.
    z = (rates[0] - rates[1]) / deviation if deviation > 0 else 0.0
    return Drift(*rates, z, alert=z <= -Z and rates[1] - rates[0] >= min_fall)


class DriftWatch(NamedTuple):
    """The two windows of one tier and category. What the recent one forgets passes on to the reference."""

    recent: Window = Window()
    reference: Window = Window()

    def after(self, drafted: int, accepted: int) -> DriftWatch:
        """Return the windows with some more draft tokens, of one step or of many."""
        passed = 1 - exp(-drafted / RECENT_MEMORY_TOKENS)
        kept_reference = exp(-drafted / REFERENCE_MEMORY_TOKENS)
        return DriftWatch(
            self.recent.after(drafted, accepted, RECENT_MEMORY_TOKENS),
            Window(
                self.reference.drafted * kept_reference + self.recent.drafted * passed,
                self.reference.accepted * kept_reference + self.recent.accepted * passed,
            ),
        )
