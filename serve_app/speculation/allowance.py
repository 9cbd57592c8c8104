"""What exploration may cost: a share of the engine's time, saved up for a few steps at most."""

from __future__ import annotations

from typing import NamedTuple

from serve_app.speculation.settings import ExplorationSettings


class Allowance(NamedTuple):
    """Seconds that may be lost to finding out.

    Bound: over any time, the expected loss is at most `time_share` of it plus `saved_steps` steps.
    """

    seconds: float

    def earned(self, step_s: float, settings: ExplorationSettings) -> Allowance:
        """After a step of that length."""
        most = settings.saved_steps * step_s
        return Allowance(min(most, self.seconds + settings.time_share * step_s))

    def spent(self, seconds: float) -> Allowance:
        """After a loss, which must be covered (a gain costs nothing and earns nothing)."""
        return Allowance(self.seconds - max(0.0, seconds))
