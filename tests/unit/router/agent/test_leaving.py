"""What of requests leaves the cluster, in words and as data."""

from __future__ import annotations

import json
from typing import Any

import pytest

from router.agent.leaving import Leaving, leaving, leaving_words
from router.agent.prompt import request_text
from router.agent.settings import AgentSettings
from router.agent.tools import CLASSIFY_PROMPT, ToolContext
from tests.support.agent_cases import case_of

ENV = {"ANTHROPIC_API_KEY": "k"}


@pytest.mark.parametrize(
    ("settings", "env", "host"),
    [
        (AgentSettings(), {}, "api.anthropic.com"),
        (AgentSettings(), {"ANTHROPIC_BASE_URL": "https://user:secret@gateway.example:8443/x"}, "gateway.example"),
        (AgentSettings(base_url="http://10.0.0.9:1"), {"ANTHROPIC_BASE_URL": "https://other.example"}, "10.0.0.9"),
    ],
)
def test_it_goes_where_the_agents_client_sends_it_and_no_secret_is_told(
    settings: AgentSettings, env: dict[str, str], host: str
) -> None:
    assert Leaving.of(settings, "single_shot", env).to == host


def test_the_words_say_to_whom_what_how_much_of_which_requests_and_how_to_refuse() -> None:
    found = leaving(AgentSettings(prompt_chars=1234), ENV, mock=False)
    assert found is not None
    assert leaving_words(found.view()) == (
        "to api.anthropic.com go, with requests (those of /api/inference): up to 1,234 characters of the last user "
        "message, its length, how many messages there are beside it, the dials and limits that the request sets, the "
        "router's plan (the prompt's category, difficulty and the rules behind them; the tier, its state and its "
        "settings), and the profile's tiers (GPUs, models, prices, watts). Refused by "
        "`reasoning: false` in a request, or a key that was made with `--no-external-reasoning`"
    )


def test_an_agent_that_sees_no_prompt_still_sends_the_plan() -> None:
    found = leaving(AgentSettings(prompt_chars=0, mode="multi_turn"), ENV, mock=False)
    assert found is not None
    assert found.what.startswith("the length of the last user message, how many messages")
    assert found.requests == "those of /api/inference in auto mode"


def test_an_agent_that_plans_looks_up_the_live_tiers_and_past_runs_and_that_is_said() -> None:
    explains, plans = (Leaving.of(AgentSettings(), mode, ENV).what for mode in ("single_shot", "multi_turn"))
    looked_up = "; and what Claude looks up: replicas and queues of the tiers, and recent runs of all keys together"
    assert plans == explains + looked_up
    assert Leaving.of(AgentSettings(), "agent_sdk", ENV).what == plans


FOLLOW_UP = [
    {"role": "user", "content": "I want to kill myself with fentanyl."},
    {"role": "assistant", "content": "x"},
    {"role": "user", "content": "And what now?"},
]


@pytest.mark.parametrize(
    ("body", "rule", "quoted"),
    [
        ({"prompt": "I want to kill myself with fentanyl."}, "self-harm", "kill myself"),
        ({"messages": FOLLOW_UP}, "self-harm, earlier in the conversation", "kill myself"),
        ({"prompt": "Prove the theorem of Pythagoras."}, "uses terms of mathematics", "prove"),
    ],
)
def test_the_rules_that_fit_are_sent_without_the_words_of_the_prompt(
    body: dict[str, Any], rule: str, quoted: str
) -> None:
    case = case_of(body)
    assert any(quoted in reason for reason in case.plan.classification.reasons)  # as the prompt's author sees them
    sent = json.loads(request_text(case, 0).removeprefix("<request>\n").removesuffix("\n</request>"))
    assert sent["plan"]["classify_prompt"]["reasons"][0] == rule
    assert quoted not in json.dumps(sent)
    assert "fentanyl" not in json.dumps(sent)


def test_nor_does_the_tool_give_them_for_the_current_request() -> None:
    case = case_of({"messages": FOLLOW_UP})
    context = ToolContext(case.profile, case.observation, case.request)
    answer = CLASSIFY_PROMPT.call({}, context)
    assert answer.reasons[0] == "self-harm, earlier in the conversation"
    assert not any("kill" in reason for reason in answer.reasons)


@pytest.mark.parametrize("chars", [0, 50, 4000])
def test_no_more_of_the_prompt_is_sent_than_is_said(chars: int) -> None:
    letters = request_text(case_of({"prompt": "\N{HORSE}" * 9000}), chars).count("\N{HORSE}")
    assert letters == chars
