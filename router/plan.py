"""`plan()`: a request and what is known of the cluster become a tier, its settings, and why. Pure and deterministic."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from router.constraints import Violation
from router.dials import DEFAULT_SPEED, EXACT_CATEGORIES, Sampling, sampling_for_speed
from router.difficulty.categories import Category
from router.difficulty.classify import Classification, classify_prompt, estimate_tokens
from router.observation import Observation, TierState
from router.prediction import Prediction, predict
from router.registry import TIER_NAMES, ChainEntry, Profile, SpeculationMethod, Tier, TierName
from router.request import Goal, InferenceRequest, Message, Mode
from router.runs.past_drafts import drafts_are_waste
from router.runs.summary import NO_RUNS, RunSummary
from router.selection import Selection, select
from router.selection_words import checked_constraints, goal_shift
from router.spec_params import SpecParams
from router.steps import BuiltConfig, ClassifiedPrompt, PastDrafts, TierPool

Clock = Callable[[], float]
"""Seconds from any start."""
TraceValue = str | int | float | bool | None | tuple[str, ...]

ESCALATION_DIFFICULTY = 8
"""From this difficulty (1-10) on a lower tier than it deserves is worth a word."""


@dataclass(frozen=True, slots=True)
class Escalation:
    """Advice to use a higher tier than the one asked for."""

    from_tier: TierName
    to_tier: TierName
    reason: str
    applied: bool
    """Whether the plan follows the advice; see `plan` for why it does not."""


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step of planning, for the `trace` event."""

    step: str
    result: Mapping[str, TraceValue]
    """JSON-able; not to be changed."""
    duration_ms: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be done for a request, and why."""

    mode: Mode
    power: int
    speed: int
    tier: TierName
    entry: ChainEntry
    """The tier's active chain entry; the first of its chain while none runs."""
    sampling: Sampling
    spec: SpecParams
    """Resolved: every field is set."""
    warm: bool
    cold_start_s: float
    """Estimated time from no replica to the first token, s; 0 when warm."""
    classification: Classification
    escalation: Escalation | None
    trace: tuple[TraceStep, ...]
    no_drafts_reason: str | None = None
    """Why nothing is drafted; None where drafts are made."""
    goal: Goal | None = None
    prediction: Prediction | None = None
    """What the answer will take; None where neither limits nor the goal asked for it."""
    broken: tuple[Violation, ...] = ()
    """The user's limits that it will probably break, the worst first."""
    notes: tuple[str, ...] = ()
    """What the goal and the limits did to the choice, in words."""

    @property
    def spec_method(self) -> SpeculationMethod | None:
        """How drafts are made; None: there are none."""
        return _method(self.entry, self.spec)

    def explain(self) -> str:
        """Why this tier, in a few plain sentences (the `reasoning` event's heuristic text)."""
        kind = self.classification.category.replace("_", " ")
        rated = f"a {kind} prompt of difficulty {self.classification.difficulty} of 10"
        why = "; ".join(self.classification.reasons[:3]) or "no special signals"
        if self.mode == "manual":
            choice = f"You set power to {self.power}, which picks the {self.tier} tier for {rated} ({why})."
        elif self.notes:
            choice = f"This looks like {rated} ({why})."
        else:
            choice = f"This looks like {rated} ({why}), so power {self.power} picks the {self.tier} tier."
        choice = " ".join((choice, *(f"{note[0].upper()}{note[1:]}." for note in self.notes)))
        readiness = "It is warm" if self.warm else f"It has to start first (about {self.cold_start_s:.0f} s)"
        if self.escalation is None:
            return f"{choice} {readiness}."
        return f"{choice} {readiness}; {self.escalation.reason}."


def plan(
    request: InferenceRequest, observation: Observation, profile: Profile, clock: Clock = time.perf_counter
) -> Plan:
    """The plan for a request: the same request, observation and profile always give the same one, durations aside.

    AUTO: power follows the difficulty of the prompt, shifted by the request's goal and within its limits; see
    `router/selection.py`. MANUAL: power is the user's, and limits are only checked. In both, speed is the user's or 50.

    A hard (8 or more) or safety-critical prompt that ends on a lower tier than its difficulty deserves (by manual
    power, limits or a goal) gets an escalation directive. It advises and is not applied: dial, limits and goal are the
    user's, who may know better and pays; what the tier is good for is said in the trace and in `explain()`.
    """
    watch = Stopwatch(clock)
    classification = classify_chat(request.chat())
    watch.lap("classify_prompt", classified(classification).model_dump())

    speed = DEFAULT_SPEED if request.speed is None else request.speed

    def predicted(name: TierName) -> Prediction:
        return forecast(request, name, classification.category, observation, profile)

    selection = select(request, classification, profile, predicted)
    tier, notes = selection.tier, list[str]()
    if request.goal is not None:
        shift = goal_shift(request.goal, selection)
        notes.append(shift.reason)
        watch.lap("goal", shift.model_dump())
    if checked := checked_constraints(request, selection):
        notes.append(checked.reason)
        watch.lap("constraints", checked.model_dump())
    pool = tier_pool(tier, profile.tiers[tier], observation)
    watch.lap("check_gpu_pool", pool.model_dump())

    escalation = escalation_for(classification, request, selection)
    if escalation is not None:
        watch.lap(
            "escalate",
            {
                "from_tier": escalation.from_tier,
                "to_tier": escalation.to_tier,
                "reason": escalation.reason,
                "applied": escalation.applied,
            },
        )

    state = observation.tier(tier)
    entry, requested = profile.entry(tier, state.active_entry), request.spec or SpecParams()
    sampling = sampling_of(request, classification.category, speed, entry)
    past = state.recent_by_category.get(classification.category, NO_RUNS)
    wasteful = drafts_are_waste(entry.speculation, requested, past)
    spec, no_drafts_reason = requested.resolve(
        entry.speculation, seeded=is_seeded_sample(request, sampling), wasteful=wasteful
    )
    if wasteful:
        watch.lap("past_drafts", _past_drafts(past).model_dump())
    watch.lap("build_config", built_config(selection.power, speed, tier, entry, sampling, spec).model_dump())
    return Plan(
        mode=request.mode,
        power=selection.power,
        speed=speed,
        tier=tier,
        entry=entry,
        sampling=sampling,
        spec=spec,
        warm=pool.warm,
        cold_start_s=pool.cold_start_s,
        classification=classification,
        escalation=escalation,
        trace=tuple(watch.steps),
        no_drafts_reason=no_drafts_reason,
        goal=request.goal,
        prediction=selection.chosen.prediction if selection.chosen else None,
        broken=selection.broken,
        notes=tuple(notes),
    )


def forecast(
    request: InferenceRequest, name: TierName, category: Category, observation: Observation, profile: Profile
) -> Prediction:
    """What the answer to a request, a prompt of that category, will take on a tier."""
    tier = profile.tiers[name]
    state = observation.tiers.get(name) or TierState(cold_start_s=tier.cold_start_s)
    speed = DEFAULT_SPEED if request.speed is None else request.speed
    most = sampling_of(request, category, speed, profile.entry(name, state.active_entry)).max_tokens
    return predict(tier, state, category, most, profile.baseline)


class Stopwatch:
    """Collects trace steps, each with the time since the one before."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = clock()
        self.steps: list[TraceStep] = []

    def lap(self, step: str, result: Mapping[str, TraceValue]) -> None:
        """One more step, which has just ended."""
        now = self._clock()
        self.steps.append(TraceStep(step, result, (now - self._last) * 1000))
        self._last = now


def classify_chat(chat: tuple[Message, ...]) -> Classification:
    """Classifies the last user message in its conversation; the last message of all where the user said nothing."""
    said = [message.content for message in chat if message.role == "user"] or [chat[-1].content]
    return classify_prompt(
        said[-1],
        earlier="\n".join(said[:-1]),
        conversation_tokens=sum(estimate_tokens(message.content) for message in chat[:-1]),
    )


def classified(classification: Classification) -> ClassifiedPrompt:
    """A classification as the result of its step."""
    return ClassifiedPrompt(
        category=classification.category,
        difficulty=classification.difficulty,
        score=round(classification.score, 2),
        reasons=classification.reasons,
    )


def tier_pool(name: TierName, tier: Tier, observation: Observation) -> TierPool:
    """A tier as it is now. Its cold start is the observed one; the registry's where nothing was observed."""
    state, seen = observation.tier(name), name in observation.tiers
    return TierPool(
        tier=name,
        gpu=tier.gpu,
        running=state.running,
        starting=state.starting,
        pending=state.pending,
        warm=state.warm,
        cold_start_s=0.0 if state.warm else state.cold_start_s if seen else tier.cold_start_s,
        queue_wait_ms=state.queue_wait_ms,
        reason=state.reason,
    )


def built_config(
    power: int, speed: int, tier: TierName, entry: ChainEntry, sampling: Sampling, spec: SpecParams
) -> BuiltConfig:
    """What was decided, as the result of its step."""
    return BuiltConfig(
        power=power,
        speed=speed,
        tier=tier,
        entry=entry.name,
        target_model=entry.target,
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        spec_method=_method(entry, spec),
        spec_k=spec.most_drafts(entry.speculation),
        spec_k_mode=spec.k_mode,
        spec_tau=spec.tau or 0.0,
    )


def _method(entry: ChainEntry, spec: SpecParams) -> SpeculationMethod | None:
    return entry.speculation.method if entry.speculation and spec.enabled else None


def escalation_for(
    classification: Classification, request: InferenceRequest, selection: Selection
) -> Escalation | None:
    """Advice where a hard or safety-critical prompt gets less than it deserves; None elsewhere."""
    grave = classification.category == "safety_critical"
    if not (grave or classification.difficulty >= ESCALATION_DIFFICULTY):
        return None
    if TIER_NAMES.index(selection.tier) >= TIER_NAMES.index(selection.deserved):
        return None
    what = "a safety-critical prompt" if grave else f"difficulty {classification.difficulty}"
    if request.mode == "manual":
        why = "in manual mode your power setting is kept"
    elif selection.tier == selection.wanted:
        why = f"you want it {request.goal}"
    else:
        why = "your limits are kept" if not selection.broken else "your limits come first"
    reason = f"{what} deserves the {selection.deserved} tier, but {why}"
    return Escalation(from_tier=selection.tier, to_tier=selection.deserved, reason=reason, applied=False)


def _past_drafts(past: RunSummary) -> PastDrafts:
    rate = past.accepted_tokens / past.draft_tokens
    return PastDrafts(
        draft_tokens=past.draft_tokens,
        acceptance_rate=rate,
        reason=f"{rate:.1%} of the recent drafts for such prompts were accepted on this tier, so none are made",
    )


def sampling_of(request: InferenceRequest, category: Category, speed: int, entry: ChainEntry) -> Sampling:
    """The dial's sampling with the user's own values over it.

    Only the dial's max_tokens is cut, to half of the context, so that a prompt fits beside it; the user's own is kept.
    Who sets `top_p` or `seed` wants samples, also of a kind of prompt that is answered greedily otherwise.
    """
    samples = request.top_p is not None or request.seed is not None
    dial = sampling_for_speed(speed, greedy=category in EXACT_CATEGORIES and not samples)
    return Sampling(
        max_tokens=request.max_tokens or min(dial.max_tokens, entry.max_model_len // 2),  # at least 1 where given
        temperature=dial.temperature if request.temperature is None else request.temperature,
        top_p=dial.top_p if request.top_p is None else request.top_p,
    )


def is_seeded_sample(request: InferenceRequest, sampling: Sampling) -> bool:
    """Whether the answer is sampled with a seed of its own."""
    return request.seed is not None and sampling.temperature > 0
