"""What of requests leaves the cluster, in words and as data."""

from __future__ import annotations

import pytest

from router.agent.leaving import Leaving, leaving, leaving_words
from router.agent.prompt import request_text
from router.agent.settings import AgentSettings
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
        "to api.anthropic.com go, of requests (those of /api/inference): up to 1,234 characters of the last user "
        "message, what the request sets, and the router's plan with the prompt's category and difficulty. Refused by "
        "`reasoning: false` in a request, or a key that was made with `--no-external-reasoning`"
    )


def test_an_agent_that_sees_no_prompt_still_sends_the_plan() -> None:
    found = leaving(AgentSettings(prompt_chars=0, mode="multi_turn"), ENV, mock=False)
    assert found is not None
    assert found.what.startswith("what the request sets")
    assert found.requests == "those of /api/inference in auto mode"


@pytest.mark.parametrize("chars", [0, 50, 4000])
def test_no_more_of_the_prompt_is_sent_than_is_said(chars: int) -> None:
    letters = request_text(case_of({"prompt": "\N{HORSE}" * 9000}), chars).count("\N{HORSE}")
    assert letters == chars
