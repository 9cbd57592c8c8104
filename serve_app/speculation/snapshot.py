"""What the controller knows, for metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FamilySnapshot:
    """One prompt family."""

    drafted: int
    """Draft tokens verified since the start."""
    accepted: int
    """Those of them that were accepted."""
    acceptance: tuple[float, ...]
    """Current estimate (0-1) by draft position, given that the positions before were accepted."""
    quickness: float
    """How bursty its text is, 0 (steady) to 1."""


@dataclass(frozen=True, slots=True)
class CostSnapshot:
    """The fitted step times."""

    verify_s: Mapping[int, float]
    """By batched tokens: time of a step without drafts, s."""
    draft_s: float
    """Time of one draft iteration for one request, s."""
    draft_request_s: float
    """Further time of a draft iteration per further request, s."""
    scatter: float
    """Usual relative deviation of a step from its prediction."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All of it."""

    steps: int
    """Decisions since the start."""
    requests: int
    """Requests now."""
    probes: int
    """Probes sent since the start."""
    plain_steps: int
    """Steps without drafts that were run to measure what drafts cost."""
    draft_share: float
    """Share (0-1) of the asked draft tokens that came."""
    families: Mapping[str, FamilySnapshot]
    cost: CostSnapshot
