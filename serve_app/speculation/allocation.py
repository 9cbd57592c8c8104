"""How many draft tokens to verify for each request of a batch, and how deep to draft.

The search maximises the requests' mean logarithmic speed. A request's speed is its expected output tokens per step,
divided by the time it is charged: an equal part of what the step shares (weights are read once for all, draft work is
done for all), and the price of its own tokens. For one request, or many alike, that is the engine's output tokens per
second. For a mixed batch it is not the most tokens in this step, on purpose. Texts are given: a request that copies a
passage with eight accepted drafts per step is through it soon in any case, while every draft iteration made for it
slows down those that crawl through prose. One more accepted token saves the time that a token of *this* request takes,
and to weigh gains in this way is to maximise the logarithm. In the closed loop of the tests this needs up to 4% less
time for the same texts than maximising each step's tokens per second.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, log
from operator import mul
from typing import Final, NamedTuple

from serve_app.speculation.cost_curve import StepCost

_NOTHING: Final = 1e-9
"""A gain below this counts as none."""


@dataclass(slots=True, eq=False)
class Curve:
    """One level of acceptance; the requests that share it are one group. Compared by identity, never changed (frozen
    it would take twice as long to make)."""

    output: tuple[float, ...]
    """Entry k: expected output tokens of a step for which k draft tokens are requested."""
    log_output: tuple[float, ...]
    """Their logarithms."""
    critical: tuple[float, ...]
    """Entry k: the (k+1)-th draft token is worth verifying when what a request bears of the shared time of a step is
    more than this many times what a token costs. Never decreasing."""

    @classmethod
    def of(cls, gains: Iterable[float], share: float = 1.0) -> Curve:
        """Return the curve of expected gains (not increasing).

        Args:
            gains: expected gain of each draft token in turn, given that drafts come.
            share: how often requested drafts come (0-1); n-gram drafts often find no match. A step without a
                draft costs no verification.
        """
        outputs, critical = [1.0], []
        output, tokens, least = 1.0, 1.0, 0.0
        for gain in gains:
            # Taking one more multiplies the output by 1 + share gain / output and the request's time by
            # 1 + share token / (shared + (1 + share k) token); equal at this ratio of shared to token.
            ratio = output / gain - tokens if gain > _NOTHING else inf
            if ratio > least:
                least = ratio
            critical.append(least)
            tokens += share
            output += share * gain
            outputs.append(output)
        return cls(tuple(outputs), tuple(map(log, outputs)), tuple(critical))


class Group(NamedTuple):
    """Requests of the same curve."""

    curve: Curve
    size: int
    most: int
    """Most draft tokens that they may get: the curve's length."""
    lookup: bool = False
    """Their drafts are looked up: that takes no draft iterations."""

    @classmethod
    def of(cls, curve: Curve, size: int, *, lookup: bool = False) -> Group:
        """Return a group of that many requests."""
        return cls(curve, size, len(curve.critical), lookup)


class Fixed(NamedTuple):
    """Requests of the same curve whose number of draft tokens is fixed."""

    curve: Curve
    size: int
    k: int
    lookup: bool = False
    """See `Group`."""


class Load(NamedTuple):
    """The part of a step that is given."""

    prefill_tokens: int
    fixed: Sequence[Fixed] = ()


class Allocation(NamedTuple):
    """A decision for the groups."""

    depths: tuple[int, ...]
    """Draft tokens of the requests of each group."""
    depth: int
    """The most draft tokens that any request gets."""
    iterations: int
    """What the proposer has to draft: the most draft tokens that any request gets that are not looked up."""
    tokens: float
    """Expected batched tokens of the step."""
    output: float
    """Expected output tokens of the step."""
    seconds: float
    """Predicted time of the step, s."""
    rate: float
    """Expected output tokens per second, prefill apart."""
    score: float
    """Sum of the requests' logarithmic speeds."""


class Allocator:
    """The search, for one step. Exact where the time is linear in the tokens (tests compare with brute force)."""

    def __init__(self, groups: Sequence[Group], load: Load, cost: StepCost, share: float = 1.0) -> None:
        """Set up the search.

        Args:
            groups: the requests to decide for.
            load: the rest of the step.
            cost: step times.
            share: share of the requested draft tokens that come (0-1), as in the curves.
        """
        self._groups, self._fixed, self._cost, self._share = groups, load.fixed, cost, share
        count, requested, least, deepest = 0, 0, 0, 0
        for group in groups:
            count += group.size
        for fixed in load.fixed:
            count += fixed.size
            requested += fixed.size * fixed.k
            deepest = max(deepest, fixed.k)
            if not fixed.lookup:
                least = max(least, fixed.k)
        self._count = count
        self._decode_tokens = count + share * requested
        self._prefill_tokens = load.prefill_tokens
        self._least_depth = least
        self._deepest_fixed = deepest
        self._lookups = any(group.lookup for group in groups)

    def plain(self) -> Allocation:
        """Return the allocation without drafts for any of the groups."""
        nothing = (0,) * len(self._groups)
        return self._scored(nothing, 0, self._cost.draft(self._least_depth))

    @property
    def groups(self) -> Sequence[Group]:
        """The requests to decide for."""
        return self._groups

    def uniforms(self, steps_s: Sequence[tuple[int, float]]) -> list[Allocation]:
        """Return the allocations of one number of draft tokens to each request, those whose number is fixed included.

        Args:
            steps_s: numbers of draft tokens that no curve is too short for, and times of these steps, s.
        """
        curves = [*[(group.curve, group.size) for group in self._groups], *[fixed[:2] for fixed in self._fixed]]
        counts = [size for _, size in curves]
        # By K, as deep as every curve goes.
        logs_by_k = list(zip(*[curve.log_output for curve, _ in curves], strict=False))
        outputs_by_k = list(zip(*[curve.output for curve, _ in curves], strict=False))
        size, groups = self._count, len(self._groups)
        all_lookup = all(group.lookup for group in self._groups) and all(fixed.lookup for fixed in self._fixed)
        alike = []
        for k, step_s in steps_s:
            output = sum(map(mul, counts, outputs_by_k[k]))
            alike.append(
                Allocation(
                    depths=(k,) * groups,
                    depth=k,
                    iterations=0 if all_lookup else k,
                    tokens=size * (1 + k),
                    output=output,
                    seconds=step_s,
                    rate=output / step_s,
                    score=sum(map(mul, counts, logs_by_k[k])) - size * log(step_s / size),
                )
            )
        return alike

    def best(self, near: int | None = None) -> Allocation:
        """Return the allocation with the highest score.

        At a given depth a draft token is taken when its ratio of shared time to token price (`Curve.critical`) is met.
        Over depths the score rises, then falls, as far as tests could find. So from the depth of the step before
        (`near`) it is enough to climb. None: try every depth.
        """
        best = self.plain()
        if self._lookups:
            best = max(best, self._at_depth(0), key=_score)
        most = max([group.most for group in self._groups if not group.lookup], default=0)
        if not most:
            return best
        first = max(1, min(self._least_depth, most))
        if near is None:
            return max([best, *[self._at_depth(depth) for depth in range(first, most + 1)]], key=_score)
        start = min(most, max(first, near))
        found = self._at_depth(start)
        for way in (range(start + 1, most + 1), range(start - 1, first - 1, -1)):
            climbed = False
            for depth in way:
                other = self._at_depth(depth)
                if other.score <= found.score:
                    break
                found, climbed = other, True
            if climbed:
                break
        return found if found.score > best.score else best

    def _at_depth(self, depth: int) -> Allocation:
        """Return the better of two allocations with at most that depth, charged for all of it.

        Prices are those without draft tokens, then those with as many as the first allocation takes: tokens may get
        dearer as they are taken.
        """
        fixed_s = self._cost.draft(max(depth, self._least_depth))
        first, taken = self._at_prices(depth, fixed_s, self._prices(0, fixed_s))
        prices = self._prices(taken, fixed_s)
        if prices[1] == self._prices(0, fixed_s)[1]:
            return first
        return max(first, self._at_prices(depth, fixed_s, prices)[0], key=_score)

    def _at_prices(self, depth: int, fixed_s: float, prices: tuple[float, float]) -> tuple[Allocation, int]:
        """Return the allocation at these prices, and how many draft tokens it takes."""
        shared, price = prices
        ratio = shared / price if price else inf
        depths = [
            bisect_left(group.curve.critical, ratio, 0, group.most if group.lookup else min(depth, group.most))
            for group in self._groups
        ]
        taken = sum([k * group.size for k, group in zip(depths, self._groups, strict=True)])
        return self._scored(tuple(depths), taken, fixed_s), taken

    def _prices(self, taken: int, fixed_s: float) -> tuple[float, float]:
        """Return each request's part of the shared time, s, and the price of a token, s, with that many draft tokens.

        The price is that of one more token, but no more than the average. All tokens are charged at it, so the shared
        time is what remains. Prefill raises the price where the hardware is at its limit. Its own time is not shared
        out: it is spent in any case, and a saved step is worth the time of a step without it.
        """
        tokens = self._decode_tokens + self._share * taken
        seconds, price = self._cost.at(tokens)
        seconds += fixed_s
        if self._prefill_tokens:
            price = self._cost.at(tokens + self._prefill_tokens)[1]
        price = min(price, seconds / tokens)
        return (seconds - price * tokens) / self._count, price

    def _scored(self, depths: tuple[int, ...], taken: int, fixed_s: float) -> Allocation:
        decode = self._decode_tokens + self._share * taken
        decode_s = seconds = self._cost.verify(decode) + fixed_s
        price = self._prices(taken, fixed_s)[1]
        shared = (decode_s - price * decode) / self._count + price
        own = price * self._share
        most = max(self._deepest_fixed, max(depths, default=0))
        iterations = most
        if self._lookups or self._deepest_fixed > self._least_depth:
            drafted = [k for group, k in zip(self._groups, depths, strict=True) if not group.lookup]
            iterations = max(self._least_depth, max(drafted, default=0))
        charges = [log(shared + own * k) for k in range(most + 1)]
        score = output = 0.0
        for (curve, count, _, _), k in zip(self._groups, depths, strict=True):
            score += count * (curve.log_output[k] - charges[k])
            output += count * curve.output[k]
        for curve, count, k, _ in self._fixed:
            score += count * (curve.log_output[k] - charges[k])
            output += count * curve.output[k]
        tokens = decode + self._prefill_tokens
        if self._prefill_tokens:
            seconds = self._cost.verify(tokens) + fixed_s
        return Allocation(depths, most, iterations, tokens, output, seconds, output / decode_s, score)


def _score(allocation: Allocation) -> float:
    return allocation.score
