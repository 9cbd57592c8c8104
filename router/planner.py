"""From the deterministic plan and an agent's choice to the plan that is used, with the agent's part in its trace."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Protocol

from router.agent_choice import AgentChoice, Chosen
from router.agent_report import AgentReport, Fallback
from router.agent_settings import ActiveMode, AgentSettings
from router.bounds import Case, refusal
from router.metering import Meter
from router.plan import Clock, Plan, TraceStep, built_config, sampling_of, spec_plan, tier_pool
from router.request import SpecWish


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
    """Ask the agent, check what it says, and use it or not."""
    if case.plan.mode == "manual":
        return unadvised(case, settings, mode, Fallback("manual_mode", "in manual mode the dials are the user's"))
    began = clock()
    meter = Meter(settings.prices, settings.budget_usd)
    chosen = await chooser.choose(case, meter)
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
    made = replanned(ending, case, clock)
    return Advice(_with_steps(made, chosen.steps, report), report, ending.reason)


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


def replanned(choice: AgentChoice, case: Case, clock: Clock = time.perf_counter) -> Plan:
    """The plan with a choice that is within bounds. Power goes to the nearest value that picks the tier."""
    began = clock()
    before, request = case.plan, case.request
    tier = case.profile.tiers[choice.tier]
    power = min(max(before.power, tier.power[0]), tier.power[1])
    speed = before.speed if choice.speed is None else choice.speed
    step = case.profile.step(choice.tier, case.observation.tier(choice.tier).active_step)
    sampling = sampling_of(request, speed, step)
    wish = request.spec or SpecWish()
    spec = spec_plan(
        step.speculation,
        SpecWish(
            enabled=wish.enabled,
            k=wish.k if choice.k is None else choice.k,
            tau=wish.tau if choice.tau is None else choice.tau,
        ),
    )
    pool = tier_pool(choice.tier, tier, case.observation)
    config = built_config(power, speed, choice.tier, step, sampling, spec)
    last = TraceStep("build_config", config.model_dump(), (clock() - began) * 1000)
    return dataclasses.replace(
        before,
        power=power,
        speed=speed,
        tier=choice.tier,
        step=step,
        sampling=sampling,
        spec=spec,
        warm=pool.warm,
        cold_start_s=pool.cold_start_s,
        trace=(*before.trace[:-1], last),
    )


def _with_steps(plan: Plan, steps: tuple[TraceStep, ...], report: AgentReport) -> Plan:
    """The plan with the agent's steps in its trace, before the last one, which says what was decided."""
    *earlier, last = plan.trace
    said = report.trace_step({"tier": plan.tier})
    return dataclasses.replace(plan, trace=(*earlier, *steps, said, last))
