"""From the deterministic plan and an agent's choice to the plan that is used, with the agent's part in its trace."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Final, Protocol

from router.agent.bounds import Case, broken, predicted, refusal, time_left_s
from router.agent.choice import AgentChoice, Chosen
from router.agent.deadline import within
from router.agent.metering import Meter
from router.agent.report import AgentReport, Fallback
from router.agent.settings import ActiveMode, AgentSettings
from router.dials import power_for_difficulty, tier_for_power
from router.plan import (
    Clock,
    Plan,
    Stopwatch,
    TraceStep,
    built_config,
    escalation_for,
    is_seeded_sample,
    sampling_of,
    tier_pool,
)
from router.registry import TierName
from router.request import InferenceRequest
from router.runs.past_drafts import drafts_are_waste
from router.runs.summary import NO_RUNS
from router.selection import Candidate, Selection
from router.selection_words import checked_constraints
from router.spec_params import SpecParams

LEAST_TIME_S: Final = 0.1
"""With less time than this an agent is not asked."""


class Chooser(Protocol):
    """Makes a plan in place of the deterministic router: `MessagesAgent` or `SdkAgent`."""

    async def choose(self, case: Case, meter: Meter) -> Chosen:
        """A choice, not yet checked against the bounds; or why there is none. Never raises for what the API does."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A plan that an agent had a say in."""

    plan: Plan
    report: AgentReport
    text: str | None
    """Why, in the agent's words; None: the deterministic plan stands, and its own words do."""


async def advise(
    chooser: Chooser, case: Case, settings: AgentSettings, mode: ActiveMode, clock: Clock = time.perf_counter
) -> Advice:
    """Ask the agent, check what it says, and use it or not. It gets no more time than the user's limits leave it."""
    if case.plan.mode == "manual":
        return unadvised(case, settings, mode, Fallback("manual_mode", "in manual mode the dials are the user's"))
    left_s = time_left_s(case)
    if left_s < LEAST_TIME_S:
        return unadvised(case, settings, mode, _no_time(left_s))
    began = clock()
    meter = Meter(settings.prices, settings.budget_usd)
    chosen = await _chosen(chooser, case, meter, left_s, settings.timeout_s)
    ending = checked(chosen.ending, case, settings.tier_steps)
    report = AgentReport.of(
        mode,
        settings.model,
        meter,
        (clock() - began) * 1000,
        tools=tuple(step.step for step in chosen.steps),
        fallback=ending if isinstance(ending, Fallback) else None,
    )
    if isinstance(ending, Fallback):
        return Advice(_with_steps(case.plan, chosen.steps, report), report, None)
    steps = (*chosen.steps, report.trace_step({"tier": ending.tier}))
    return Advice(replanned(ending, case, steps, clock), report, ending.reason)


async def _chosen(chooser: Chooser, case: Case, meter: Meter, left_s: float, timeout_s: float) -> Chosen:
    if left_s >= timeout_s:
        return await chooser.choose(case, meter)
    chosen = await within(left_s, chooser.choose(case, meter))
    return Chosen(_no_time(left_s)) if isinstance(chosen, Fallback) else chosen


def _no_time(left_s: float) -> Fallback:
    return Fallback("no_time", f"the user's limits leave the agent {max(0.0, left_s):.2g} s")


def unadvised(case: Case, settings: AgentSettings, mode: ActiveMode, why: Fallback) -> Advice:
    """The deterministic plan, because the agent was not asked."""
    report = AgentReport.of(mode, settings.model, Meter(settings.prices, 0), 0.0, fallback=why)
    return Advice(_with_steps(case.plan, (), report), report, None)


def checked(ending: AgentChoice | Fallback, case: Case, tier_steps: int) -> AgentChoice | Fallback:
    """The choice if it is within bounds."""
    if isinstance(ending, Fallback):
        return ending
    reason = refusal(ending, case, tier_steps)
    return ending if reason is None else Fallback("out_of_bounds", reason)


def replanned(
    choice: AgentChoice, case: Case, steps: tuple[TraceStep, ...] = (), clock: Clock = time.perf_counter
) -> Plan:
    """The plan with a choice that is within bounds. Power goes to the nearest value that picks the tier.

    In place of the last step of the deterministic trace come the agent's `steps` and what the choice made of the plan.
    """
    watch = Stopwatch(clock)
    before, request = case.plan, case.request
    tier = case.profile.tiers[choice.tier]
    state = case.observation.tier(choice.tier)
    speed = before.speed if choice.speed is None else choice.speed
    selection = _selection(choice.tier, speed, case)
    notes = before.notes
    if choice.tier != before.tier:
        notes = ()
        if limits := checked_constraints(request, selection):
            notes = (limits.reason,)
            watch.lap("constraints", limits.model_dump())
    pool = tier_pool(choice.tier, tier, case.observation)
    if choice.tier != before.tier:
        watch.lap("check_gpu_pool", pool.model_dump())
    entry = case.profile.entry(choice.tier, state.active_entry)
    category = before.classification.category
    sampling = sampling_of(request, category, speed, entry)
    past = state.recent_by_category.get(category, NO_RUNS)
    requested = _requested(choice, request)
    spec, no_drafts_reason = requested.resolve(
        entry.speculation,
        seeded=is_seeded_sample(request, sampling),
        wasteful=drafts_are_waste(entry.speculation, requested, past),
    )
    config = built_config(selection.power, speed, choice.tier, entry, sampling, spec)
    watch.lap("build_config", config.model_dump())
    chosen = selection.chosen
    return dataclasses.replace(
        before,
        power=selection.power,
        speed=speed,
        tier=choice.tier,
        entry=entry,
        sampling=sampling,
        spec=spec,
        warm=pool.warm,
        cold_start_s=pool.cold_start_s,
        escalation=escalation_for(before.classification, request, selection),
        trace=(*before.trace[:-1], *steps, *watch.steps),
        no_drafts_reason=no_drafts_reason,
        prediction=chosen.prediction if chosen else None,
        broken=selection.broken,
        notes=notes,
    )


def _selection(tier: TierName, speed: int, case: Case) -> Selection:
    """The agent's tier as a selection: wanted is what the deterministic router chose."""
    before = case.plan
    low, high = case.profile.tiers[tier].power
    asked = before.prediction is not None
    candidate = Candidate(tier, predicted(case, tier, speed), broken(case, tier, speed))
    return Selection(
        deserved=tier_for_power(case.profile, power_for_difficulty(before.classification.difficulty)),
        wanted=before.tier,
        tier=tier,
        power=min(max(before.power, low), high),
        counted_difficulty=before.classification.difficulty,
        candidates=(candidate,) if asked else (),
    )


def _requested(choice: AgentChoice, request: InferenceRequest) -> SpecParams:
    """Return the user's parameters over the agent's; what neither set stays unset."""
    given = request.spec.model_dump(exclude_unset=True) if request.spec else {}
    own = {key: value for key, value in (("k", choice.k), ("tau", choice.tau)) if value is not None}
    return SpecParams.model_validate(own | {key: value for key, value in given.items() if value is not None})


def _with_steps(plan: Plan, steps: tuple[TraceStep, ...], report: AgentReport) -> Plan:
    """The deterministic plan with the agent's steps in its trace, before the last, which says what was decided."""
    *earlier, last = plan.trace
    said = report.trace_step({"tier": plan.tier})
    return dataclasses.replace(plan, trace=(*earlier, *steps, said, last))
