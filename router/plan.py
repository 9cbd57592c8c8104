"""`plan()`: a request and what is known of the cluster become a tier, its settings, and why. Pure and deterministic."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from router.classify import Classification, classify_prompt, estimate_tokens
from router.dials import (
    DEFAULT_POWER,
    DEFAULT_SPEED,
    Sampling,
    power_for_difficulty,
    sampling_for_speed,
    tier_for_power,
)
from router.observation import Observation
from router.request import InferenceRequest, Message, Mode, SpecWish
from router.tiers import TIER_NAMES, Profile, Speculation, SpeculationMethod, Step, TierName

Clock = Callable[[], float]
"""Seconds from any start."""
TraceValue = str | int | float | bool | None | tuple[str, ...]

ESCALATION_DIFFICULTY = 8
"""From this difficulty (1-10) on a lower tier than it deserves is worth a word."""


@dataclass(frozen=True, slots=True)
class SpecPlan:
    """Speculative decoding of one request."""

    enabled: bool
    method: SpeculationMethod | None
    """None when not enabled."""
    k: int
    """Draft tokens per step: the number itself when `fixed`, the most the controller may use when `auto`; 0: off."""
    k_mode: Literal["auto", "fixed"]
    tau: float
    """Acceptance rate (0-1) below which the request stops drafting."""


NO_SPECULATION = SpecPlan(enabled=False, method=None, k=0, k_mode="fixed", tau=0.0)


@dataclass(frozen=True, slots=True)
class Escalation:
    """Advice to use a higher tier than the one asked for."""

    from_tier: TierName
    to_tier: TierName
    reason: str
    applied: bool
    """Whether the plan follows the advice; see `plan` for why it does not in manual mode."""


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
    step: Step
    """The tier's active fallback step; the first of its chain while none runs."""
    sampling: Sampling
    spec: SpecPlan
    warm: bool
    cold_start_s: float
    """Estimated time from no replica to the first token, s; 0 when warm."""
    classification: Classification
    escalation: Escalation | None
    trace: tuple[TraceStep, ...]

    def explain(self) -> str:
        """Why this tier, in two plain sentences (the `reasoning` event's heuristic text)."""
        kind = self.classification.category.replace("_", " ")
        rated = f"a {kind} prompt of difficulty {self.classification.difficulty} of 10"
        why = "; ".join(self.classification.reasons[:3]) or "no special signals"
        if self.mode == "auto":
            choice = f"This looks like {rated} ({why}), so power {self.power} picks the {self.tier} tier."
        else:
            choice = f"You set power to {self.power}, which picks the {self.tier} tier for {rated} ({why})."
        readiness = "It is warm" if self.warm else f"It has to start first (about {self.cold_start_s:.0f} s)"
        if self.escalation is None:
            return f"{choice} {readiness}."
        return f"{choice} {readiness}; {self.escalation.reason}."


def plan(
    request: InferenceRequest, observation: Observation, profile: Profile, clock: Clock = time.perf_counter
) -> Plan:
    """The plan for a request: the same request, observation and profile always give the same one, durations aside.

    AUTO: power follows the difficulty of the prompt. MANUAL: power is the user's. In both, speed is the user's or 50.

    A hard (8 or more) or safety-critical prompt that a manual power sends to a lower tier than its difficulty deserves
    gets an escalation directive. It advises and is not applied: in manual mode the dial is the user's, who may know
    better and pays; what the tier is good for is said in the trace and in `explain()`. In auto the power follows the
    difficulty, so there is nothing to escalate.
    """
    watch = _Stopwatch(clock)
    classification = _classify(request.chat())
    watch.lap("classify_prompt", _classification_result(classification))

    deserved = power_for_difficulty(classification.difficulty)
    asked = DEFAULT_POWER if request.power is None else request.power
    power = deserved if request.mode == "auto" else asked
    speed = DEFAULT_SPEED if request.speed is None else request.speed
    tier = tier_for_power(profile, power)
    state = observation.tier(tier)
    warm, cold_start_s = state.warm, _cold_start_s(tier, observation, profile)
    watch.lap(
        "check_gpu_pool",
        {
            "tier": tier,
            "gpu": profile.tiers[tier].gpu,
            "running": state.running,
            "starting": state.starting,
            "pending": state.pending,
            "warm": warm,
            "cold_start_s": cold_start_s,
            "queue_wait_ms": state.queue_wait_ms,
            "reason": state.reason,
        },
    )

    escalation = _escalation(classification, tier, tier_for_power(profile, deserved))
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

    step = profile.step(tier, state.active_step)
    sampling = _sampling(request, speed, step)
    spec = spec_plan(step.speculation, request.spec or SpecWish())
    watch.lap(
        "build_config",
        {
            "power": power,
            "speed": speed,
            "tier": tier,
            "step": step.name,
            "target_model": step.target,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "spec_method": spec.method,
            "spec_k": spec.k,
            "spec_k_mode": spec.k_mode,
            "spec_tau": spec.tau,
        },
    )
    return Plan(
        mode=request.mode,
        power=power,
        speed=speed,
        tier=tier,
        step=step,
        sampling=sampling,
        spec=spec,
        warm=warm,
        cold_start_s=cold_start_s,
        classification=classification,
        escalation=escalation,
        trace=tuple(watch.steps),
    )


class _Stopwatch:
    """Collects trace steps, each with the time since the one before."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = clock()
        self.steps: list[TraceStep] = []

    def lap(self, step: str, result: Mapping[str, TraceValue]) -> None:
        now = self._clock()
        self.steps.append(TraceStep(step, result, (now - self._last) * 1000))
        self._last = now


def _classify(chat: tuple[Message, ...]) -> Classification:
    """Classifies the last user message in its conversation; the last message of all where the user said nothing."""
    said = [message.content for message in chat if message.role == "user"] or [chat[-1].content]
    return classify_prompt(
        said[-1],
        earlier="\n".join(said[:-1]),
        conversation_tokens=sum(estimate_tokens(message.content) for message in chat[:-1]),
    )


def _classification_result(classification: Classification) -> Mapping[str, TraceValue]:
    return {
        "category": classification.category,
        "difficulty": classification.difficulty,
        "score": round(classification.score, 2),
        "reasons": classification.reasons,
    }


def _cold_start_s(tier: TierName, observation: Observation, profile: Profile) -> float:
    """The estimate of the observation; of the profile where nothing was observed; 0 when warm."""
    state = observation.tiers.get(tier)
    if state is None:
        return profile.tiers[tier].cold_start_s
    return 0.0 if state.warm else state.cold_start_s


def _escalation(classification: Classification, tier: TierName, deserved: TierName) -> Escalation | None:
    grave = classification.category == "safety_critical"
    if not (grave or classification.difficulty >= ESCALATION_DIFFICULTY):
        return None
    if TIER_NAMES.index(tier) >= TIER_NAMES.index(deserved):
        return None
    what = "a safety-critical prompt" if grave else f"difficulty {classification.difficulty}"
    reason = f"{what} deserves the {deserved} tier, but in manual mode your power setting is kept"
    return Escalation(from_tier=tier, to_tier=deserved, reason=reason, applied=False)


def _sampling(request: InferenceRequest, speed: int, step: Step) -> Sampling:
    """The dial's sampling with the user's own values over it.

    Only the dial's max_tokens is cut, to half of the context, so that a prompt fits beside it; the user's own is kept.
    """
    dial = sampling_for_speed(speed)
    return Sampling(
        max_tokens=request.max_tokens or min(dial.max_tokens, step.max_model_len // 2),  # at least 1 where given
        temperature=dial.temperature if request.temperature is None else request.temperature,
        top_p=dial.top_p if request.top_p is None else request.top_p,
    )


def spec_plan(speculation: Speculation | None, wish: SpecWish) -> SpecPlan:
    """What a step of that speculation does for a request with that wish."""
    if speculation is None or not wish.enabled:
        return NO_SPECULATION
    k = speculation.k if wish.k is None else wish.k
    if k == 0:
        return NO_SPECULATION
    return SpecPlan(
        enabled=True,
        method=speculation.method,
        k=speculation.k_max if k == "auto" else min(k, speculation.k_max),
        k_mode="auto" if k == "auto" else "fixed",
        tau=speculation.tau if wish.tau is None else wish.tau,
    )
