"""The model of step times, fitted while the engine works.

Verifying is learned by cells: steps with about as many batched tokens are one cell, and its mean time is what such
steps take. The controller must know the time of steps that were not run ("and with two drafts more?"), so an increasing
convex curve is laid through the cells (`cost_curve.py`). Where nothing was measured the curve is optimistic, so that
what would pay is tried, and then known. Cells, not coefficients of a formula: a cell keeps what it knows while other
steps are run a thousand times, and the misfit of a formula at prefill sizes cannot bend the curve at decode sizes. (A
Kalman filter on hinge features, tried first, forgot the one and did the other.)

Drafting is learned within cells: of like steps, those that drafted more took longer by that much. A step's drafts are
verified in the next one, so whenever the depth changes, tokens and depth do not change in the same step; the controller
makes sure that the depth changes now and then.

Robust: a slow step counts a few usual deviations at most, and the usual deviation adapts. All cells are in units of the
machine's speed, which follows a slower or faster machine within some ten steps, also for cells not seen lately.

A unit is the time of a step with one token and no drafts.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, log2, sqrt
from typing import Final, NamedTuple

from serve_app.speculation.cost_curve import Point, StepCost, verify_curve

STEP_S: Final = 0.02
"""Time of a step before any was seen, s: sets the scale."""
TOKEN_SHARE: Final = 0.01
"""Expected time per further token of a step, units."""
DRAFT_SHARE: Final = 0.1
"""Expected time per draft iteration, units; about 0 for n-gram drafts."""
DRAFT_SPREAD: Final = 0.3
"""How far the true draft time may be from `DRAFT_SHARE`, units."""
DRAFT_KEEP: Final = 0.995
"""What a step leaves of the older draft times."""
NOISE: Final = 0.03
"""Least relative scatter that step times are taken to have."""
OUTLIER: Final = 3.0
"""A step time is believed up to this many usual deviations from the prediction."""
SPEED_GAIN: Final = 0.15
"""Part of a step's deviation that is taken for a change of machine speed."""
CELL_STEPS: Final = 50.0
"""Memory of the mean time of like steps, such steps."""
MEMORY_STEPS: Final = 2000.0
"""How long what was seen of like steps is trusted, steps: it fades by e."""
_EXACT_TOKENS: Final = 8
"""Up to this many tokens every number is a cell of its own; beyond, a cell spans a quarter of an octave."""
_FIRST_STEPS: Final = 3
"""Of a cell's first steps the fastest counts: chance, a compile or a page fault only make steps slower."""
_SHORTEST_S: Final = 1e-9
_LONGEST_S: Final = 3600.0
"""A time outside of these is no step's, s."""
_LEAST_SEEN: Final = 0.1
"""A cell that was not seen for long counts as this share of one step."""
_LEAST_PART: Final = 0.1
"""Verifying takes at least this part of a step, and a step at least this part of what its cell says."""
_MOST_SCATTER: Final = 1.0
_SCATTER_GAIN: Final = 0.2
"""Weight of a step's deviation in the usual one."""
_REQUEST_WIDTH: Final = 1 / 64
"""How far the time per further request may be from 0, relative to how far that of an iteration may be from its
prior."""


class StepTime(NamedTuple):
    """One observed step."""

    seconds: float
    tokens: int
    """Batched tokens: prefill, decode and verified draft tokens together."""
    requests: int
    """Decode requests."""
    depth: int
    """Draft tokens that the proposer had to make in this step, which the next one verifies."""

    @property
    def request_depth(self) -> int:
        """Draft work that grows with the batch: depth x (requests - 1)."""
        return self.depth * max(0, self.requests - 1)


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
        """Return the sums with one more step, which deviated by that much; `kept` of the older ones is left."""
        return DraftFit(
            kept * self.depth_depth + weight * more_depth * more_depth,
            kept * self.depth_request + weight * more_depth * more_request,
            kept * self.request_request + weight * more_request * more_request,
            kept * self.depth_seconds + weight * more_depth * more_s,
            kept * self.request_seconds + weight * more_request * more_s,
        )

    def costs(self, unit_s: float, scatter: float) -> tuple[float, float]:
        """Return the time of an iteration for one request and per further request, s; neither is negative.

        Args:
            unit_s: time of a plain step, s.
            scatter: usual relative deviation of a step.
        """
        prior = _precision(scatter)
        depth_depth = self.depth_depth + prior
        request_request = self.request_request + prior / _REQUEST_WIDTH**2
        depth_seconds = self.depth_seconds + prior * DRAFT_SHARE * unit_s
        determinant = depth_depth * request_request - self.depth_request * self.depth_request
        request_s = (depth_depth * self.request_seconds - self.depth_request * depth_seconds) / determinant
        if request_s <= 0:
            return max(0.0, depth_seconds / depth_depth), 0.0
        alone_s = (request_request * depth_seconds - self.depth_request * self.request_seconds) / determinant
        if alone_s < 0:
            return 0.0, max(0.0, self.request_seconds / request_request)
        return alone_s, request_s

    def error(self, unit_s: float, scatter: float) -> float:
        """Return the standard error of the time of an iteration, s."""
        return scatter * unit_s / sqrt(self.depth_depth + _precision(scatter))


def _precision(scatter: float) -> float:
    """Return the weight of the prior, in the units of `depth_depth`."""
    return (scatter / DRAFT_SPREAD) ** 2


class Cell(NamedTuple):
    """Means of steps with about as many tokens."""

    tokens: float
    seconds: float
    """At speed 1."""
    depth: float
    request_depth: float
    seen: float
    """How many steps, as far as remembered."""
    step: int
    """When the last one was seen."""

    def remembered(self, step: int) -> float:
        """Return how many of its steps still count at that step."""
        return self.seen * exp((self.step - step) / MEMORY_STEPS)


class CostModel(NamedTuple):
    """State of the fit."""

    cells: Mapping[int, Cell]
    drafting: DraftFit
    draft_s: float
    """Time of one draft iteration for one request, s, at speed 1."""
    draft_request_s: float
    """Further time of it per further request, s, at speed 1."""
    speed: float
    """Present time of a step, relative to what the cells say."""
    scatter: float
    """Usual relative deviation of a step from its cell."""
    steps: int

    @classmethod
    def new(cls) -> CostModel:
        """Return the model before any observation."""
        return cls({}, DraftFit(), DRAFT_SHARE * STEP_S, 0.0, 1.0, NOISE, 0)

    def after(self, seen: StepTime, predicted: StepCost) -> CostModel:
        """Return the model with one more observation.

        A time that is no step's (not positive, or of a machine that slept) changes nothing. `predicted` is what
        `cost()` says so far.
        """
        if not (_SHORTEST_S <= seen.seconds <= _LONGEST_S and seen.tokens > 0):  # NaN fails the comparison
            return self
        steps, key = self.steps + 1, _key(seen.tokens)
        seconds = seen.seconds / self.speed
        cell = self.cells.get(key)
        if cell is None:
            new = Cell(float(seen.tokens), seconds, float(seen.depth), float(seen.request_depth), 1.0, steps)
            return self._replace(cells={**self.cells, key: new}, steps=steps)

        more_tokens = seen.tokens - cell.tokens
        more_depth, more_request = seen.depth - cell.depth, seen.request_depth - cell.request_depth
        more_verify_s = more_tokens * predicted.at(cell.tokens)[1] / self.speed
        expected = cell.seconds + more_verify_s + self.draft_s * more_depth + self.draft_request_s * more_request
        expected = max(expected, _LEAST_PART * cell.seconds)
        deviation = seconds / expected - 1
        if cell.seen < _FIRST_STEPS:
            if deviation < 0:
                cell = Cell(float(seen.tokens), seconds, float(seen.depth), float(seen.request_depth), cell.seen, steps)
            cell = cell._replace(seen=cell.seen + 1, step=steps)
            return self._replace(cells={**self.cells, key: cell}, steps=steps)

        # A step deviates by chance, and because the draft cost is not known well. Only slow steps are clipped: chance
        # does not make a step fast.
        unit_s = self._unit_s()
        doubt = abs(more_depth) * self.drafting.error(unit_s, self.scatter) / expected
        usual = self.scatter + doubt
        surprise = abs(deviation) / usual
        deviation = min(OUTLIER * usual, deviation)
        seconds = expected * (1 + deviation)
        speed, scatter = self.speed, self.scatter
        if doubt < scatter:
            speed *= 1 + SPEED_GAIN * max(-OUTLIER * usual, deviation)
            scatter *= 1 + _SCATTER_GAIN * (min(surprise, OUTLIER) - 1)
            scatter = min(_MOST_SCATTER, max(NOISE, scatter))

        remembered = cell.remembered(steps)
        # What surprises is first taken for the machine's speed: if it lasts it no longer surprises.
        weight = 1 / (min(remembered, CELL_STEPS) + 1) / max(1.0, surprise) ** 2
        drafting = self.drafting
        if more_depth:
            precision = (1 - weight) * min(1.0, unit_s / cell.seconds) ** 2
            more_s = seconds - cell.seconds - more_verify_s
            drafting = drafting.after(more_depth, more_request, more_s, precision, DRAFT_KEEP)
        draft_s, draft_request_s = drafting.costs(unit_s, scatter)
        cell = Cell(
            cell.tokens + weight * more_tokens,
            cell.seconds + weight * (seconds - cell.seconds),
            cell.depth + weight * more_depth,
            cell.request_depth + weight * more_request,
            remembered + 1,
            steps,
        )
        return CostModel({**self.cells, key: cell}, drafting, draft_s, draft_request_s, speed, scatter, steps)

    def cost(self) -> StepCost:
        """Return the prediction."""
        if not self.cells:
            unit = STEP_S
            return StepCost((1.0,), (unit,), (TOKEN_SHARE * unit,), self.draft_s, self.draft_request_s)
        points = [self._point(cell) for _, cell in sorted(self.cells.items())]
        knots, times, slopes = verify_curve(points, TOKEN_SHARE)
        speed = self.speed
        return StepCost(
            knots,
            tuple([speed * time for time in times]),
            tuple([speed * slope for slope in slopes]),
            draft_s=speed * self.draft_s,
            draft_request_s=speed * self.draft_request_s,
        )

    def _unit_s(self) -> float:
        """Return the time of a plain step, s, at speed 1."""
        return min([cell.seconds for cell in self.cells.values()], default=STEP_S)

    def _point(self, cell: Cell) -> Point:
        """Return the tokens and the verify time of a cell, s, at speed 1."""
        drafting = self.draft_s * cell.depth + self.draft_request_s * cell.request_depth
        seen = max(_LEAST_SEEN, cell.remembered(self.steps))
        return Point(
            cell.tokens,
            max(cell.seconds - drafting, _LEAST_PART * cell.seconds),
            error=cell.seconds * self.scatter / sqrt(seen),
        )


def _key(tokens: int) -> int:
    """Return the index of the cell of that many tokens."""
    if tokens <= _EXACT_TOKENS:
        return tokens
    return _EXACT_TOKENS + 1 + int(4 * log2(tokens / _EXACT_TOKENS))
