"""What the controller holds of one request: values that pure functions turn into new ones."""

from __future__ import annotations

from dataclasses import dataclass

from serve_app.speculation.acceptance import Belief, Evidence
from serve_app.speculation.backoff import Backoff
from serve_app.speculation.curve import Curve
from serve_app.speculation.decision import Reason
from serve_app.speculation.families import FamilyState
from serve_app.speculation.tau import TauState


@dataclass(slots=True)
class RequestState:
    """One request."""

    id: str
    k: int | None
    """Fixed number of draft tokens; None: auto."""
    why_fixed: Reason
    """Why `k` is what it is, where it is fixed."""
    tau: float
    tau_state: TauState | None
    """None: no tau."""
    floor: float
    """Least expected accepted / drafted of an auto request with a tau; 0: none."""
    family: FamilyState
    evidence: Evidence
    belief: Belief
    curve: Curve
    backoff: Backoff
    """Of an idle request: when to probe."""
    idle: bool = False
    """An auto request to which the last decision gave no drafts, a probe's apart."""
    probing: bool = False
    """Idle, and a probe is out."""
    refresh: int = 0
    """Of an idle request: step at which to form its belief again."""

    @property
    def stopped(self) -> bool:
        """Whether tau has stopped it."""
        return self.tau_state is not None and self.tau_state.stopped
