"""Predict what an answer will take on a tier: time, cost and energy, each with its uncertainty.

    TTFT       = wait + first token on the engine
    wait       = cold start (a tier without a running replica) or queue wait (a warm one)
    total      = TTFT + (completion tokens - 1) * time per token
    time on the engine = total - wait
    energy     = watts charged to an answer * time on the engine
    CO2        = energy * the place's CO2 per energy
    cost       = USD per hour charged to an answer * time on the engine

The five measured quantities (first token, time per token, completion tokens, watts, USD per hour) come from past runs
of the tier and the prompt's category. These shrink towards the runs of the whole tier, and those towards the profile's
figures. So a tier without runs has the profile's figures, and after some runs its own. To shrink, the broader source
counts as so many runs, and the mixture of the two sources has a mean and a deviation.

Not predicted: the effect of the prompt's length (recent prompts stand for it), and changes of the load meanwhile.
"""

from __future__ import annotations

from math import hypot, inf, sqrt
from typing import NamedTuple

from router.difficulty.categories import Category
from router.observation import TierState
from router.registry import Baseline, Tier
from router.runs.summary import NO_RUNS, Recent

UPPER_Z = 1.28
"""An upper estimate is so many deviations over the expected value: nine in ten normally distributed values are under
it. Our own choice, like the numbers below."""
PRIOR_RUNS = 2.0
"""The profile's figures count as so many runs of the tier."""
TIER_RUNS = 4.0
"""The runs of the whole tier count as so many runs of the prompt's category."""
PRIOR_SPREAD = 0.5
"""Deviation of the profile's figures, as a share of them."""
COLD_START_SPREAD = 0.25
"""Deviation of a cold start, as a share of its estimate."""


class Estimate(NamedTuple):
    """An expected value and its uncertainty."""

    expected: float
    deviation: float

    @property
    def upper(self) -> float:
        """The value that nine in ten answers stay under."""
        return self.expected + UPPER_Z * self.deviation


NEVER = Estimate(inf, 0.0)


class Prediction(NamedTuple):
    """What an answer will take on one tier."""

    ttft_ms: Estimate
    total_ms: Estimate
    cost_usd: Estimate
    energy_wh: Estimate
    co2_g: Estimate
    completion_tokens: Estimate
    ms_per_token: Estimate
    """Between the first token and the last."""
    runs: float
    """Effective number of past runs of the tier on which it is based."""


def predict(
    tier: Tier, state: TierState, category: Category, max_tokens: int, baseline: Baseline, co2_g_per_wh: float
) -> Prediction:
    """Predict what an answer of at most `max_tokens` to a prompt of that category will take.

    Args:
        tier: its figures count until there are runs.
        state: what is known of it. On a tier that cannot start, the wait is infinite.
        category: of the prompt.
        max_tokens: most completion tokens, at least 1.
        baseline: its figures count if the tier has none of its own.
        co2_g_per_wh: grams of CO2 per Wh of the GPUs.
    """
    of_tier, of_category = state.recent, state.recent_by_category.get(category, NO_RUNS)
    first = _shrunk(
        _about(tier.expected_ttft_ms or baseline.ttft_s * 1000), of_tier.engine_ttft_ms, of_category.engine_ttft_ms
    )
    pace = _shrunk(
        _about(1000 / (tier.expected_tokens_per_s or baseline.tokens_per_s)),
        of_tier.ms_per_token,
        of_category.ms_per_token,
    )
    watts = _shrunk(Estimate(tier.active_watts, 0.0), of_tier.watts, of_category.watts)
    price = _shrunk(Estimate(tier.price_usd_per_hour, 0.0), of_tier.usd_per_hour, of_category.usd_per_hour)
    tokens = _at_most(
        max_tokens, _shrunk(_any_up_to(max_tokens), of_tier.completion_tokens, of_category.completion_tokens)
    )

    later = _times(Estimate(max(0.0, tokens.expected - 1), tokens.deviation), pace)
    busy_ms = _plus(first, later)
    busy_h = _scaled(busy_ms, 1 / 3_600_000)
    wait = _wait_ms(state)
    energy_wh = _times(watts, busy_h)
    return Prediction(
        ttft_ms=_plus(wait, first),
        total_ms=_plus(wait, busy_ms),
        cost_usd=_times(price, busy_h),
        energy_wh=energy_wh,
        co2_g=_scaled(energy_wh, co2_g_per_wh),
        completion_tokens=tokens,
        ms_per_token=pace,
        runs=of_tier.runs,
    )


def _wait_ms(state: TierState) -> Estimate:
    if state.failed:
        return NEVER
    if state.warm:
        # A wait in a queue deviates about as much as it is long.
        return Estimate(state.queue_wait_ms, state.queue_wait_ms)
    cold_start_ms = state.cold_start_s * 1000
    return Estimate(cold_start_ms, COLD_START_SPREAD * cold_start_ms)


def _about(value: float) -> Estimate:
    return Estimate(value, PRIOR_SPREAD * value)


def _any_up_to(most: int) -> Estimate:
    """Return the estimate of a uniform value between 0 and the most."""
    return Estimate(most / 2, most / sqrt(12))


def _shrunk(prior: Estimate, tier: Recent | None, category: Recent | None) -> Estimate:
    """Return the category's estimate, shrunk towards the tier's, which is shrunk towards the prior."""
    if tier is None and category is None:
        return prior
    return _mixed(_mixed(prior, PRIOR_RUNS, tier), TIER_RUNS, category)


def _mixed(broad: Estimate, weight: float, narrow: Recent | None) -> Estimate:
    """Return mean and deviation of a mixture of both; the broad one counts as `weight` runs."""
    if narrow is None or narrow.count <= 0:
        return broad
    share = narrow.count / (weight + narrow.count)
    apart = narrow.mean - broad.expected
    variance = (1 - share) * _square(broad.deviation) + share * _square(narrow.deviation)
    variance += share * (1 - share) * _square(apart)
    return Estimate(broad.expected + share * apart, sqrt(variance))


def _at_most(most: int, tokens: Estimate) -> Estimate:
    """Return the estimate with neither the expected nor the upper value above the most."""
    expected = min(tokens.expected, float(most))
    return Estimate(expected, min(tokens.deviation, (most - expected) / UPPER_Z))


def _plus(one: Estimate, other: Estimate) -> Estimate:
    return Estimate(one.expected + other.expected, hypot(one.deviation, other.deviation))


def _times(one: Estimate, other: Estimate) -> Estimate:
    """Return the product of two independent values."""
    (a, da), (b, db) = one, other
    return Estimate(a * b, hypot(da * b, db * a, da * db))


def _scaled(one: Estimate, factor: float) -> Estimate:
    return Estimate(one.expected * factor, one.deviation * factor)


def _square(value: float) -> float:
    return value * value  # unlike `**`, infinite if it is too large
