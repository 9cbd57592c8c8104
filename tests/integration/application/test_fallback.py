"""Chain entries that do not start, as clients and operators see them."""

from __future__ import annotations

from tests.support.agent_cases import PROMPTS
from tests.support.api import Api

REASON = "the stub is configured not to start"


def test_a_tier_serves_its_next_entry_and_shows_why(broken: Api) -> None:
    broken.wait_for(lambda api: api.tier("eco")["active_entry"] is not None)
    tier = broken.tier("eco")
    answer = broken.infer(prompt="x stub:tokens=2", mode="manual", power=10)

    assert tier["active_entry"] == "target-only"
    assert {entry["name"]: entry["failure"] for entry in tier["chain"]} == {"ngram": REASON, "target-only": None}
    assert REASON in tier["reason"]
    assert answer.one("config")["fallback_step"] == "target-only"
    assert answer.one("config")["spec_decoding"]["enabled"] is False


def test_a_tier_without_a_working_entry_fails_at_once_with_the_reason_and_auto_takes_the_nearest_other(
    broken: Api,
) -> None:
    answer = broken.infer(prompt="x", mode="manual", power=40)

    assert answer.kinds[-1] == "error"
    error = answer.one("error")
    assert error["code"] == "tier_unavailable"
    assert REASON in error["message"]
    tier = broken.tier("balanced")
    assert tier["failed"] is True
    assert REASON in tier["reason"]

    auto = broken.infer(prompt=f"{PROMPTS['balanced']} stub:tokens=2")
    assert (auto.one("config")["tier"], auto.kinds[-1]) == ("performance", "done")
    [moved] = [step["result"] for step in auto.all("trace") if step["step"] == "availability"]
    assert (moved["wanted_tier"], moved["obstacle"]) == ("balanced", "failed")
    assert REASON in moved["reason"]

    response = broken.post(
        "/v1/chat/completions", {"model": "balanced", "messages": [{"role": "user", "content": "x"}]}
    )
    assert response.status_code == 503
    assert REASON in response.json()["error"]["message"]
