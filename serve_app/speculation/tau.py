"""The acceptance floor tau as a state machine: running, stopped, and running again when probes show clearly more.

A running request is stopped when its acceptance (accepted / drafted tokens, exponentially forgotten) is under tau and
at least `MIN_TOKENS` were drafted since it began to run. A stopped request is probed at intervals that double up to a
bound, and runs again when `PROBE_TOKENS` or more probed tokens show tau plus the margin. So it cannot flap faster than
once in `FIRST_INTERVAL_STEPS` steps and `MIN_TOKENS` draft tokens. A request that runs again by luck is stopped with
the interval doubled, because only a run that proves itself (acceptance of tau plus margin on `MIN_TOKENS`) resets it.

tau bounds what is drafted and never what is accepted: the output distribution does not depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import Final, NamedTuple

from serve_app.speculation.exploration import Backoff

MEMORY_TOKENS: Final = 48.0
"""Memory of the measured acceptance, draft tokens: older ones fade by e."""
MIN_TOKENS: Final = 24
"""Draft tokens to see before tau may stop a request."""
MARGIN: Final = 0.1
"""A stopped request resumes when probes show tau plus this much acceptance (at most 1)."""
PROBE_TOKENS: Final = 4
"""Draft tokens of a probe, and that a verdict needs."""


class TauState(NamedTuple):
    """State of one request that has a floor."""

    stopped: bool
    drafted: float
    """Remembered draft tokens: since the run began, or of the probes since the last verdict."""
    accepted: float
    """Those of them that were accepted."""
    seen: int
    """Draft tokens since the run began or since the last verdict, not forgotten."""
    probing: bool
    """A probe is out. Drafts that arrive in a stopped state without one are left over from before the stop."""
    backoff: Backoff

    @classmethod
    def new(cls, step: int) -> TauState:
        """Return the state of a request that begins to run."""
        return cls(False, 0.0, 0.0, 0, False, Backoff.starting(step))

    def probed(self, step: int) -> TauState:
        """Return the state after a probe was sent."""
        return self._replace(probing=True, backoff=self.backoff.probed(step))

    def after(self, tau: float, drafted: int, accepted: int, step: int) -> TauState:
        """Return the state after a step that verified `drafted` tokens (none: nothing is learned)."""
        if not drafted or (self.stopped and not self.probing):
            return self
        enough = min(1.0, tau + MARGIN)
        kept = 1.0 if self.stopped else exp(-drafted / MEMORY_TOKENS)
        state = self._replace(
            drafted=self.drafted * kept + drafted,
            accepted=self.accepted * kept + accepted,
            seen=self.seen + drafted,
            probing=False,
        )
        measured = state.accepted / state.drafted
        if self.stopped:
            if state.seen < PROBE_TOKENS:
                return state
            # Doubled also after a success: only a run that proves itself deserves a short wait after the next stop.
            return TauState(measured < enough, 0.0, 0.0, 0, False, state.backoff.failed(step))
        if state.seen < MIN_TOKENS:
            return state
        if measured < tau:
            return TauState(True, 0.0, 0.0, 0, False, state.backoff.probed(step))
        if measured >= enough:
            return state._replace(backoff=state.backoff.succeeded(step))
        return state


def break_even(times_s: Sequence[float], output: Sequence[float]) -> float:
    """Return the acceptance (0-1) at which drafts neither gain nor lose time: what `tau: auto` learns.

    With K drafts a step yields 1 + K r tokens at acceptance r, and takes t(K): r = (t(K) / t(0) - 1) / K, at the K that
    suits the requests best.

    Args:
        times_s: by K, of a step.
        output: by K, expected output tokens of a request.
    """
    k = max(range(1, len(times_s)), key=lambda k: output[k] / times_s[k])
    return min(1.0, max(0.0, (times_s[k] / times_s[0] - 1) / k))
