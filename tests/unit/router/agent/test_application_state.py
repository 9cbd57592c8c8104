"""The state that is read from `/api/tiers` equals the state that it was made from."""

from __future__ import annotations

from typing import Any

import pytest

from router.agent.application_state import ApplicationStateError, read_tiers
from router.observation import Observation, TierState
from router.runs.summary import Recent, RunSummary
from serve_app.api.views import tiers_view
from tests.support.app_config import app_config

CONFIG = app_config()
RUNS = RunSummary(
    runs=12.5,
    ttft_ms=Recent(100, 20, 12.5),
    tokens_per_s=Recent(40, 5, 12.5),
    draft_tokens=10,
    accepted_tokens=4,
    finish_reasons={"stop": 1.0},
)
OBSERVATION = Observation(
    {
        "eco": TierState(
            running=2, active_entry="small-alone", entry_failures=(("small-ngram", "no memory"),), queue_wait_ms=7
        ),
        "balanced": TierState(starting=1, pending=2, reason="loading step medium-ngram", cold_start_s=33),
        "performance": TierState(failed=True, reason="no place"),
        "ultra": TierState(recent=RUNS, recent_by_category={"code": RUNS}),
    }
)


def test_registry_and_state_are_the_same_after_the_way_through_the_api() -> None:
    read = read_tiers(tiers_view(CONFIG, OBSERVATION))
    assert read.observation == OBSERVATION
    for name, tier in CONFIG.tiers.items():
        known = read.profile.tiers[name]
        assert (known.power, known.gpu, known.gpus, known.replicas) == (tier.power, tier.gpu, tier.gpus, tier.replicas)
        assert [(step.name, step.target, step.max_model_len, step.speculation) for step in known.chain] == [
            (step.name, step.target, step.max_model_len, step.speculation) for step in tier.chain
        ]


def test_a_tier_on_cpu_is_read_as_a_tier_on_cpu() -> None:
    config = app_config(tiers={"eco": {"gpu": None, "gpus": 0}})
    assert read_tiers(tiers_view(config, Observation())).profile.tiers["eco"].gpu is None


def test_fields_of_a_newer_application_are_ignored() -> None:
    body = tiers_view(CONFIG, OBSERVATION)
    body["more"] = 1
    body["tiers"][0]["more"] = {"x": 1}
    assert read_tiers(body).observation == OBSERVATION


@pytest.mark.parametrize("body", [None, [], {}, {"tiers": []}, {"tiers": [{"name": "eco"}]}, {"error": "no"}])
def test_another_body_is_an_error(body: Any) -> None:
    with pytest.raises(ApplicationStateError, match="/api/tiers"):
        read_tiers(body)
