"""A selection as trace steps: what the goal did, what the limits did, in figures and in words."""

from __future__ import annotations

from math import isfinite

from router.constraints import GivenLimits, Violation, given_limits
from router.prediction import Estimate
from router.registry import TIER_NAMES
from router.request import Goal, InferenceRequest
from router.selection import Candidate, Selection
from router.steps import CheckedConstraints, GoalShift


def goal_shift(goal: Goal, selection: Selection) -> GoalShift:
    """What the goal made of the choice."""
    return GoalShift(
        goal=goal,
        deserved_tier=selection.deserved,
        counted_difficulty=selection.counted_difficulty,
        tier=selection.tier if goal == "faster" else selection.wanted,
        reason=_goal_words(goal, selection),
    )


def checked_constraints(request: InferenceRequest, selection: Selection) -> CheckedConstraints | None:
    """What the limits made of it; None where there are none."""
    limits, chosen = given_limits(request.constraints), selection.chosen
    if not limits or chosen is None:
        return None
    worst = chosen.broken[0] if chosen.broken else None
    prediction = chosen.prediction
    return CheckedConstraints(
        limits=tuple(f"{limit} {_number(allowed)}" for limit, allowed in limits),
        wanted_tier=selection.wanted,
        tier=selection.tier,
        kept=worst is None,
        gives_way=worst.limit if worst else None,
        allowed=worst.allowed if worst else None,
        predicted=_finite(worst.predicted.expected) if worst else None,
        predicted_upper=_finite(worst.predicted.upper) if worst else None,
        broken=tuple(violation.limit for violation in chosen.broken),
        others=tuple(_breaks(other) for other in selection.candidates if other is not chosen and other.broken),
        ttft_ms=_finite(prediction.ttft_ms.expected),
        total_ms=_finite(prediction.total_ms.expected),
        cost_usd=prediction.cost_usd.expected,
        energy_wh=prediction.energy_wh.expected,
        past_runs=prediction.runs,
        reason=_limit_words(request, limits, selection, chosen),
    )


def _goal_words(goal: Goal, selection: Selection) -> str:
    wish, wanted = f"you want it {goal}", selection.wanted
    if goal == "faster":
        if TIER_NAMES.index(selection.tier) > TIER_NAMES.index(wanted):
            return f"{wish}, and the {selection.tier} tier is predicted to answer sooner than weaker ones"
        return f"{wish}, but no stronger tier is predicted to be clearly faster than {selection.tier}"
    if wanted == selection.deserved:
        return f"{wish}, but the {wanted} tier is what this prompt needs"
    return f"{wish}, so it counts as of difficulty {selection.counted_difficulty}, which is for the {wanted} tier"


def _limit_words(request: InferenceRequest, limits: GivenLimits, selection: Selection, chosen: Candidate) -> str:
    all_limits = "your limit" if len(limits) == 1 else "all your limits"
    if not chosen.broken:
        keeps = f"the {selection.tier} tier is predicted to keep {all_limits}"
        wanted = next((c for c in selection.candidates if c.tier == selection.wanted), chosen)
        return f"{keeps}; {_breaks(wanted)}" if wanted.broken else keeps
    gives_way = _breaks(chosen)
    if request.mode == "manual":
        return f"{gives_way}; in manual mode your power setting is kept"
    return f"no tier is predicted to keep {all_limits}; the {selection.tier} tier comes nearest, but {gives_way}"


def _breaks(candidate: Candidate) -> str:
    """`balanced breaks max_ttft_ms: 75000 expected, at most 99000, allowed 2000`."""
    return f"{candidate.tier} breaks {', '.join(_violation(violation) for violation in candidate.broken)}"


def _violation(violation: Violation) -> str:
    return f"{violation.limit} ({_estimate(violation.predicted)}, allowed {_number(violation.allowed)})"


def _estimate(predicted: Estimate) -> str:
    if not isfinite(predicted.expected):
        return "it cannot start"
    return f"{_number(predicted.expected)} expected, up to {_number(predicted.upper)}"


def _number(value: float) -> str:
    """Three digits or more, without an exponent for large values."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if isfinite(value) else None
