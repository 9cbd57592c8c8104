"""The requests of a step: what is held of each, what is decided for it and why, and the batch sorted for the search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from router.registry import Drafts
from serve_app.speculation.allocation import Allocator, Curve, Fixed, Group, Load
from serve_app.speculation.cost_curve import StepCost
from serve_app.speculation.drafters import Choice, Way
from serve_app.speculation.exploration import Backoff
from serve_app.speculation.tau import TauState


class Reason(StrEnum):
    """Why a request has this many draft tokens; the values are shown to users."""

    ASKED = "asked"
    """The request set this k (0 included)."""
    SEEDED = "seeded"
    """A sampled request with a seed: its text must not depend on how many drafts each step had."""
    AUTO = "auto"
    """Most expected tokens per second for the batch."""
    AUTO_OFF = "auto_off"
    """Drafts for this request would cost more time than they save now."""
    TAU_STOPPED = "tau_stopped"
    """Acceptance fell under the request's floor."""
    PROBE = "probe"
    """A few drafts to find out whether the text has become predictable."""
    PLAIN = "plain"
    """A step without drafts to find out what drafts cost."""
    TRIAL = "trial"
    """One number of draft tokens for all (0 included) to find out what such a step costs."""


@dataclass(frozen=True, slots=True)
class Decision:
    """How many draft tokens to verify for one request in its next step."""

    k: int
    reason: Reason
    drafts: Drafts = "own"
    """Who makes them, where an entry has an own draft and n-gram lookup."""


@dataclass(slots=True)
class RequestState:
    """What the controller holds of one request: values that pure functions turn into new ones."""

    id: str
    k: int | None
    """Fixed number of draft tokens; None: auto."""
    why_fixed: Reason
    """Why `k` is what it is, where it is fixed."""
    tau: float | None
    """Acceptance rate (0-1) below which it stops; None: what its category has learned."""
    tau_state: TauState | None
    """None: no tau."""
    floor: float
    """Least expected accepted / drafted of an auto request with a tau; 0: none."""
    way: Way
    """Who drafts for it now, and how well."""
    choice: Choice | None
    """Where the controller decides who drafts."""
    backoff: Backoff
    """Of an idle request: when to probe."""
    requested: int = 0
    """Draft tokens that the last decision requested of n-gram lookup."""
    idle: bool = False
    """An auto request to which the last decision gave no drafts, other than a probe's."""
    probing: bool = False
    """Idle, and a probe is out."""
    refresh: int = 0
    """Of an idle request: step at which to form its belief again."""

    @property
    def tau_now(self) -> float:
        """Acceptance rate (0-1) below which it stops now; 0: none yet."""
        return (self.way.category.tau or 0.0) if self.tau is None else self.tau

    @property
    def stopped(self) -> bool:
        """Whether tau has stopped it."""
        return self.tau_state is not None and self.tau_state.stopped

    @property
    def probe_due(self) -> int:
        """Step from which on it may be probed, where it is idle or tau has stopped it."""
        return self.tau_state.backoff.due if self.tau_state is not None and self.tau_state.stopped else self.backoff.due


class Batch(NamedTuple):
    """A step's requests."""

    autos: Sequence[Sequence[RequestState]]
    """To decide: groups with the same curve."""
    fixed: Sequence[RequestState]
    """With a k of their own."""
    stopped: Sequence[RequestState]
    """Stopped by tau."""
    allocator: Allocator
    size: int
    """All requests."""


def sort_batch(requests: Sequence[RequestState], prefill_tokens: int, cost: StepCost, share: float) -> Batch:
    """Sort the requests, and set up the search for what the auto requests get.

    Args:
        requests: those that decode.
        prefill_tokens: prompt tokens in the same step.
        cost: step times.
        share: share of the requested draft tokens that come (0-1).
    """
    # A curve belongs to one way of drafting.
    groups: dict[Curve, list[RequestState]] = {}
    fixed: dict[tuple[Curve, int, bool], int] = {}
    own_k: list[RequestState] = []
    stopped: list[RequestState] = []
    for request in requests:
        k, curve = request.k, request.way.curve
        if k != 0 and request.tau_state is not None and request.tau_state.stopped:
            stopped.append(request)
            k = 0
        elif k is None:
            same = groups.get(curve)
            if same is None:
                groups[curve] = [request]
            else:
                same.append(request)
            continue
        else:
            own_k.append(request)
        key = curve, k, request.way.drafts == "ngram"
        fixed[key] = fixed.get(key, 0) + 1
    load = Load(prefill_tokens, [Fixed(curve, count, k, lookup) for (curve, k, lookup), count in fixed.items()])
    sized = [Group.of(curve, len(same), lookup=same[0].way.drafts == "ngram") for curve, same in groups.items()]
    allocator = Allocator(sized, load, cost, share)
    return Batch(list(groups.values()), own_k, stopped, allocator, len(requests))
