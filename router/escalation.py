"""Whether an answer that is under way should go on with a stronger tier, or with a weaker one. Pure, deterministic.

**Climb.** An answer is in doubt where its model is as unsure as in one of ten answers, and unsure where it is so as in
one of forty: the mean log-probability of its last tokens against the worst that past answers of the tier and category
had, at its beginning against their beginnings. With too few past answers, log-probabilities say nothing. A text that
repeats itself for long is in doubt too, for twice as long unsure. What was unsure and is in doubt for some tokens more
climbs; only a text that is not even in doubt any more counts as well again (hysteresis).

The nearest stronger tier is taken that serves another model, has room for the answer, is warm, lets nobody wait, and is
predicted to keep all limits. Where there is none, the nearest cold one is woken if it can be there in time and could
keep the limits; it is never waited for: the answer goes on, and climbs if the tier is warm while it is still unsure.

**Descend.** Where the answer as it goes is about to break a limit, and its text is easy, the nearest weaker tier takes
over that is predicted to keep all limits. Never with a safety-critical prompt.

An answer moves once at most.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, inf, nan
from typing import Final, Literal, NamedTuple

from router.observation import Observation
from router.plan import Plan, forecast
from router.prediction import UPPER_Z, Prediction
from router.registry import TIER_NAMES, Escalate, Profile, Tier, TierName
from router.request import InferenceRequest, Limit
from router.runs.summary import NO_RUNS, Recent
from router.selection import GivenLimits, given_limits
from router.signs import HOPELESS, WINDOW, Signs
from router.words import number
from sustainability.factors import place_of
from sustainability.units import SECONDS_PER_HOUR

ENOUGH_RUNS: Final = 20.0
"""Effective number of past answers from which on a tail of them is known. Like the numbers below our own choice."""
UNSURE_Z: Final = 1.96
"""Standard deviations under the mean: one in forty normally distributed values is lower. Doubt begins at one in ten."""
BEGINNING: Final = 3 * WINDOW
"""Tokens up to which an answer is compared with the beginnings of others."""
LOOP: Final = 64
"""Tokens of a repetition that puts an answer in doubt: more than lists, tables and choruses have. Twice as many are a
loop. Not learned: where many answers loop, loops would become usual."""
LASTS: Final = 16
"""Tokens for which an answer must stay in doubt after it was unsure."""
EVERY: Final = 8
"""Tokens between two judgements."""
HOTTEST: Final = 1.0
"""Sampling temperature above which log-probabilities say nothing: the unlikely tokens were asked for."""
LEAST_LEFT: Final = 32
"""Tokens that the rest of an answer must be expected to have: for fewer no other model reads the prompt."""
LONGEST_QUEUE_MS: Final = 1000.0
"""A tier whose requests wait longer than this takes over no answer."""
EASY: Final = -0.35
"""Mean log-probability from which on a text is easy: tokens of a probability of 0.7."""
WELL_GUESSED: Final = 0.5
"""Acceptance rate of drafts from which on a text is easy, where there are drafts."""

MoveKind = Literal["wake", "climb", "descend"]


class Progress(NamedTuple):
    """An answer so far."""

    tokens: int
    elapsed_ms: float
    """Since the request arrived."""
    ttft_ms: float
    busy_s: float
    """Its share of the engine's busy time, s."""
    signs: Signs

    @property
    def pace_ms(self) -> float:
        """Time of a token, ms."""
        return (self.elapsed_ms - self.ttft_ms) / self.tokens


class Move(NamedTuple):
    """What is to be done for an answer."""

    kind: MoveKind
    """`wake`: start the tier, as the answer may need it; the others: go on with it."""
    to_tier: TierName
    reason: str
    """In words."""


class Bounds(NamedTuple):
    """Mean log-probabilities of a window that are unusual for a tier and category."""

    doubt_first: float
    unsure_first: float
    doubt_worst: float
    unsure_worst: float


def bounds(plan: Plan, observation: Observation) -> Bounds:
    """Return the bounds for a plan's tier and category, or for the whole tier where the category has too few runs.

    Minus infinity: too few answers are known.
    """
    state = observation.tier(plan.tier)
    category = state.recent_by_category.get(plan.classification.category, NO_RUNS)
    known = category if _is_known(category.worst_logprob) else state.recent
    return Bounds(*_tail(known.first_logprob), *_tail(known.worst_logprob))


def _is_known(recent: Recent | None) -> bool:
    return recent is not None and recent.count >= ENOUGH_RUNS


def _tail(recent: Recent | None) -> tuple[float, float]:
    if recent is None or not _is_known(recent):
        return -inf, -inf
    return (
        max(HOPELESS, recent.mean - UPPER_Z * recent.deviation),
        max(HOPELESS, recent.mean - UNSURE_Z * recent.deviation),
    )


def comparable(signs: Signs, plan: Plan) -> Signs:
    """Return the signs of an answer as far as they can be compared with those of others."""
    if plan.sampling.temperature <= HOTTEST:
        return signs
    return signs._replace(logprob=nan, first=nan, worst=nan)


def escalate_of(request: InferenceRequest, tier: Tier) -> Escalate:
    """Return what happens where an answer goes wrong: as the request says, else as its tier does.

    A tier's `auto` only advises where the user said otherwise: by the dial in manual mode, or by a goal that saves.
    """
    if request.escalate is not None:
        return request.escalate
    users = request.mode == "manual" or request.goal in ("cheaper", "greener")
    return "advise" if users and tier.escalate == "auto" else tier.escalate


@dataclass(slots=True)
class EscalationPolicy:
    """Judges one answer as it goes.

    Args:
        request: from the client.
        plan: the router's.
        profile: the tiers.
        advises: whether a move is only advised, so that the other tier need not be warm.
        rewrites: whether a stronger tier begins the answer anew.
    """

    request: InferenceRequest
    plan: Plan
    profile: Profile
    advises: bool = False
    rewrites: bool = False
    refused: set[TierName] = field(default_factory=set, init=False)
    """Tiers that did not take the answer."""
    _next: int = field(default=WINDOW, init=False)
    """Tokens at which it judges again."""
    _unsure_since: int | None = field(default=None, init=False)
    """Tokens that there were; None: it is not."""
    _woke: bool = field(default=False, init=False)

    def judge(self, now: Progress, observation: Observation, *, at_once: bool = False) -> Move | None:
        """Return what is to be done for the answer now; None: nothing. A tier is woken once.

        Args:
            now: the answer so far.
            observation: the state of the tiers.
            at_once: also if it was judged a few tokens ago.
        """
        if now.tokens < self._next and not at_once:
            return None
        self._next = now.tokens + EVERY
        now = now._replace(signs=comparable(now.signs, self.plan))
        doubt = self._doubt(now, bounds(self.plan, observation))
        if doubt is None:
            self._unsure_since = None
            return self._descent(now, observation)
        if doubt.is_surely and self._unsure_since is None:
            self._unsure_since = now.tokens
        rest = self._rest(now, observation, loops=doubt.loops)
        if rest < LEAST_LEFT:
            return None
        able = [
            name for name in self._stronger(now, rest, observation) if self._keeps_limits(name, now, rest, observation)
        ]
        ready = [name for name in able if self._is_ready(name, observation)]
        if ready and self._unsure_since is not None and now.tokens - self._unsure_since >= LASTS:
            return Move("climb", ready[0], doubt.reason)
        if ready or self.advises or self._woke:
            return None
        for name in able:
            state = observation.tier(name)
            if not state.warm and state.cold_start_s * 1000 < rest * now.pace_ms:
                self._woke = True
                return Move("wake", name, doubt.reason)
        return None

    def _doubt(self, now: Progress, usual: Bounds) -> _Doubt | None:
        signs = now.signs
        if signs.loop >= LOOP:
            reason = f"it has repeated itself for {signs.loop} tokens"
            return _Doubt(reason, is_surely=signs.loop >= 2 * LOOP, loops=True)
        begins = now.tokens <= BEGINNING
        doubt, unsure = (usual.doubt_first, usual.unsure_first) if begins else (usual.doubt_worst, usual.unsure_worst)
        if not signs.logprob < doubt:
            return None
        reason = (
            f"its last {WINDOW} tokens had a probability of {exp(signs.logprob):.1%} (geometric mean); one in ten of "
            f"{self.plan.tier}'s answers {'begins' if begins else 'comes'} below {exp(doubt):.1%}"
        )
        return _Doubt(reason, is_surely=signs.logprob < unsure, loops=False)

    def _stronger(self, now: Progress, rest: float, observation: Observation) -> list[TierName]:
        """Return the stronger tiers that can go on, the nearest first: those with another model."""
        place, ours = TIER_NAMES.index(self.plan.tier), self.plan.entry
        others = [
            name for name in TIER_NAMES[place + 1 :] if self._has_room(name, now, rest, observation, self.rewrites)
        ]
        entries = {name: self.profile.entry(name, observation.tier(name).active_entry) for name in others}
        return [
            name
            for name, entry in entries.items()
            if (entry.target, entry.quantization) != (ours.target, ours.quantization)
        ]

    def _has_room(
        self, name: TierName, now: Progress, rest: float, observation: Observation, anew: bool = False
    ) -> bool:
        """Return whether a tier can take the answer: it can start, and holds prompt, text and rest."""
        state = observation.tier(name)
        if name in self.plan.serving.obstacles or name in self.refused or state.failed:
            return False
        most = self.plan.sampling.max_tokens
        answer = most if self.request.max_tokens is not None or anew else min(most, now.tokens + rest)
        entry = self.profile.entry(name, state.active_entry)
        return self.plan.serving.prompt.most + answer <= entry.max_model_len

    def _is_ready(self, name: TierName, observation: Observation) -> bool:
        state = observation.tier(name)
        return self.advises or (state.warm and state.queue_wait_ms <= LONGEST_QUEUE_MS)

    def _descent(self, now: Progress, observation: Observation) -> Move | None:
        limits = _of_the_whole(self.request)
        if not limits or self.plan.classification.category == "safety_critical" or not _is_easy(now.signs):
            return None
        rest = self._rest(now, observation, loops=False)
        if rest < LEAST_LEFT:
            return None
        as_it_goes = self._as_it_goes(now, rest)
        breaking = next((limit for limit, allowed in limits if as_it_goes[limit] > allowed), None)
        if breaking is None:
            return None
        for name in reversed(TIER_NAMES[: TIER_NAMES.index(self.plan.tier)]):
            is_able = self._has_room(name, now, rest, observation) and self._is_ready(name, observation)
            if is_able and self._keeps_limits(name, now, rest, observation, descends=True):
                allowed = number(dict(limits)[breaking])
                what = f"{breaking} (about {number(as_it_goes[breaking])}, allowed {allowed})"
                return Move("descend", name, f"it is about to break {what}, and its text is easy")
        return None

    def _rest(self, now: Progress, observation: Observation, *, loops: bool) -> float:
        """Return how many more tokens are expected; a loop ends with the last that is allowed."""
        left = self.plan.sampling.max_tokens - now.tokens
        if loops:
            return left
        expected = self._forecast(self.plan.tier, observation).completion_tokens.expected
        return min(left, max(LEAST_LEFT, expected - now.tokens))

    def _forecast(self, name: TierName, observation: Observation) -> Prediction:
        return forecast(self.request, name, self.plan.classification.category, observation, self.profile)

    def _spent(self, now: Progress) -> dict[Limit, float]:
        hours, tier = now.busy_s / SECONDS_PER_HOUR, self.profile.tiers[self.plan.tier]
        wh = hours * tier.active_watts
        co2_g = wh * place_of(self.profile.energy).server_co2_kg_per_kwh  # the same number in g/Wh
        return {
            "max_total_ms": now.elapsed_ms,
            "max_cost_usd": hours * tier.price_usd_per_hour,
            "max_energy_wh": wh,
            "max_co2_g": co2_g,
        }

    def _as_it_goes(self, now: Progress, rest: float) -> dict[Limit, float]:
        """Return what the whole answer will take if nothing changes."""
        spent = self._spent(now)
        whole: dict[Limit, float] = {limit: value * (1 + rest / now.tokens) for limit, value in spent.items()}
        return whole | {"max_total_ms": now.elapsed_ms + rest * now.pace_ms}

    def _keeps_limits(
        self, name: TierName, now: Progress, rest: float, observation: Observation, *, descends: bool = False
    ) -> bool:
        limits = _of_the_whole(self.request)
        if not limits:
            return True
        spent, predicted = self._spent(now), self._forecast(name, observation)
        first, pace, whole = predicted.ttft_ms, predicted.ms_per_token, predicted.completion_tokens
        to_come = whole.upper if self.rewrites and not descends else rest
        # Of what a whole answer costs there, the part that the rest of this one takes.
        part = (first.expected + to_come * pace.expected) / (first.expected + whole.expected * pace.expected)
        more: dict[Limit, float] = {
            "max_total_ms": first.upper + to_come * pace.upper,
            "max_cost_usd": predicted.cost_usd.upper * part,
            "max_energy_wh": predicted.energy_wh.upper * part,
            "max_co2_g": predicted.co2_g.upper * part,
        }
        return all(spent[limit] + more[limit] <= allowed for limit, allowed in limits)


class _Doubt(NamedTuple):
    reason: str
    is_surely: bool
    """Whether it is unsure, and not only in doubt."""
    loops: bool


def _of_the_whole(request: InferenceRequest) -> GivenLimits:
    """Return the limits that an answer under way can still break."""
    return tuple(limit for limit in given_limits(request.constraints) if limit[0] != "max_ttft_ms")


def _is_easy(signs: Signs) -> bool:
    return signs.logprob >= EASY and signs.loop == 0 and not signs.acceptance < WELL_GUESSED
