"""The model of step times, fitted while the engine works.

Verifying is learned by cells: steps with about as many batched tokens are one cell, and its mean time is what such
steps take. What must be known is the time of steps that were not run ("and with two drafts more?"), so an increasing
convex curve is laid through the cells: flat while the hardware waits for memory, steeper once it computes. Where
nothing was measured the curve is optimistic: it gets tried if it would pay, and is known then. Why cells, not
coefficients of a formula: a cell keeps what it knows while other steps are run a thousand times, and the misfit of a
formula at prefill sizes cannot bend the curve at decode sizes. (A Kalman filter on hinge features, tried first, forgot
the one and did the other.)

Drafting is learned within cells: of like steps, those that drafted more took longer by that much. A step's drafts are
verified in the next one, so whenever the depth changes, tokens and depth do not change in the same step; the controller
takes care that it changes now and then.

Robust: a slow step counts a few usual deviations at most, and the usual deviation adapts. All cells are in units of the
machine's speed, which follows a slower or faster machine within some ten steps, also for cells not seen lately.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, log2, sqrt
from typing import NamedTuple

from serve_app.speculation.convex import Point
from serve_app.speculation.draft_fit import DraftFit
from serve_app.speculation.settings import CostSettings
from serve_app.speculation.step_cost import StepCost
from serve_app.speculation.verify_curve import verify_curve

_EXACT_TOKENS = 8
"""Up to so many tokens every number is a cell of its own; beyond, a cell spans a quarter of an octave."""
_FIRST_STEPS = 3
"""Of a cell's first steps the fastest counts: chance, a compile, a page fault only slow steps."""
_SHORTEST_S, _LONGEST_S = 1e-9, 3600.0
"""What can be the time of a step, s."""
_LEAST_SEEN = 0.1
"""A cell that was not seen for long counts as much as this share of one step."""
_LEAST_PART = 0.1
"""Verifying takes at least this part of a step, and a step at least this part of what its cell says."""
_MOST_SCATTER = 1.0
_SCATTER_GAIN = 0.2
"""Weight of a step's deviation in the usual one."""


class StepTime(NamedTuple):
    """One observed step."""

    seconds: float
    tokens: int
    """Batched tokens: prefill, decode and verified draft tokens together."""
    requests: int
    """Decode requests."""
    depth: int
    """Draft tokens that the proposer was asked for in this step, which the next one verifies."""

    @property
    def request_depth(self) -> int:
        """Draft work that grows with the batch: depth x (requests - 1)."""
        return self.depth * max(0, self.requests - 1)


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

    def remembered(self, step: int, settings: CostSettings) -> float:
        """How many of its steps still count at that step."""
        return self.seen * exp((self.step - step) / settings.memory_steps)


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
    def new(cls, settings: CostSettings) -> CostModel:
        """Before any observation."""
        return cls({}, DraftFit(), settings.draft_share * settings.step_s, 0.0, 1.0, settings.noise, 0)

    def after(self, seen: StepTime, predicted: StepCost, settings: CostSettings) -> CostModel:
        """With one more observation; unchanged by a time that is no step's (not positive, or of a machine that slept).

        `predicted` is what `cost()` says so far.
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
        unit_s = self._unit_s(settings)
        doubt = abs(more_depth) * self.drafting.error(unit_s, self.scatter, settings) / expected
        usual = self.scatter + doubt
        surprise = abs(deviation) / usual
        deviation = min(settings.outlier * usual, deviation)
        seconds = expected * (1 + deviation)
        speed, scatter = self.speed, self.scatter
        if doubt < scatter:
            speed *= 1 + settings.speed_gain * max(-settings.outlier * usual, deviation)
            scatter *= 1 + _SCATTER_GAIN * (min(surprise, settings.outlier) - 1)
            scatter = min(_MOST_SCATTER, max(settings.noise, scatter))

        remembered = cell.remembered(steps, settings)
        # What surprises is first taken for the machine's speed: if it lasts it no longer surprises.
        weight = 1 / (min(remembered, settings.cell_steps) + 1) / max(1.0, surprise) ** 2
        drafting = self.drafting
        if more_depth:
            precision = (1 - weight) * min(1.0, unit_s / cell.seconds) ** 2
            more_s = seconds - cell.seconds - more_verify_s
            drafting = drafting.after(more_depth, more_request, more_s, precision, settings.draft_keep)
        draft_s, draft_request_s = drafting.costs(unit_s, scatter, settings)
        cell = Cell(
            cell.tokens + weight * more_tokens,
            cell.seconds + weight * (seconds - cell.seconds),
            cell.depth + weight * more_depth,
            cell.request_depth + weight * more_request,
            remembered + 1,
            steps,
        )
        return CostModel({**self.cells, key: cell}, drafting, draft_s, draft_request_s, speed, scatter, steps)

    def cost(self, settings: CostSettings) -> StepCost:
        """The prediction."""
        if not self.cells:
            unit = settings.step_s
            return StepCost((1.0,), (unit,), (settings.token_share * unit,), self.draft_s, self.draft_request_s)
        points = [self._point(cell, settings) for _, cell in sorted(self.cells.items())]
        knots, times, slopes = verify_curve(points, settings.token_share)
        speed = self.speed
        return StepCost(
            knots,
            tuple([speed * time for time in times]),
            tuple([speed * slope for slope in slopes]),
            draft_s=speed * self.draft_s,
            draft_request_s=speed * self.draft_request_s,
        )

    def _unit_s(self, settings: CostSettings) -> float:
        """Time of a plain step, s, at speed 1."""
        return min([cell.seconds for cell in self.cells.values()], default=settings.step_s)

    def _point(self, cell: Cell, settings: CostSettings) -> Point:
        """Tokens and verify time of a cell, s, at speed 1."""
        drafting = self.draft_s * cell.depth + self.draft_request_s * cell.request_depth
        seen = max(_LEAST_SEEN, cell.remembered(self.steps, settings))
        return Point(
            cell.tokens,
            max(cell.seconds - drafting, _LEAST_PART * cell.seconds),
            error=cell.seconds * self.scatter / sqrt(seen),
        )


def _key(tokens: int) -> int:
    """Index of the cell of that many tokens."""
    if tokens <= _EXACT_TOKENS:
        return tokens
    return _EXACT_TOKENS + 1 + int(4 * log2(tokens / _EXACT_TOKENS))
