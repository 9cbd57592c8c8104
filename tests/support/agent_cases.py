"""Requests with their deterministic plans, and agents that speak to a scripted Messages API."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anthropic

from router.agent.bounds import Case
from router.agent.messages import MessagesAgent
from router.agent.metering import Meter
from router.agent.settings import AgentSettings
from router.dials import power_for_difficulty, tier_for_power
from router.observation import Observation, TierState
from router.plan import plan
from router.registry import TIER_NAMES, Profile
from router.request import InferenceRequest
from tests.support.messages_api import MessagesApi
from tests.unit.router.profiles import small_profile

KEY = "sk-ant-test"
SAFETY_CRITICAL = "How much ibuprofen can I give my baby?"
PROMPTS = {
    "eco": "What is the capital of France?",
    "balanced": "Write a Python function that merges two sorted lists.",
    "performance": "Design a globally distributed rate limiter for 10M requests a second",
    # How to solve an error of a GPU passed through to a virtual machine, in Korean.
    "ultra": "Proxmox에서 GPU 패스스루를 설정할 때 발생하는 오류를 해결하는 방법은 무엇인가요?",
}
ALL_WARM = Observation({name: TierState(running=1) for name in TIER_NAMES})


def case_of(body: str | Mapping[str, Any], observation: Observation = ALL_WARM, profile: Profile | None = None) -> Case:
    """A request (its prompt, or its body) with the plan of the deterministic router."""
    request = InferenceRequest.model_validate({"prompt": body} if isinstance(body, str) else body)
    registry = profile or small_profile()
    return Case(request, plan(request, observation, registry), registry, observation)


def at_difficulty(difficulty: int, observation: Observation = ALL_WARM, **body: Any) -> Case:
    """A case that the classifier rated so, on the tier of the dials."""
    case = case_of({"prompt": "x"} | body, observation)
    power = power_for_difficulty(difficulty)
    tier = tier_for_power(case.profile, power)
    classification = dataclasses.replace(case.plan.classification, difficulty=difficulty, category="general_reasoning")
    made = dataclasses.replace(
        case.plan, classification=classification, power=power, tier=tier, entry=case.profile.entry(tier, None)
    )
    return dataclasses.replace(case, plan=made)


def settings(api: MessagesApi | None = None, **over: Any) -> AgentSettings:
    """Settings that point at the scripted API, with any field laid over them."""
    given: dict[str, Any] = {"base_url": api.url if api else None, "timeout_s": 5.0, "budget_usd": 1.0}
    return AgentSettings.model_validate(given | over)


def meter(agent: AgentSettings) -> Meter:
    return Meter(agent.prices, agent.budget_usd)


@asynccontextmanager
async def api_client(agent: AgentSettings) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """The client as the application makes it, but for TLS: loading its certificates takes longer than most tests."""
    async with anthropic.AsyncAnthropic(
        api_key=KEY,
        base_url=agent.base_url,
        max_retries=0,
        timeout=agent.timeout_s,
        http_client=anthropic.DefaultAsyncHttpxClient(verify=False),
    ) as client:
        yield client


@asynccontextmanager
async def messages_agent(agent: AgentSettings, profile: Profile | None = None) -> AsyncIterator[MessagesAgent]:
    """The agent as the application makes it."""
    async with api_client(agent) as client:
        yield MessagesAgent(client, profile or small_profile(), agent)
