"""A tier whose draft is poor switches to n-gram drafts, shows why, and switches back on request.

The last file: it wakes a tier that others want cold.
"""

from __future__ import annotations

import pytest

from tests.support.api import Api

LONG = {"prompt": "x stub:tokens=120", "mode": "manual", "power": 90, "max_tokens": 200}


def test_a_tier_switches_to_ngram_drafts_and_back_while_it_serves(broken: Api) -> None:
    before = broken.infer(**LONG)
    assert before.kinds[-1] == "done"
    broken.wait_for(lambda api: api.tier("ultra")["drafts"]["in_use"] == "ngram", timeout_s=10)
    drafts = broken.tier("ultra")["drafts"]
    assert drafts["floor"] == 0.99
    assert "lately, under 0.99" in drafts["reason"]
    assert broken.infer(**LONG).kinds[-1] == "done"

    answer = broken.post("/api/tiers/ultra/drafts", {"drafts": "own"})
    assert (answer.status_code, answer.json()) == (202, {"tier": "ultra", "drafts": "own"})
    broken.wait_for(lambda api: api.tier("ultra")["drafts"]["in_use"] == "own", timeout_s=10)
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
