"""What engine steps cost: a table of measured step times, and a model that fills it where nothing was measured.

    seconds = verify(tokens) + (piecewise, where no full graph covers the step) + draft(iterations)

A cell of the table holds steps of about as many batched tokens, in a graph or not, and, where the worker does not
measure drafting apart, with as many draft iterations. A cell keeps what it knows while other steps run a thousand
times. Steps that were never run are predicted by the model: through all cells goes one increasing convex curve
(`cost_curve.py`) and cells without a graph are above it by one time, the same for all. That time, and that of a draft
iteration, are those with which the curve fits the cells best. Where cells were measured, prediction is drawn to them:
step time on GPUs is not convex.

The model is optimistic where nothing was measured, so that what would pay is tried, and then known.

Robust: a slow step counts a few usual deviations at most, and the usual deviation adapts. All cells are in units of the
machine's speed, which follows a slower or faster machine within some twenty steps, also for cells not seen lately.

A unit is the time of the cheapest cell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil, hypot, log, log2, sqrt
from typing import Final, NamedTuple

from serve_app.speculation.cost_curve import Point, StepCost, VerifyCurve, convex_fit, verify_curve
from serve_app.speculation.settings import EngineFacts

STEP_S: Final = 0.02
"""Time of a step before any was seen, s: sets the scale."""
TOKEN_SHARE: Final = 0.005
"""Expected time per further token of a step, units."""
DRAFT_SHARE: Final = 0.05
"""Expected time per draft iteration, units; about 0 for n-gram drafts."""
DRAFT_SPREAD: Final = 0.3
"""How far the true draft time may be from `DRAFT_SHARE`, units."""
PIECEWISE_SHARE: Final = 0.15
"""Expected time that a step without a graph takes more, units."""
PIECEWISE_SPREAD: Final = 1.0
"""How far the true one may be from it, as a natural logarithm."""
NOISE: Final = 0.03
"""Least relative scatter that step times are taken to have."""
MODEL_ERROR: Final = 0.01
"""How far the time of like steps is from any convex curve, relative."""
OUTLIER: Final = 3.0
"""A step time is believed up to this many usual deviations from the prediction."""
SPEED_GAIN: Final = 0.15
"""Part of a step's deviation that is taken for a change of machine speed."""
CELL_STEPS: Final = 50.0
"""Memory of the mean time of like steps, such steps."""
PRIOR_STEPS: Final = 2.0
"""Weight of the model in a cell's prediction, steps."""
_EXACT_TOKENS: Final = 8
"""Up to this many tokens every number is a cell of its own; beyond, a cell spans a quarter of an octave."""
_FIRST_STEPS: Final = 3
"""A cell is known after so many steps. Until then one of them may have waited for a compile or a page fault."""
_LATELY: Final = 64
"""A cell is up to date for so many steps."""
_OUTDATED: Final = 1.2
"""A cell that was not run lately is outdated if a larger step takes this much less."""
SHORTEST_S: Final = 1e-9
_LONGEST_S: Final = 3600.0
"""A time outside of these is no step's, s."""
_LEAST_PART: Final = 0.1
"""Verifying takes at least this part of a step."""
_MOST_SCATTER: Final = 1.0
_SCATTER_GAIN: Final = 0.2
"""Weight of a step's deviation in the usual one."""
_DRAFT_TRUST: Final = 0.2
"""A draft iteration is taken to cost this many units at most for each time that it was measured: one measurement may
have waited for something."""
_WITHIN: Final = 0.02
"""How far cells with about as many tokens may differ, as their tokens do, relative."""
_MOST_RISE: Final = 1.25
"""Time per token rises by this factor at most, from cell to cell (kernels work by tiles)."""
_MOST_MISFIT: Final = OUTLIER * OUTLIER
_MOVES: Final = (1.7, 1.2, 1.05)
"""Factors by which the search for a time moves, the first only at the beginning. The second leaves most valleys that
are not the deepest."""
_MOST_STEPS_A_FIT: Final = 8
"""Most steps for which a fit is used; fewer while the costs are still being learned."""
_FIRST_FITS: Final = 50
"""Steps during which that search begins from what is expected; later it goes on from where it was."""


class StepTime(NamedTuple):
    """One observed step."""

    seconds: float
    tokens: int
    """Batched tokens: prefill, decode and verified draft tokens together."""
    captured: bool
    """Whether it ran in a full graph."""
    iterations: int
    """Draft iterations in these seconds; 0 where drafting was measured apart."""


class Key(NamedTuple):
    """Names a cell."""

    captured: bool
    iterations: int
    bucket: int

    @classmethod
    def of(cls, captured: bool, iterations: int, tokens: float) -> Key:
        """Return the key of the cell of such steps."""
        return cls(captured, iterations, _bucket(tokens))


@dataclass(slots=True)
class Cell:
    """Means of like steps."""

    tokens: float
    seconds: float
    """At speed 1."""
    seen: float
    """How many steps, as far as remembered."""
    last: int = 0
    """Number of the last of them among all steps."""
    first: list[tuple[float, float]] = field(default_factory=list)
    """Seconds and tokens of the first `_FIRST_STEPS` steps."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Predicted step times."""

    facts: EngineFacts
    k_max: int
    apart: bool
    """Whether cells hold the times of forward passes only, because the worker measures drafting apart."""
    in_graph: StepCost
    """Of steps in a full graph; of every step where there are none."""
    piecewise: StepCost
    """Of other steps."""
    corrections: dict[Key, float] = field(default_factory=dict)
    """By cell: what measured steps took more than the model says, s."""
    lookups: bool = False
    """Whether only n-gram lookup drafts, which takes no draft iterations."""
    _steps_s: dict[tuple[float, int, bool], float] = field(default_factory=dict)
    """Answers of `step_s`."""

    @property
    def piecewise_s(self) -> float:
        """What a step without a graph takes more, s."""
        return self.piecewise.at_knot_s[0] - self.in_graph.at_knot_s[0]

    @property
    def mixed(self) -> StepCost:
        """Times of steps in which requests verify different numbers of draft tokens."""
        return self.in_graph if self.facts.graph == "any" else self.piecewise

    def of_lookups(self) -> Costs:
        """Return the same for steps in which only n-gram lookup drafts."""
        free = (0.0,) * (self.k_max + 1)
        in_graph, piecewise = self.in_graph._replace(drafts_s=free), self.piecewise._replace(drafts_s=free)
        return replace(self, in_graph=in_graph, piecewise=piecewise, lookups=True, _steps_s={})

    def key(self, tokens: float, depth: int, captured: bool) -> Key:
        """Return the key of the cell of such a step."""
        without_drafting = self.apart or self.lookups
        return Key.of(captured, 0 if without_drafting else self.facts.iterations(depth, self.k_max), tokens)

    def step_s(self, tokens: float, depth: int, captured: bool) -> float:
        """Return the time of a step, s.

        Args:
            tokens: batched tokens.
            depth: deepest draft that is made.
            captured: whether it runs in a full graph.
        """
        seconds = self._steps_s.get((tokens, depth, captured))
        if seconds is None:
            verify_s = (self.in_graph if captured else self.piecewise).verify(tokens)
            correction_s = self.corrections.get(self.key(tokens, depth, captured), 0.0)
            seconds = verify_s + self.in_graph.draft(depth) + correction_s
            self._steps_s[tokens, depth, captured] = seconds
        return seconds

    def fixed_part(self, tokens: float, captured: bool) -> float:
        """Return the part (0-1) of the time of a step, without drafting, that one with a single token takes; see
        `step_s`."""
        cost = self.in_graph if captured else self.piecewise
        return min(1.0, cost.verify(1) / cost.verify(max(1, tokens)))

    def mixed_s(self, tokens: float, depth: int) -> float:
        """Return the time of a step in which requests verify different numbers of draft tokens, s; see `step_s`."""
        return self.step_s(tokens, depth, self.facts.captured(None, tokens, self.k_max))

    def alike_s(self, size: int, k: int) -> float:
        """Return the time of a step in which each of `size` requests verifies k draft tokens, and no prompt is read."""
        tokens = size * (1 + k)
        return self.step_s(tokens, k, self.facts.captured(k, tokens, self.k_max))

    def off_s(self, size: int) -> float:
        """Return the time of a step of `size` requests on the same engine without speculation, s. Such a step drafts
        nothing, and runs in a graph where there are graphs."""
        captured = self.facts.captured(0, size, self.k_max)
        return self.step_s(size, 0, captured) - self.in_graph.draft(0) - (0.0 if captured else self.piecewise_s)


class CostTable:
    """The cells, and the model laid through them."""

    def __init__(self, facts: EngineFacts, k_max: int) -> None:
        """Set up the table before any observation.

        Args:
            facts: of the engine.
            k_max: most draft tokens of a request.
        """
        self._facts, self._k_max = facts, k_max
        self._graphs = facts.graph != "none"
        self._cells: dict[Key, Cell] = {}
        self._draft_cells: dict[int, Cell] = {}  # by iterations, where drafting was measured apart
        self._speed, self._scatter = 1.0, NOISE
        self._steps = self._due = 0
        self._apart = False
        self.piecewise_s, self.draft_s = 0.0, DRAFT_SHARE * STEP_S
        self.costs = self.refit()
        """What is predicted now."""

    @property
    def graph_is_known(self) -> bool:
        """Whether enough steps ran in a graph to know what that saves."""
        return sum([cell.seen for key, cell in self._cells.items() if key.captured]) >= _FIRST_STEPS

    def is_known(self, key: Key) -> bool:
        """Return whether steps of that cell were measured often enough."""
        cell = self._cells.get(key)
        return cell is not None and cell.seen >= _FIRST_STEPS

    def least_s(self, tokens: float, depth: int, captured: bool) -> float | None:
        """Return the least time that a step may take by what was measured, s: a step takes no less than one with fewer
        tokens. None: it was measured itself, or none with fewer tokens was."""
        costs = self.costs
        key = costs.key(tokens, depth, captured)
        if self.is_known(key):
            return None
        smaller = [
            cell.seconds + self.draft_s * (key.iterations - each.iterations)
            for each, cell in self._cells.items()
            if each.captured == captured and each.bucket < key.bucket and each.iterations <= key.iterations
        ]
        if not smaller:
            return None
        return self._speed * max(smaller) + (costs.in_graph.draft(depth) if costs.apart else 0.0)

    def error(self, key: Key) -> float:
        """Return the relative standard error of the predicted time of steps of that cell. Those that never ran are
        predicted from others, about as well as from one of their own."""
        cell = self._cells.get(key)
        return hypot(self._scatter / sqrt(cell.seen if cell else 1.0), MODEL_ERROR)

    @property
    def cells(self) -> Mapping[Key, Cell]:
        """The table."""
        return self._cells

    def observe(self, seen: StepTime) -> bool:
        """Learn one step's time. Return whether it taught something.

        One that is no step's (not positive, or of a machine that slept) does not. Nor does an engine's first step: it
        waits for compilation.
        """
        if not (SHORTEST_S <= seen.seconds <= _LONGEST_S and seen.tokens > 0):  # NaN fails the comparison
            return False
        self._steps += 1
        if self._steps == 1:
            return False
        if self._took_in(seen) or self._steps >= self._due:
            self.costs = self.refit()
            self._due = self._steps + min(_MOST_STEPS_A_FIT, 1 + self._steps // 50)
        return True

    def observe_apart(self, draft_s: float | None, iterations: int) -> None:
        """Learn the time of drafting, s, which the worker measures apart; None: not of this step."""
        self._apart = True
        if draft_s is not None:
            self.observe_draft(draft_s, iterations)

    def _took_in(self, seen: StepTime) -> bool:
        """Take the step into its cell. Return whether it opened the cell."""
        key = Key.of(seen.captured, seen.iterations, seen.tokens)
        seconds = seen.seconds / self._speed
        cell = self._cells.get(key)
        if cell is None:
            self._cells[key] = Cell(float(seen.tokens), seconds, 1.0, self._steps, [(seconds, float(seen.tokens))])
            self._forget_outdated(key, seconds)
            return True
        cell.last = self._steps
        more_tokens = seen.tokens - cell.tokens
        slope_s = self.costs.in_graph.at(cell.tokens)[1] if more_tokens else 0.0
        expected = max(cell.seconds + more_tokens * slope_s / self._speed, _LEAST_PART * cell.seconds)
        deviation = seconds / expected - 1
        if cell.seen < _FIRST_STEPS:
            cell.first.append((seconds, float(seen.tokens)))
            # The median: a compile or a page fault makes a step much slower. Of two the faster one.
            cell.seconds, cell.tokens = sorted(cell.first)[(len(cell.first) - 1) // 2]
            cell.seen += 1
            return False
        # Only slow steps are clipped: chance does not make a step fast.
        surprise = abs(deviation) / self._scatter
        deviation = min(OUTLIER * self._scatter, deviation)
        seconds = expected * (1 + deviation)
        # What surprises is first taken for the machine's speed: if it lasts it no longer surprises.
        weight = 1 / (min(cell.seen, CELL_STEPS) + 1) / max(1.0, surprise) ** 2
        self._speed *= 1 + SPEED_GAIN * max(-OUTLIER * self._scatter, deviation)
        self._scatter *= 1 + _SCATTER_GAIN * (min(surprise, OUTLIER) - 1)
        self._scatter = min(_MOST_SCATTER, max(NOISE, self._scatter))
        cell.tokens += weight * more_tokens
        cell.seconds += weight * (seconds - cell.seconds)
        cell.seen += 1
        self._forget_outdated(key, cell.seconds)
        return False

    def _forget_outdated(self, key: Key, seconds: float) -> None:
        """Forget what was measured while the machine was slower.

        A step with no more tokens and draft iterations than one that takes so many seconds takes no longer. What looks
        dear by mistake is never run again, so nothing else would correct it.
        """
        longest_s, since = _OUTDATED * seconds, self._steps - _LATELY
        outdated = [
            each
            for each, cell in self._cells.items()
            if cell.seconds > longest_s
            and cell.last < since
            and each.bucket <= key.bucket
            and each.iterations <= key.iterations
            and each.captured == key.captured
        ]
        for each in outdated:
            del self._cells[each]

    def observe_draft(self, seconds: float, iterations: int) -> None:
        """Learn the time of drafting, where it was measured apart. Drafting nothing takes time as well: an EAGLE head
        reads the step's hidden states all the same."""
        if not (iterations >= 0 and 0 <= seconds <= _LONGEST_S and self._steps > 1):
            return
        seconds /= self._speed
        cell = self._draft_cells.get(iterations)
        if cell is None:
            self._draft_cells[iterations] = Cell(float(iterations), seconds, 1.0)
            return
        if cell.seen < _FIRST_STEPS:
            cell.seconds = min(cell.seconds, seconds)
        else:
            seconds = min(seconds, (1 + OUTLIER * self._scatter) * cell.seconds)
            cell.seconds += (seconds - cell.seconds) / (min(cell.seen, CELL_STEPS) + 1)
        cell.seen += 1

    def refit(self) -> Costs:
        """Fit the model, and return the prediction."""
        if self._cells:
            marks = self._marks()
            self._fit(marks)
            curve = verify_curve(_points(marks, self.piecewise_s, self.draft_s), TOKEN_SHARE)
        else:
            curve = VerifyCurve((1.0,), (STEP_S,), (TOKEN_SHARE * STEP_S,))
        speed = self._speed
        slopes = tuple([speed * slope for slope in curve.slopes])
        drafts = tuple([speed * self._drafting_s(depth) for depth in range(self._k_max + 1)])
        in_graph = StepCost(curve.knots, tuple([speed * time for time in curve.times]), slopes, drafts)
        piecewise = in_graph._replace(at_knot_s=tuple([speed * (time + self.piecewise_s) for time in curve.times]))
        costs = Costs(self._facts, self._k_max, self._apart, in_graph, piecewise)
        for key, cell in self._cells.items():
            model = (in_graph if key.captured else piecewise).verify(cell.tokens)
            model += speed * self.draft_s * key.iterations
            seen = cell.seen
            costs.corrections[key] = (speed * cell.seconds - model) * seen / (seen + PRIOR_STEPS)
        return costs

    def _fit(self, marks: Sequence[Mark]) -> None:
        """Find the times of a draft iteration and of a step without a graph with which a curve fits the cells best."""
        unit = min([cell.seconds for cell in self._cells.values()])
        # What drafting nothing takes is no part of an iteration.
        drafted = [cell for iterations, cell in self._draft_cells.items() if iterations]
        apart = sum([cell.seen * cell.tokens for cell in drafted])
        whole = not apart and any(key.iterations for key in self._cells)
        if apart:
            most = sum([cell.seen for cell in drafted]) * _DRAFT_TRUST * unit
            mean_s = sum([cell.seen * cell.seconds for cell in drafted]) / apart
            self.draft_s = min(mean_s, most)
        elif not whole:
            self.draft_s = DRAFT_SHARE * unit
        # Where nothing is known of a time, it follows the unit.
        fresh = self._steps <= _FIRST_FITS
        known: dict[tuple[float, float], float] = {}  # a search often comes to where another one was

        def misfit(piecewise_s: float, draft_s: float) -> float:
            if (found := known.get((piecewise_s, draft_s))) is None:
                found = known[piecewise_s, draft_s] = _misfit(marks, piecewise_s, draft_s, unit)
            return found

        for _ in range(2 if whole and self._graphs else 1):
            if whole:
                now = DRAFT_SHARE * unit if fresh else self.draft_s
                self.draft_s = _nearby(lambda draft_s: misfit(self.piecewise_s, draft_s), now, fresh)
            if self._graphs:
                now = PIECEWISE_SHARE * unit if fresh else self.piecewise_s
                self.piecewise_s = _nearby(lambda more_s: misfit(more_s, self.draft_s), now, fresh)

    def _drafting_s(self, depth: int) -> float:
        """Return the time of drafting, s: never less than that of drafting nothing."""
        iterations = self._facts.iterations(depth, self._k_max)
        least_s = self._drafting_s(0) if depth and self._facts.iterations(0, self._k_max) == 0 else 0.0
        model, cell = max(least_s, self.draft_s * iterations), self._draft_cells.get(iterations)
        if cell is None or cell.seen < _FIRST_STEPS:
            return model
        return max(least_s, model + (cell.seconds - model) * cell.seen / (cell.seen + PRIOR_STEPS))

    def _marks(self) -> list[Mark]:
        """Return what the cells say of the verify time by tokens; cells of about as many tokens joined."""
        by_bucket: dict[int, list[tuple[float, Key, Cell]]] = {}
        for key, cell in self._cells.items():
            chance = self._scatter / sqrt(cell.seen)
            error = cell.seconds * sqrt(chance * chance + MODEL_ERROR * MODEL_ERROR)
            by_bucket.setdefault(key.bucket, []).append((1 / (error * error), key, cell))
        marks = []
        for _, same in sorted(by_bucket.items()):
            weight = sum([each for each, _, _ in same])
            marks.append(
                Mark(
                    tokens=sum([each * cell.tokens for each, _, cell in same]) / weight,
                    seconds=sum([each * cell.seconds for each, _, cell in same]) / weight,
                    piecewise=sum([each for each, key, _ in same if not key.captured]) / weight,
                    iterations=sum([each * key.iterations for each, key, _ in same]) / weight,
                    error=1 / sqrt(weight),
                    members=tuple([self._member(each, key, cell) for each, key, cell in same]) if len(same) > 1 else (),
                )
            )
        return marks

    @staticmethod
    def _member(weight: float, key: Key, cell: Cell) -> Member:
        error = sqrt(1 / weight + (_WITHIN * cell.seconds) ** 2)
        return Member(cell.seconds, 0.0 if key.captured else 1.0, key.iterations, error)


class Member(NamedTuple):
    """One of several cells with about as many tokens."""

    seconds: float
    piecewise: float
    """1: ran without a graph; 0: in one."""
    iterations: float
    error: float


class Mark(NamedTuple):
    """Mean of the cells with about as many tokens."""

    tokens: float
    seconds: float
    piecewise: float
    """Part of it that ran without a graph (0-1)."""
    iterations: float
    """Draft iterations in these seconds."""
    error: float
    """Standard error, s."""
    members: tuple[Member, ...]
    """The cells, where it is more than one."""


def _points(marks: Sequence[Mark], piecewise_s: float, draft_s: float) -> list[Point]:
    """Return the time of verifying in a graph that the cells show, s, with these times of the rest."""
    points = list[Point]()
    for tokens, seconds, piecewise, iterations, error, _ in marks:
        verify_s = max(seconds - piecewise_s * piecewise - draft_s * iterations, _LEAST_PART * seconds)
        if points:
            # Time per token does not rise with the tokens: a step that took longer waited for something.
            before = points[-1]
            verify_s = min(verify_s, _MOST_RISE * before.y * tokens / before.x)
        points.append(Point(tokens, verify_s, error))
    return points


def _misfit(marks: Sequence[Mark], piecewise_s: float, draft_s: float, unit: float) -> float:
    """Return how badly a curve fits the cells with these times. Each cell counts `OUTLIER` errors at most."""
    points = _points(marks, piecewise_s, draft_s)
    values, _ = convex_fit(points)
    misfit = 0.0
    for point, value in zip(points, values, strict=True):
        off = (point.y - value) / point.error
        misfit += _softened(off * off)
    # Cells with about as many tokens differ by these times only.
    for mark in marks:
        for seconds, piecewise, iterations, error in mark.members:
            off = seconds - mark.seconds
            off -= piecewise_s * (piecewise - mark.piecewise) + draft_s * (iterations - mark.iterations)
            misfit += _softened((off / error) ** 2)
    # Time per token does not rise with the tokens.
    for one, other in pairwise(points):
        excess = other.y - one.y * other.x / one.x
        if excess > 0:
            misfit += _softened(excess * excess / (one.error * one.error + other.error * other.error))
    off = (draft_s / unit - DRAFT_SHARE) / DRAFT_SPREAD
    misfit += off * off
    if piecewise_s:
        off = log(piecewise_s / (PIECEWISE_SHARE * unit)) / PIECEWISE_SPREAD
        misfit += off * off
    return misfit


def _softened(square: float) -> float:
    """Return a squared deviation, in usual ones; what deviates by more than `OUTLIER` counts by its logarithm."""
    return square if square <= _MOST_MISFIT else _MOST_MISFIT * (1 + log(square / _MOST_MISFIT))


def _nearby(misfit: Callable[[float], float], now: float, fresh: bool) -> float:
    """Return a time at which the misfit is less or least: climb from `now`, from afar while all is `fresh`."""
    least = misfit(now)
    for factor in _MOVES if fresh else _MOVES[1:]:
        for step in (factor, 1 / factor):
            moved = False
            while (other := misfit(now * step)) < least and SHORTEST_S < now < _LONGEST_S:
                now, least, moved = now * step, other, True
            if moved:
                break
    return now


def _bucket(tokens: float) -> int:
    """Return the index of the cells of about that many tokens."""
    if tokens <= _EXACT_TOKENS:
        return round(tokens)
    return _EXACT_TOKENS + ceil(4 * log2(tokens / _EXACT_TOKENS))
