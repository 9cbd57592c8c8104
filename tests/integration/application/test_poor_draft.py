"""A tier whose draft is poor switches to n-gram drafts, shows why, and switches back on request.

The last file: it wakes a tier that others want cold.
"""

from __future__ import annotations

import json

import pytest

from router.registry import DraftsChoice
from serve_app.engine.stub import LEARNED_TAU
from tests.support.api import Api

LONG = {"prompt": "x stub:tokens=120", "mode": "manual", "power": 90, "max_tokens": 200}


def test_a_tier_switches_to_ngram_drafts_and_back_while_it_serves(broken: Api) -> None:
    before = broken.infer(**LONG)
    assert before.kinds[-1] == "done"
    broken.wait_for(lambda api: api.tier("ultra")["drafts"]["in_use"] == "ngram")
    drafts = broken.tier("ultra")["drafts"]
    assert drafts["floor"] == 0.99
    assert "lately, under 0.99" in drafts["reason"]
    assert broken.infer(**LONG).kinds[-1] == "done"

    answer = broken.post("/api/tiers/ultra/drafts", {"drafts": "own"})
    assert (answer.status_code, answer.json()) == (202, {"tier": "ultra", "drafts": "own"})
    broken.wait_for(lambda api: api.tier("ultra")["drafts"]["in_use"] == "own")
    assert broken.tier("ultra")["drafts"]["reason"] == "ordered by the operator"


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/api/tiers/turbo/drafts", {"drafts": "own"}, 404, "not_found"),
        ("/api/tiers/ultra/drafts", {"drafts": "eagle"}, 422, "invalid_request"),
        ("/api/tiers/ultra/drafts", {}, 422, "invalid_request"),
        ("/api/tiers/eco/drafts", {"drafts": "own"}, 409, "no_choice"),
    ],
)
def test_a_wrong_draft_order_is_refused_with_the_reason(
    broken: Api, path: str, body: dict[str, str], status: int, code: str
) -> None:
    response = broken.post(path, body)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


CHOICES: list[tuple[DraftsChoice, set[str]]] = [("own", {"own"}), ("ngram", {"ngram"}), ("auto", {"own", "ngram"})]


@pytest.mark.parametrize(("drafts", "used"), CHOICES)
def test_a_request_chooses_who_drafts_whatever_the_tier_does_now(
    broken: Api, drafts: DraftsChoice, used: set[str]
) -> None:
    answer = broken.infer(**LONG, spec={"k": 3, "tau": "auto", "drafts": drafts})
    planned, spec = answer.one("config")["spec_decoding"], answer.one("metrics")["spec"]
    assert (planned["tau"], planned["drafts"]) == ("auto", {"requested": drafts, "used": drafts, "reason": None})
    assert (spec["drafts"].keys(), spec["tau"]) == (used, LEARNED_TAU)
    assert sum(made["draft_tokens"] for made in spec["drafts"].values()) == spec["draft_tokens"]
    tau_of = {answer.all("trace")[0]["result"]["category"]: LEARNED_TAU}
    broken.wait_for(lambda api: tau_of.items() <= api.tier("ultra")["drafts"]["learned_tau"].items())


@pytest.mark.parametrize(("drafts", "used"), CHOICES)
def test_the_openai_routes_take_and_say_the_same(broken: Api, drafts: DraftsChoice, used: set[str]) -> None:
    spec = {"k": 3, "tau": "auto", "drafts": drafts}
    response = broken.post(
        "/v1/completions", {"model": "ultra", "prompt": LONG["prompt"], "max_tokens": 99, "spec": spec}
    )
    planned = json.loads(response.headers["x-power-lever-spec"])
    assert (planned["K"], planned["tau"], planned["drafts"]["used"]) == (3, "auto", drafts)
    done = response.json()["metrics"]["speculative_decoding"]
    assert (done["drafts"].keys(), done["tau"]) == (used, LEARNED_TAU)


@pytest.mark.parametrize(("path", "status"), [("/api/inference", 422), ("/v1/completions", 400)])
def test_a_wrong_choice_is_refused_with_the_allowed_ones(broken: Api, path: str, status: int) -> None:
    response = broken.post(path, {"prompt": "x", "spec": {"drafts": "eagle", "tau": 2}})
    assert response.status_code == status
    assert response.json()["error"]["message"] == (
        "spec.tau: must be a number 0-1 or 'auto', got 2; "
        "spec.drafts: Input should be 'own', 'ngram' or 'auto', got 'eagle'"
    )
