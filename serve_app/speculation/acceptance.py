"""How likely a request's next draft tokens are to be accepted.

A request is described by one number on top of its family's profile: an odds ratio, how much likelier its drafts are
accepted than its family's. Where a position differs from the one before it is a matter of how drafts are made, which
the family learns from all its requests; how well this text can be drafted right now is a matter of the request, and a
single number learns from every trial at any position. It is the Mantel-Haenszel idea: remembered successes over
failures, over those that the profile led to expect, both with the prior's trials added, which for trials at
position 0 is the Beta-Bernoulli posterior mean.

Text is steady or bursty (a copied passage is accepted whole, the prose after it not at all), and no single memory suits
both. So each request has a steady estimate (long memory, shrunk to the family) and a quick one (a few tokens, shrunk to
the steady one), and the family learns by least squares which mix predicts best (`Profile.quickness`).
"""

from __future__ import annotations

from math import exp, log
from typing import NamedTuple

from serve_app.speculation.family import CERTAIN, Profile, known_trials
from serve_app.speculation.settings import AcceptanceSettings

LEVEL = 0.15
"""Requests whose log-odds of acceptance differ by less are treated alike (0.04 at an acceptance of 0.5, which is less
than their estimates' errors), so that a batch of hundreds has a few dozen kinds of requests."""


_FORGOTTEN = 20.0
"""Memories after which nothing is left (exp(-20) of it), and nothing changes any more."""


class Evidence(NamedTuple):
    """What was seen of one request's drafts: remembered trials, and what the profile expected of them."""

    step: int
    """When it was last added to."""
    accepted: float
    rejected: float
    expected_accepted: float
    expected_rejected: float
    quick_accepted: float
    quick_rejected: float
    quick_expected_accepted: float
    quick_expected_rejected: float


class Belief(NamedTuple):
    """What the evidence says."""

    steady: float
    """Steady estimate of the acceptance at position 0 (0-1)."""
    quick: float
    """Quick estimate of the same."""
    level: int
    """The estimate that counts, a mix of the two: its log-odds in units of `LEVEL`."""


def no_evidence(step: int) -> Evidence:
    """Of a request that is new at this step."""
    return Evidence(step, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


class AcceptanceEstimator:
    """The formulas, with their settings at hand. Holds no state: evidence goes in and comes out."""

    __slots__ = ("_idle_memory", "_keep", "_keep_quick", "_prior", "_quick_idle_memory", "_quick_prior")

    def __init__(self, k_max: int, settings: AcceptanceSettings) -> None:
        self._prior = settings.request_prior_trials
        self._quick_prior = settings.quick_prior_trials
        self._keep = [exp(-trials / settings.request_memory_trials) for trials in range(k_max + 1)]
        self._keep_quick = [exp(-trials / settings.quick_memory_trials) for trials in range(k_max + 1)]
        self._idle_memory = settings.request_idle_memory_steps
        self._quick_idle_memory = settings.quick_idle_memory_steps

    def after(self, evidence: Evidence, profile: Profile, drafted: int, accepted: int, step: int) -> Evidence:
        """With the outcome of a step in which `drafted` tokens (at least 1) were verified.

        Args:
            evidence: so far.
            profile: of the request's family.
            drafted: verified draft tokens, at least 1.
            accepted: how many of them were accepted.
            step: now.
        """
        (last, ok, bad, ok_due, bad_due, quick_ok, quick_bad, quick_ok_due, quick_bad_due) = evidence
        trials = known_trials(drafted, accepted)
        failed = trials - accepted
        due = profile.expected[trials]
        keep = self._keep[trials]
        idle = step - last - 1
        quick = self._keep_quick[trials]
        if idle > 0:
            # The text moved on unseen.
            keep *= exp(-idle / self._idle_memory)
            quick *= exp(-idle / self._quick_idle_memory)
        return Evidence(
            step,
            ok * keep + accepted,
            bad * keep + failed,
            ok_due * keep + due,
            bad_due * keep + trials - due,
            quick_ok * quick + accepted,
            quick_bad * quick + failed,
            quick_ok_due * quick + due,
            quick_bad_due * quick + trials - due,
        )

    def belief(self, evidence: Evidence, profile: Profile, step: int) -> Belief:
        """The posterior as of this step."""
        (last, ok, bad, ok_due, bad_due, quick_ok, quick_bad, quick_ok_due, quick_bad_due) = evidence
        odds, _, first, quickness = profile
        # Forgotten evidence is the same as a heavier prior.
        idle = step - last - 1
        prior, quick_prior = self._prior, self._quick_prior
        if idle > 0:
            prior *= exp(min(_FORGOTTEN, idle / self._idle_memory))
            quick_prior *= exp(min(_FORGOTTEN, idle / self._quick_idle_memory))
        hits, misses = prior * first, prior * (1 - first)
        ratio = (ok + hits) * (bad_due + misses) / ((bad + misses) * (ok_due + hits))
        first_odds = odds[0]
        steady = first_odds * ratio
        steady /= 1 + steady

        hits, misses = quick_prior * first, quick_prior * (1 - first)
        ratio = (
            (quick_ok + quick_prior * steady)
            * (quick_bad_due + misses)
            / ((quick_bad + quick_prior * (1 - steady)) * (quick_ok_due + hits))
        )
        quick = first_odds * ratio
        quick /= 1 + quick

        mixed = min(CERTAIN, max(1 - CERTAIN, steady + quickness * (quick - steady)))
        return Belief(steady, quick, round(log(mixed / (1 - mixed)) / LEVEL))


def gains_at(level: int, profile: Profile) -> tuple[float, ...]:
    """Entry j: probability that draft tokens 0..j are all accepted, of a request at that level."""
    ratio = exp(level * LEVEL) / profile.odds[0]
    reached = 1.0
    gains = []
    for odds in profile.odds:
        likely = odds * ratio
        reached *= likely / (1 + likely)
        gains.append(reached)
    return tuple(gains)


def within_floor(gains: tuple[float, ...], floor: float) -> tuple[float, ...]:
    """The gains of as many draft tokens as are expected to keep accepted / drafted at the floor, but at least one.

    So an `auto` request with a floor drafts fewer tokens before it would be stopped for drafting too
    many. Floor 0: all.
    """
    total = 0.0
    for count, gain in enumerate(gains, 1):
        total += gain
        if total < floor * count:
            return gains[: max(1, count - 1)]
    return gains
