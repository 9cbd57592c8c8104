"""Ask an agent about the deterministic plan, and make the plan that is used, with the agent's steps in its trace."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Final, Protocol

from router.agent.bounds import Case, broken, predicted, refusal, time_left_s
from router.agent.metering import Meter
from router.agent.result import AgentChoice, AgentFallback, AgentResult, time_limit
from router.agent.settings import ActiveMode, AgentSettings
from router.decision import decide
from router.dials import power_for_difficulty, tier_for_power
from router.plan import Plan, engine_settings, escalation_for
from router.registry import TierName
from router.request import InferenceRequest
from router.selection import Candidate, Selection
from router.spec_params import SpecParams
from router.trace_steps import Clock, Stopwatch, TraceStep, built_config, checked_constraints, tier_pool

LEAST_TIME_S: Final = 0.1
"""With less time than this an agent is not asked."""


class Chooser(Protocol):
    """Makes a plan in place of the deterministic router: `MessagesAgent` or `SdkAgent`."""

    async def choose(self, case: Case, meter: Meter, steps: list[TraceStep]) -> AgentChoice:
        """Return a choice, not yet checked against the bounds; put the trace steps of its tools into `steps`.

        Raises:
            AgentFallback: there is none.
        """


async def advise(
    chooser: Chooser, case: Case, settings: AgentSettings, mode: ActiveMode, clock: Clock = time.perf_counter
) -> tuple[Plan, AgentResult]:
    """Return the plan after the agent was asked: its choice if that is within the bounds, else the deterministic plan.

    The agent gets no more time than the user's limits leave it.
    """
    if case.plan.mode == "manual":
        return not_advised(
            case, settings, mode, AgentFallback("manual_mode", "in manual mode the dials are the user's")
        )
    left_s = time_left_s(case)
    no_time = AgentFallback("no_time", f"the user's limits leave the agent {max(0.0, left_s):.2g} s")
    if left_s < LEAST_TIME_S:
        return not_advised(case, settings, mode, no_time)
    began, steps = clock(), list[TraceStep]()
    meter = Meter(settings.prices, settings.budget_usd)

    def result(ending: str | AgentFallback) -> AgentResult:
        tools = tuple(step.step for step in steps)
        return AgentResult.of(mode, settings.model, meter, (clock() - began) * 1000, ending, tools)

    try:
        # The agent has a time limit of its own, which counts as a failure of the API; this one does not.
        async with time_limit(left_s if left_s < settings.timeout_s else None, no_time):
            choice = await chooser.choose(case, meter, steps)
        if (problem := refusal(choice, case)) is not None:
            raise AgentFallback("out_of_bounds", problem)
    except AgentFallback as fallback:
        ended = result(fallback)
        return _with_steps(case.plan, steps, ended), ended
    ended = result(choice.reason)
    return replanned(choice, case, (*steps, ended.trace_step(choice.tier)), clock), ended


def not_advised(case: Case, settings: AgentSettings, mode: ActiveMode, why: AgentFallback) -> tuple[Plan, AgentResult]:
    """Return the deterministic plan, because the agent was not asked."""
    result = AgentResult.of(mode, settings.model, Meter(settings.prices, 0), 0.0, why)
    return _with_steps(case.plan, (), result), result


def replanned(
    choice: AgentChoice, case: Case, steps: tuple[TraceStep, ...] = (), clock: Clock = time.perf_counter
) -> Plan:
    """Return the plan with a choice that is within bounds. Power moves to the nearest value that picks the tier.

    The agent's `steps` and the steps of the new plan replace the last two steps of the deterministic trace.
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
    settings = engine_settings(request, category, speed, entry, state, _requested(choice, request))
    config = built_config(selection.power, speed, choice.tier, entry, settings)
    watch.lap("build_config", config.model_dump())
    decision = decide(
        request,
        before.classification,
        selection,
        before.serving,
        case.observation,
        case.profile,
        lambda name: predicted(case, name, speed),
        by="agent",
    )
    watch.lap("decision", decision)
    chosen = selection.chosen
    return dataclasses.replace(
        before,
        power=selection.power,
        speed=speed,
        tier=choice.tier,
        entry=entry,
        sampling=settings.sampling,
        spec=settings.spec,
        warm=pool.warm,
        cold_start_s=pool.cold_start_s,
        escalation=escalation_for(before.classification, request, selection, before.serving.able),
        trace=(*before.trace[:-2], *steps, *watch.steps),
        decision=decision,
        drafts=settings.drafts,
        no_drafts_reason=settings.no_drafts_reason,
        prediction=chosen.prediction if chosen else None,
        broken=selection.broken,
        notes=notes,
    )


def _selection(tier: TierName, speed: int, case: Case) -> Selection:
    """Return the agent's tier as a selection; `wanted` is the deterministic router's tier."""
    before = case.plan
    low, high = case.profile.tiers[tier].power
    candidate = Candidate(tier, predicted(case, tier, speed), broken(case, tier, speed))
    return Selection(
        deserved=tier_for_power(case.profile, power_for_difficulty(before.classification.difficulty)),
        wanted=before.tier,
        tier=tier,
        power=min(max(before.power, low), high),
        counted_difficulty=before.classification.difficulty,
        candidates=(candidate,) if before.prediction is not None else (),
    )


def _requested(choice: AgentChoice, request: InferenceRequest) -> SpecParams:
    """Return the user's parameters over the agent's; what neither set stays unset."""
    given = request.spec.model_dump(exclude_unset=True) if request.spec else {}
    own = {key: value for key, value in (("k", choice.k), ("tau", choice.tau)) if value is not None}
    return SpecParams.model_validate(own | {key: value for key, value in given.items() if value is not None})


def _with_steps(plan: Plan, steps: Sequence[TraceStep], result: AgentResult) -> Plan:
    """Return the deterministic plan with the agent's steps in its trace, before the last two: settings and decision."""
    *earlier, config, decision = plan.trace
    return dataclasses.replace(plan, trace=(*earlier, *steps, result.trace_step(plan.tier), config, decision))
