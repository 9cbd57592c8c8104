"""What a draft iteration costs, by least squares within cells of like steps."""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

from serve_app.speculation.settings import CostSettings

_REQUEST_WIDTH = 1 / 64
"""How far the time per further request may be from 0, relative to how far that of an iteration may be from its
prior."""


class DraftFit(NamedTuple):
    """Remembered sums of products of deviations from cell means.

    Each in units of (a plain step's time)^2 / (the step's time)^2, because long steps scatter more.
    """

    depth_depth: float = 0.0
    """Of the depth with itself, tokens^2."""
    depth_request: float = 0.0
    """Of the depth with depth x (requests - 1)."""
    request_request: float = 0.0
    """Of depth x (requests - 1) with itself."""
    depth_seconds: float = 0.0
    """Of the depth with the step time."""
    request_seconds: float = 0.0
    """Of depth x (requests - 1) with the step time."""

    def after(self, more_depth: float, more_request: float, more_s: float, weight: float, kept: float) -> DraftFit:
        """With one more step, which deviated by so much; `kept` of the older sums are left."""
        return DraftFit(
            kept * self.depth_depth + weight * more_depth * more_depth,
            kept * self.depth_request + weight * more_depth * more_request,
            kept * self.request_request + weight * more_request * more_request,
            kept * self.depth_seconds + weight * more_depth * more_s,
            kept * self.request_seconds + weight * more_request * more_s,
        )

    def costs(self, unit_s: float, scatter: float, settings: CostSettings) -> tuple[float, float]:
        """Time of an iteration for one request and its further time per further request, s; neither is negative.

        Args:
            unit_s: time of a plain step, s.
            scatter: usual relative deviation of a step.
            settings: the prior.
        """
        prior = _precision(scatter, settings)
        depth_depth = self.depth_depth + prior
        request_request = self.request_request + prior / _REQUEST_WIDTH**2
        depth_seconds = self.depth_seconds + prior * settings.draft_share * unit_s
        determinant = depth_depth * request_request - self.depth_request * self.depth_request
        request_s = (depth_depth * self.request_seconds - self.depth_request * depth_seconds) / determinant
        if request_s <= 0:
            return max(0.0, depth_seconds / depth_depth), 0.0
        alone_s = (request_request * depth_seconds - self.depth_request * self.request_seconds) / determinant
        if alone_s < 0:
            return 0.0, max(0.0, self.request_seconds / request_request)
        return alone_s, request_s

    def error(self, unit_s: float, scatter: float, settings: CostSettings) -> float:
        """Standard error of the time of an iteration, s."""
        return scatter * unit_s / sqrt(self.depth_depth + _precision(scatter, settings))


def _precision(scatter: float, settings: CostSettings) -> float:
    """Weight of the prior, in the units of `depth_depth`."""
    return (scatter / settings.draft_spread) ** 2
