"""Chain entries that fail for real reasons: missing weights, arguments and a quantization that vLLM does not know, too
little memory. What a tier without any working entry does is an integration test, and what becomes of an engine that
starts and cannot answer a unit test.
"""

from __future__ import annotations

import re

from tests.support.api import Answer, Api
from tests.support.e2e_app import LOST_MODEL, WORKING_ENTRY

REASONS = {
    "no-weights": rf"weights of {LOST_MODEL} are not in /.*: run `power-lever weights seed",
    "bad-argument": r"engine_args: .*no_such_argument",
    "bad-quantization": r"no-such-method",
    # vLLM's own words, from its child process: what one request may need, and what there is.
    "scarce-kv": r"ValueError: .*2048.*\d+\.\d+ GiB.*\d+\.\d+ GiB",
}


def test_a_tier_serves_its_first_entry_that_works(first: dict[int, Answer], api: Api) -> None:
    assert first[40].kinds[-1] == "done"
    assert "Paris" in first[40].text

    # The view that a plan is made from follows Serve's within a second or two, more on a busy machine.
    api.wait_for(lambda api: api.tier("balanced")["active_entry"] is not None)
    again = api.infer(prompt="What is the capital of France?", mode="manual", power=40, temperature=0, max_tokens=24)
    assert again.one("config")["fallback_step"] == WORKING_ENTRY
    assert again.one("config")["warm"] is True
    assert again.text == first[40].text


def test_the_pool_reports_the_real_reason_of_every_entry_that_failed(first: dict[int, Answer], api: Api) -> None:
    tier = api.tier("balanced")

    assert tier["active_entry"] == WORKING_ENTRY
    assert tier["failed"] is False
    failures = {entry["name"]: entry["failure"] for entry in tier["chain"]}
    assert list(failures) == [*REASONS, WORKING_ENTRY, "target-only"]
    for name, reason in REASONS.items():
        assert re.search(reason, failures[name] or ""), (name, failures[name])
        assert re.search(reason, tier["reason"]), name
    assert failures[WORKING_ENTRY] is failures["target-only"] is None
