"""The acceptance floor tau as a state machine: running, stopped, running again when probes show clearly more.

A request that runs is stopped when its acceptance (accepted / drafted tokens, exponentially forgotten) is under tau
and at least `min_tokens` were drafted since it began to run. A stopped one is probed at intervals that double up to a
bound, and runs again when `probe_tokens` or more probed tokens show tau plus the margin. So it cannot flap faster than
once in `interval_steps` steps and `min_tokens` draft tokens; and a request that runs again by luck is stopped with the
interval doubled, because only a run that proves itself (acceptance of tau plus margin on `min_tokens`) resets it.

tau bounds what is drafted and never what is accepted: the output distribution does not depend on it.
"""

from __future__ import annotations

from math import exp
from typing import NamedTuple

from serve_app.speculation.backoff import Backoff
from serve_app.speculation.settings import ExplorationSettings, TauSettings


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
    def new(cls, step: int, exploration: ExplorationSettings) -> TauState:
        """Of a request that begins to run."""
        backoff = Backoff.starting(step, exploration.interval_steps, exploration.max_interval_steps)
        return cls(False, 0.0, 0.0, 0, False, backoff)

    def probed(self, step: int) -> TauState:
        """A probe is sent."""
        return self._replace(probing=True, backoff=self.backoff.looked(step))

    def after(self, tau: float, drafted: int, accepted: int, step: int, settings: TauSettings) -> TauState:
        """With the outcome of a step that verified `drafted` tokens (none: nothing is learned)."""
        if not drafted or (self.stopped and not self.probing):
            return self
        enough = min(1.0, tau + settings.margin)
        kept = 1.0 if self.stopped else exp(-drafted / settings.memory_tokens)
        state = self._replace(
            drafted=self.drafted * kept + drafted,
            accepted=self.accepted * kept + accepted,
            seen=self.seen + drafted,
            probing=False,
        )
        measured = state.accepted / state.drafted
        if self.stopped:
            if state.seen < settings.probe_tokens:
                return state
            if measured >= enough:
                # Doubled already here: only a run that proves itself deserves a short wait after the next stop.
                return state._replace(
                    stopped=False, drafted=0.0, accepted=0.0, seen=0, backoff=state.backoff.failed(step)
                )
            return state._replace(drafted=0.0, accepted=0.0, seen=0, backoff=state.backoff.failed(step))
        if state.seen < settings.min_tokens:
            return state
        if measured < tau:
            return state._replace(stopped=True, drafted=0.0, accepted=0.0, seen=0, backoff=state.backoff.looked(step))
        if measured >= enough:
            return state._replace(backoff=state.backoff.succeeded(step))
        return state
