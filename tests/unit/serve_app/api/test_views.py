"""`/api/tiers` has the contract's keys, from the registry and the observation."""

from __future__ import annotations

import pytest

from router.observation import Learned, Observation, TierState, Watts
from router.runs.summary import Recent, RunSummary
from serve_app.api.views import tiers_view
from tests.support.app_config import app_config

# The keys of the HTTP API.
CONTRACT = {
    "name",
    "power",
    "gpu",
    "gpus",
    "price_usd_per_hour",
    "active_watts",
    "idle_watts",
    "limit_watts",
    "measured",
    "replicas",
    "reason",
    "active_entry",
    "chain",
    "queue_wait_ms",
    "cold_start_s",
}
STATE = TierState(
    running=1,
    starting=2,
    pending=3,
    reason="step small-ngram failed: no memory",
    active_entry="small-alone",
    entry_failures=(("small-ngram", "no memory"),),
    engine_running=4,
    engine_waiting=5,
    queue_wait_ms=6.5,
    cold_start_s=33,
    watts=Watts(91.5),
)


def test_every_tier_has_the_contracts_keys_before_anything_is_observed() -> None:
    view = tiers_view(app_config(), Observation())
    assert view["profile"] == "small"
    assert [tier["name"] for tier in view["tiers"]] == ["eco", "balanced", "performance", "ultra"]
    for tier in view["tiers"]:
        assert set(tier) >= CONTRACT
        assert set(tier["replicas"]) == {"running", "starting", "pending", "min", "max"}


def test_a_tier_shows_its_registry_entry_and_its_state() -> None:
    eco = tiers_view(app_config(), Observation({"eco": STATE}))["tiers"][0]
    assert eco == {
        "name": "eco",
        "state": "busy",
        "power": [0, 25],
        "gpu": "L4",
        "gpus": 1,
        "price_usd_per_hour": 1.0,
        "active_watts": 100,
        "idle_watts": 20,
        "limit_watts": None,
        "measured": {"active": 91.5, "idle": None, "reason": None},
        "replicas": {"running": 1, "starting": 2, "pending": 3, "min": 0, "max": 2},
        "failed": False,
        "reason": "step small-ngram failed: no memory",
        "active_entry": "small-alone",
        "chain": [
            {
                "name": "small-ngram",
                "target": "small",
                "max_model_len": 4096,
                "method": "ngram_gpu",
                "speculation": {
                    "method": "ngram_gpu",
                    "draft": None,
                    "k_max": 10,
                    "k": "auto",
                    "tau": 0.3,
                    "drafts": None,
                    "floor": None,
                },
                "failure": "no memory",
            },
            {
                "name": "small-alone",
                "target": "small",
                "max_model_len": 4096,
                "method": None,
                "speculation": None,
                "failure": None,
            },
        ],
        "drafts": None,
        "requests": {"running": 4, "waiting": 5},
        "queue_wait_ms": 6.5,
        "cold_start_s": 33,
        "expected_ttft_ms": None,
        "expected_tokens_per_s": None,
        "recent": {
            "runs": 0.0,
            "ttft_ms": None,
            "engine_ttft_ms": None,
            "total_ms": None,
            "tokens_per_sec": None,
            "completion_tokens": None,
            "acceptance_rate": None,
            "draft_tokens": 0.0,
            "energy_wh": None,
            "energy_measured": None,
            "cost_usd": None,
            "finish_reasons": {},
            "first_logprob": None,
            "worst_logprob": None,
            "categories": {},
        },
    }


def test_recent_runs_of_a_tier_are_shown_for_all_prompts_and_by_category() -> None:
    runs = RunSummary(
        runs=2.0,
        ttft_ms=Recent(100.0, 10.0, 2.0),
        draft_tokens=40.0,
        accepted_tokens=10.0,
        finish_reasons={"stop": 0.5, "length": 0.5},
    )
    state = TierState(running=1, recent=runs, recent_by_category={"math": runs})
    recent = tiers_view(app_config(), Observation({"eco": state}))["tiers"][0]["recent"]
    assert (recent["runs"], recent["ttft_ms"], recent["total_ms"]) == (2.0, {"mean": 100.0, "deviation": 10.0}, None)
    assert (recent["acceptance_rate"], recent["finish_reasons"]) == (0.25, {"stop": 0.5, "length": 0.5})
    assert recent["categories"]["math"]["ttft_ms"] == {"mean": 100.0, "deviation": 10.0}


def test_a_tier_without_a_gpu_says_cpu() -> None:
    config = app_config(tiers={"eco": {"gpu": None, "gpus": 0}})
    assert tiers_view(config, Observation())["tiers"][0]["gpu"] == "cpu"


def test_a_tier_with_a_floor_shows_which_drafts_are_in_use_and_why() -> None:
    speculation = {"method": "draft_model", "draft": "small", "k_max": 3, "floor": 0.2}
    step = {"name": "drafting", "target": "small", "max_model_len": 64, "speculation": speculation}
    config = app_config(tiers={"eco": {"chain": [step]}})
    cold = tiers_view(config, Observation())["tiers"][0]
    nothing: dict[str, object] = {"learned_tau": {}, "advice": None, "advice_reason": None}
    assert cold["drafts"] == {"in_use": None, "reason": None, "choice": True, "floor": 0.2, **nothing}
    gone = TierState(running=1, active_entry="drafting", drafts="ngram", drafts_reason="poor")
    over = tiers_view(config, Observation({"eco": gone}))["tiers"][0]
    assert over["drafts"] == {"in_use": "ngram", "reason": "poor", "choice": True, "floor": 0.2, **nothing}


def test_a_running_tier_shows_the_learned_taus_and_the_advice() -> None:
    learned = Learned({"code": 0.33333}, "no_drafts", "no number of drafts pays")
    running = TierState(running=1, active_entry="small-ngram", drafts="ngram", learned=learned)
    drafts = tiers_view(app_config(), Observation({"eco": running, "ultra": TierState(running=1)}))["tiers"]
    assert drafts[0]["drafts"] == {
        "in_use": "ngram",
        "reason": None,
        "choice": False,
        "floor": None,
        "learned_tau": {"code": 0.333},
        "advice": "no_drafts",
        "advice_reason": "no number of drafts pays",
    }
    assert drafts[3]["drafts"] is None  # its entry makes none


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        (TierState(), "cold"),
        (TierState(pending=1), "provisioning"),
        (TierState(pending=1, starting=1), "loading"),
        (TierState(running=1, starting=1), "warm"),
        (TierState(running=2, engine_running=3), "warm"),
        (TierState(running=2, engine_waiting=1), "busy"),
        (TierState(starting=1, failed=True), "failed"),
    ],
)
def test_one_word_says_what_a_tier_is_doing(state: TierState, phase: str) -> None:
    assert tiers_view(app_config(), Observation({"eco": state}))["tiers"][0]["state"] == phase
