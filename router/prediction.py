"""What an answer will take on a tier: time, cost and energy, each with its uncertainty.

    TTFT       = wait + first token on the engine
    wait       = cold start (a tier without a running replica) or queue wait (a warm one)
    total      = TTFT + (completion tokens - 1) * time per token
    time on the engine = total - wait
    energy     = watts charged to an answer * time on the engine
    cost       = USD per hour charged to an answer * time on the engine

The five measured quantities (first token, time per token, completion tokens, watts, USD per hour) come from past runs:
those of the prompt's category on the tier, drawn towards those of the whole tier, which are drawn towards the profile's
figures. So a tier of which nothing is known has the profile's, and some runs later its own. Drawing is counting: the
broader source counts as so many runs, and the mixture of the two has a mean and a deviation.

What is left out: the length of the prompt (recent prompts stand for it), and how the load will change meanwhile.
"""

from __future__ import annotations

from math import inf, sqrt
from typing import NamedTuple

from router.difficulty.categories import Category
from router.observation import TierState
from router.registry import Baseline, Tier
from router.runs.summary import NO_RUNS, Recent

UPPER_Z = 1.28
"""An upper estimate is so many deviations over the expected value: nine in ten normally distributed values are under
it. This project's own choice, like the numbers below."""
PRIOR_RUNS = 2.0
"""As so many runs count the profile's figures beside the tier's own."""
TIER_RUNS = 4.0
"""As so many runs count those of the whole tier beside those of the prompt's category."""
PRIOR_SPREAD = 0.5
"""Deviation of the profile's figures, as a share of them."""
COLD_START_SPREAD = 0.25
"""Deviation of a cold start, as a share of its estimate."""


class Estimate(NamedTuple):
    """An expected value and how far off it may be."""

    expected: float
    deviation: float

    @property
    def upper(self) -> float:
        """What it will hardly exceed."""
        return self.expected + UPPER_Z * self.deviation


NEVER = Estimate(inf, 0.0)


class Prediction(NamedTuple):
    """What an answer will take on one tier."""

    ttft_ms: Estimate
    total_ms: Estimate
    cost_usd: Estimate
    energy_wh: Estimate
    completion_tokens: Estimate
    ms_per_token: Estimate
    """Between the first token and the last."""
    runs: float
    """Effective number of past runs of the tier behind it."""

    @property
    def tokens_per_s(self) -> float:
        """Expected pace after the first token."""
        return 1000 / self.ms_per_token.expected


def predict(tier: Tier, state: TierState, category: Category, max_tokens: int, baseline: Baseline) -> Prediction:
    """What an answer of at most `max_tokens` to a prompt of that category will take.

    Args:
        tier: its figures, where no run was seen.
        state: what is known of it. A tier that cannot start takes for ever.
        category: category of the prompt.
        max_tokens: most completion tokens, at least 1.
        baseline: stands in where the tier has no figures of its own.
    """
    recent, kin = state.recent, state.recent_by_category.get(category, NO_RUNS)
    first = _drawn(_about(tier.expected_ttft_ms or baseline.ttft_s * 1000), recent.engine_ttft_ms, kin.engine_ttft_ms)
    pace = _drawn(
        _about(1000 / (tier.expected_tokens_per_s or baseline.tokens_per_s)), recent.ms_per_token, kin.ms_per_token
    )
    watts = _drawn(Estimate(tier.active_watts, 0.0), recent.watts, kin.watts)
    price = _drawn(Estimate(tier.price_usd_per_hour, 0.0), recent.usd_per_hour, kin.usd_per_hour)
    tokens = _at_most(max_tokens, _drawn(_any_up_to(max_tokens), recent.completion_tokens, kin.completion_tokens))

    later = _times(Estimate(max(0.0, tokens.expected - 1), tokens.deviation), pace)
    busy_ms = _plus(first, later)
    wait = _wait_ms(state)
    ms_per_hour = 3_600_000
    return Prediction(
        ttft_ms=_plus(wait, first),
        total_ms=_plus(wait, busy_ms),
        cost_usd=_times(price, _scaled(busy_ms, 1 / ms_per_hour)),
        energy_wh=_times(watts, _scaled(busy_ms, 1 / ms_per_hour)),
        completion_tokens=tokens,
        ms_per_token=pace,
        runs=recent.runs,
    )


def _wait_ms(state: TierState) -> Estimate:
    if state.failed:
        return NEVER
    if state.warm:
        # Waits in a queue are spread as widely as they are long.
        return Estimate(state.queue_wait_ms, state.queue_wait_ms)
    cold_start_ms = state.cold_start_s * 1000
    return Estimate(cold_start_ms, COLD_START_SPREAD * cold_start_ms)


def _about(value: float) -> Estimate:
    return Estimate(value, PRIOR_SPREAD * value)


def _any_up_to(most: int) -> Estimate:
    """Uniform between 0 and the most."""
    return Estimate(most / 2, most / sqrt(12))


def _drawn(prior: Estimate, tier: Recent | None, category: Recent | None) -> Estimate:
    """The prior, overruled by the tier's runs, overruled by those of the category, each by how many there are."""
    return _mixed(_mixed(prior, PRIOR_RUNS, tier), TIER_RUNS, category)


def _mixed(broad: Estimate, weight: float, narrow: Recent | None) -> Estimate:
    """Mean and deviation of a mixture of both, where the broad one counts as `weight` runs."""
    if narrow is None or narrow.count <= 0:
        return broad
    share = narrow.count / (weight + narrow.count)
    apart = narrow.mean - broad.expected
    variance = (1 - share) * _square(broad.deviation) + share * _square(narrow.deviation)
    variance += share * (1 - share) * _square(apart)
    return Estimate(broad.expected + share * apart, sqrt(variance))


def _at_most(most: int, tokens: Estimate) -> Estimate:
    """Neither the expected value nor the upper one over the most."""
    expected = min(tokens.expected, float(most))
    return Estimate(expected, min(tokens.deviation, (most - expected) / UPPER_Z))


def _plus(one: Estimate, other: Estimate) -> Estimate:
    return Estimate(one.expected + other.expected, sqrt(_square(one.deviation) + _square(other.deviation)))


def _times(one: Estimate, other: Estimate) -> Estimate:
    """The product of two independent values."""
    variance = (
        _square(one.deviation * other.expected)
        + _square(other.deviation * one.expected)
        + _square(one.deviation * other.deviation)
    )
    return Estimate(one.expected * other.expected, sqrt(variance))


def _scaled(one: Estimate, factor: float) -> Estimate:
    return Estimate(one.expected * factor, one.deviation * factor)


def _square(value: float) -> float:
    return value * value  # unlike `**`, infinite where it is too large
