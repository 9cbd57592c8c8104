"""Limits, numbers and estimates in words."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from router.prediction import Estimate
from router.registry import TierName
from router.selection import Violation


def breaks(tier: TierName, broken: Sequence[Violation]) -> str:
    """Return for example `balanced breaks max_ttft_ms (75000 expected, up to 99000, allowed 2000)`."""
    return f"{tier} breaks {', '.join(_violation(violation) for violation in broken)}"


def number(value: float) -> str:
    """Return three digits or more, without an exponent for large values."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _violation(violation: Violation) -> str:
    return f"{violation.limit} ({_estimate(violation.predicted)}, allowed {number(violation.allowed)})"


def _estimate(predicted: Estimate) -> str:
    if not isfinite(predicted.expected):
        return "it cannot start"
    return f"{number(predicted.expected)} expected, up to {number(predicted.upper)}"
