"""`plan()`: decide the tier and settings of a request from the state of the cluster, and why. Pure, deterministic."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from router.decision import decide
from router.dials import DEFAULT_SPEED, EXACT_CATEGORIES, Sampling, sampling_for_speed
from router.difficulty.categories import Category
from router.difficulty.classify import Classification, classify_prompt
from router.needs import NOTHING_MORE, Needs, Service, service
from router.observation import Observation, TierState
from router.prediction import Prediction, predict
from router.registry import DEFAULT_AUTO, TIER_NAMES, AutoSettings, ChainEntry, Profile, SpeculationMethod, TierName
from router.request import Goal, InferenceRequest, Message, Mode
from router.runs.past_drafts import drafts_are_waste
from router.runs.summary import NO_RUNS
from router.selection import Selection, Violation, select
from router.spec_params import NOBODY_DRAFTS, SpecParams, WhoDrafts
from router.tokens import likely_tokens
from router.trace_steps import (
    Clock,
    EngineSettings,
    Escalation,
    Stopwatch,
    TraceStep,
    built_config,
    checked_constraints,
    classified,
    goal_shift,
    moved_tier,
    past_drafts,
    spec_method,
    tier_pool,
)
from sustainability.factors import place_of

ESCALATION_DIFFICULTY = 8
"""From this difficulty (1-10) on, a plan says when the prompt gets a lower tier than its difficulty deserves."""


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
    decision: Mapping[str, Any]
    """The fields of a `Decision` (JSON values; do not change it): what each tier would have taken."""
    serving: Service
    """Which tiers can serve the request."""
    drafts: WhoDrafts = NOBODY_DRAFTS
    no_drafts_reason: str | None = None
    """Why nothing is drafted; None: something is."""
    goal: Goal | None = None
    prediction: Prediction | None = None
    """What the answer will take; None: neither limits nor the goal needed it."""
    broken: tuple[Violation, ...] = ()
    """The user's limits that it will probably break, the worst first."""
    notes: tuple[str, ...] = ()
    """What the goal and the limits did to the choice, in words."""

    @property
    def spec_method(self) -> SpeculationMethod | None:
        """How drafts are made; None: there are none."""
        return spec_method(self.entry, self.spec)

    def explain(self) -> str:
        """Return why this tier, in a few sentences (the heuristic text of the `reasoning` event)."""
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
    request: InferenceRequest,
    observation: Observation,
    profile: Profile,
    clock: Clock = time.perf_counter,
    needs: Needs = NOTHING_MORE,
) -> Plan:
    """Return the plan for a request. The same request, observation and profile give the same plan, except durations.

    In auto mode, power follows the difficulty of the prompt, shifted by the request's goal and within its limits
    (`router/selection.py`). In manual mode, power is the user's, and limits are only checked. In both modes, speed is
    the user's or 50.

    Manual power, limits or a goal may give a hard (8 or more) or safety-critical prompt a lower tier than its
    difficulty deserves. The plan then has an escalation: advice in the trace and in `explain()`. It is not applied,
    because dial, limits and goal are the user's, who may know better and pays.

    Args:
        request: from the client. A client that names a tier is one in manual mode, with that tier's power.
        observation: the state of the tiers.
        profile: the tiers.
        clock: for the durations of the trace steps.
        needs: what the route's body holds beside the request.

    Raises:
        NoTierError: in auto mode, if no tier can ever serve the request.
    """
    watch = Stopwatch(clock)
    classification = classify_chat(request.chat(), profile.auto)
    watch.lap("classify_prompt", classified(classification).model_dump())

    speed = DEFAULT_SPEED if request.speed is None else request.speed

    def predicted(name: TierName) -> Prediction:
        return forecast(request, name, classification.category, observation, profile)

    serving = service(request, needs, observation, profile)
    selection = select(request, classification, profile, predicted, serving.able)
    tier, notes = selection.tier, list[str]()
    if moved := moved_tier(selection, serving.obstacles):
        notes.append(moved.reason)
        watch.lap("availability", moved.model_dump())
    if request.goal is not None:
        shift = goal_shift(request.goal, selection)
        notes.append(shift.reason)
        watch.lap("goal", shift.model_dump())
    if checked := checked_constraints(request, selection):
        notes.append(checked.reason)
        watch.lap("constraints", checked.model_dump())
    pool = tier_pool(tier, profile.tiers[tier], observation)
    watch.lap("check_gpu_pool", pool.model_dump())

    escalation = escalation_for(classification, request, selection, serving.able)
    if escalation is not None:
        watch.lap("escalate", escalation.model_dump())

    state = observation.tier(tier)
    entry = profile.entry(tier, state.active_entry)
    settings = engine_settings(request, classification.category, speed, entry, state)
    if settings.wasteful:
        watch.lap("past_drafts", past_drafts(state.recent_by_category[classification.category]).model_dump())
    config = built_config(selection.power, speed, tier, entry, settings)
    watch.lap("build_config", config.model_dump())
    decision = decide(request, classification, selection, serving, observation, profile, predicted)
    watch.lap("decision", decision)
    return Plan(
        mode=request.mode,
        power=selection.power,
        speed=speed,
        tier=tier,
        entry=entry,
        sampling=settings.sampling,
        spec=settings.spec,
        warm=pool.warm,
        cold_start_s=pool.cold_start_s,
        classification=classification,
        escalation=escalation,
        trace=tuple(watch.steps),
        decision=decision,
        serving=serving,
        drafts=settings.drafts,
        no_drafts_reason=settings.no_drafts_reason,
        goal=request.goal,
        prediction=selection.chosen.prediction if selection.chosen else None,
        broken=selection.broken,
        notes=tuple(notes),
    )


def forecast(
    request: InferenceRequest, name: TierName, category: Category, observation: Observation, profile: Profile
) -> Prediction:
    """Return the prediction for a request whose prompt has that category, on a tier."""
    tier = profile.tiers[name]
    state = observation.tiers.get(name) or TierState(cold_start_s=tier.cold_start_s)
    speed = DEFAULT_SPEED if request.speed is None else request.speed
    most = sampling_of(request, category, speed, profile.entry(name, state.active_entry)).max_tokens
    co2_g_per_wh = place_of(profile.energy).server_co2_kg_per_kwh  # the same number in g/Wh
    return predict(tier, state, category, most, profile.baseline, co2_g_per_wh)


def plan_on(tier: TierName, made: Plan, request: InferenceRequest, observation: Observation, profile: Profile) -> Plan:
    """Return a plan for a warm tier that goes on with an answer: sampling, trace and decision stay as they began."""
    state = observation.tier(tier)
    entry = profile.entry(tier, state.active_entry)
    settings = engine_settings(request, made.classification.category, made.speed, entry, state)
    return replace(
        made,
        tier=tier,
        entry=entry,
        spec=settings.spec,
        warm=True,
        cold_start_s=0.0,
        drafts=settings.drafts,
        no_drafts_reason=settings.no_drafts_reason,
    )


def classify_chat(chat: tuple[Message, ...], auto: AutoSettings = DEFAULT_AUTO) -> Classification:
    """Classify the last user message in its conversation, or the last message of all if the user wrote none."""
    texts = [message.content for message in chat if message.role == "user"] or [chat[-1].content]
    return classify_prompt(
        texts[-1],
        earlier="\n".join(texts[:-1]),
        conversation_tokens=sum(likely_tokens(message.content) for message in chat[:-1]),
        auto=auto,
    )


def escalation_for(
    classification: Classification,
    request: InferenceRequest,
    selection: Selection,
    able: Sequence[TierName] = TIER_NAMES,
) -> Escalation | None:
    """Return advice if a hard or safety-critical prompt gets a lower tier than it deserves; otherwise None."""
    safety_critical = classification.category == "safety_critical"
    if not (safety_critical or classification.difficulty >= ESCALATION_DIFFICULTY):
        return None
    if TIER_NAMES.index(selection.tier) >= TIER_NAMES.index(selection.deserved):
        return None
    what = "a safety-critical prompt" if safety_critical else f"difficulty {classification.difficulty}"
    if request.mode == "manual":
        why = "in manual mode your power setting is kept"
    elif not any(TIER_NAMES.index(name) >= TIER_NAMES.index(selection.deserved) for name in able):
        why = "no tier as strong can serve it now"
    elif selection.tier == selection.wanted:
        why = f"you want it {request.goal}"
    else:
        why = "your limits are kept" if not selection.broken else "your limits come first"
    reason = f"{what} deserves the {selection.deserved} tier, but {why}"
    return Escalation(from_tier=selection.tier, to_tier=selection.deserved, reason=reason, applied=False)


def engine_settings(
    request: InferenceRequest,
    category: Category,
    speed: int,
    entry: ChainEntry,
    state: TierState,
    requested: SpecParams | None = None,
) -> EngineSettings:
    """Return sampling and speculation for a request.

    Args:
        request: from the client.
        category: of its prompt.
        speed: the speed dial.
        entry: the chain entry that serves it.
        state: of its tier.
        requested: instead of the request's own speculation parameters.
    """
    requested = requested or request.spec or SpecParams()
    sampling = sampling_of(request, category, speed, entry)
    wasteful = drafts_are_waste(entry.speculation, requested, state.recent_by_category.get(category, NO_RUNS))
    seeded = request.seed is not None and sampling.temperature > 0
    spec, no_drafts_reason = requested.resolve(entry.speculation, seeded=seeded, wasteful=wasteful)
    drafts = requested.who_drafts(entry.speculation, spec, state.drafts, state.drafts_reason)
    return EngineSettings(sampling, spec, drafts, no_drafts_reason, wasteful)


def sampling_of(request: InferenceRequest, category: Category, speed: int, entry: ChainEntry) -> Sampling:
    """Return the speed dial's sampling with the user's own values over it.

    The dial's max_tokens is cut to half of the context, so that the prompt fits beside it; the user's own is kept. A
    request with `top_p` or `seed` is sampled even if its category is otherwise answered greedily.
    """
    samples = request.top_p is not None or request.seed is not None
    dial = sampling_for_speed(speed, greedy=category in EXACT_CATEGORIES and not samples)
    return Sampling(
        max_tokens=request.max_tokens or min(dial.max_tokens, entry.max_model_len // 2),  # max_tokens is at least 1
        temperature=dial.temperature if request.temperature is None else request.temperature,
        top_p=dial.top_p if request.top_p is None else request.top_p,
    )
