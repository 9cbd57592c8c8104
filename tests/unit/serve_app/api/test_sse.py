"""SSE framing, and the data of `config` and `metrics`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from router.observation import Observation, TierState
from router.plan import Plan, plan
from router.request import InferenceRequest
from serve_app.api.spec_view import used_spec
from serve_app.api.sse import config_data, event, metrics_data, token_events
from serve_app.config import AppConfig
from serve_app.engine.interface import DraftCount, Finished, SpecStats, Token
from sustainability.measured import Energy
from tests.support.app_config import app_config
from tests.support.streams import sse_events

CONFIG = app_config()
WARM = Observation({"eco": TierState(running=1)})


def manual(power: int, observation: Observation = WARM) -> Plan:
    return plan(InferenceRequest(prompt="Hello", mode="manual", power=power, speed=50), observation, CONFIG)


def test_an_event_is_one_data_line_of_json_and_a_blank_line() -> None:
    assert event("done", {"request_id": "r1"}) == b'data: {"type":"done","data":{"request_id":"r1"}}\n\n'


def test_line_breaks_in_a_text_do_not_end_an_event() -> None:
    raw = event("token", {"text": "a\n\ndata: x\r\u2028"})
    assert raw.count(b"\n") == 2
    assert sse_events(raw) == [("token", {"text": "a\n\ndata: x\r\u2028"})]


def test_each_token_of_a_step_is_an_event_with_the_contracts_keys() -> None:
    raw = token_events([Token(" é", 7, -0.5, True, 4), Token("力", 8, None, False)])
    assert sse_events(raw) == [
        ("token", {"text": " é", "token_id": 7, "logprob": -0.5, "spec_accepted": True, "spec_k": 4}),
        ("token", {"text": "力", "token_id": 8, "logprob": None, "spec_accepted": False, "spec_k": 0}),
    ]


def test_no_tokens_make_no_bytes() -> None:
    assert token_events([]) == b""


def test_config_says_what_was_decided() -> None:
    assert config_data("r1", manual(10), CONFIG, stub=False, decision_id="d1") == {
        "request_id": "r1",
        "decision_id": "d1",
        "mode": "manual",
        "power": 10,
        "speed": 50,
        "tier": "eco",
        "gpu": "L4",
        "engine": "vllm",
        "target_model": "small",
        "draft_model": None,
        "fallback_step": "small-ngram",
        "spec_decoding": {
            "enabled": True,
            "method": "ngram_gpu",
            "K": 10,
            "k_mode": "auto",
            "tau": 0.3,
            "drafts": {"requested": None, "used": "ngram", "reason": None},
            "reason": None,
        },
        "sampling": {"max_tokens": 512, "temperature": 0.0, "top_p": 0.9},
        "warm": True,
        "cold_start_s": 0.0,
    }


def test_config_names_the_draft_the_cold_start_and_the_stub() -> None:
    data = config_data("r1", manual(60), CONFIG, stub=True)
    assert (data["tier"], data["target_model"], data["draft_model"]) == ("performance", "large", "head")
    assert (data["warm"], data["cold_start_s"], data["engine"]) == (False, 90, "stub")


def test_config_names_the_chain_entry_that_the_tier_fell_back_to() -> None:
    fallen = Observation({"eco": TierState(running=1, active_entry="small-alone")})
    data = config_data("r1", manual(10, fallen), CONFIG, stub=False)
    assert data["fallback_step"] == "small-alone"
    assert data["spec_decoding"]["enabled"] is False


def test_metrics_equal_values_computed_by_hand() -> None:
    spec = SpecStats(
        steps=10,
        draft_tokens=40,
        accepted_tokens=30,
        reasons={"auto": 12, "tau_stopped": 3, "probe": 1},
        stopped_by_tau=True,
        drafts={"own": DraftCount(30, 24), "ngram": DraftCount(10, 6)},
        tau=0.3,
        last_reason="probe",
    )
    finished = Finished("stop", 12, 46, queue_ms=100, spec=spec, busy_s=0.25, idle_s=0.5)
    data = metrics_data(
        manual(10),
        CONFIG,
        finished,
        arrived_s=5.0,
        admitted_s=5.5,
        first_token_s=5.8,
        ended_s=6.6,
    )
    # On the engine: 6.6 - 5.5 - 0.1 = 1 s, of which 0.25 s are its share, at 100 W and 1 USD/h; so four requests shared
    # it. Baseline: (0.1 s + 45 / 50 tokens/s) / 4 at 700 W and 10 USD/h. Water 1.8 L/kWh, CO2 0.39 kg/kWh. Full: 0.5 s
    # idle at 20 W too, and a host of 150 W for its GPU in all 0.75 s.
    wh, saved_wh = 25 / 3600, 150 / 3600
    full_wh = (25 + 0.5 * 20 + 0.75 * 150) / 3600
    assert data == {
        "ttft_ms": 800.0,
        "queue_ms": 600.0,
        "total_ms": 1600.0,
        "tokens_per_sec": 46.0,
        "prompt_tokens": 12,
        "completion_tokens": 46,
        "finish_reason": "stop",
        "spec": {
            "method": "ngram_gpu",
            "steps": 10,
            "draft_tokens": 40,
            "accepted_tokens": 30,
            "acceptance_rate": 0.75,
            "mean_acceptance_length": 4.0,
            "drafts": {
                "own": {"draft_tokens": 30, "accepted_tokens": 24, "acceptance_rate": 0.8},
                "ngram": {"draft_tokens": 10, "accepted_tokens": 6, "acceptance_rate": 0.6},
            },
            "tau": 0.3,
            "steps_by_reason": {"auto": 12, "tau_stopped": 3, "probe": 1},
            "stopped_by_tau": True,
            "why_stopped": "the acceptance of its drafts fell under tau",
        },
        "busy_s": 0.25,
        "legs": [],
        "mean_batch": 4.0,
        "energy": {
            "wh": pytest.approx(wh),
            "full_wh": pytest.approx(full_wh),
            "range": {"low": pytest.approx(0.71 * wh), "high": pytest.approx(1.23 * wh)},
            "source": "modelled",
            "reason": "no engine with a meter",
        },
        "water_l": pytest.approx(wh / 1000 * 1.8),
        "co2_g": pytest.approx(wh * 0.39),
        "cost_usd": pytest.approx(0.25 / 3600),
        "full": {
            "water_l": pytest.approx(full_wh / 1000 * 1.8),
            "co2_g": pytest.approx(full_wh * 0.39),
            "cost_usd": pytest.approx(0.75 / 3600),
        },
        "place": {
            "site": "simple",
            "grid": "simple",
            "pue": 1.0,
            "water_l_per_kwh": 1.8,
            "co2_kg_per_kwh": 0.39,
            "carbon": "location",
        },
        "savings": {
            "wh": pytest.approx(saved_wh),
            "water_l": pytest.approx(saved_wh / 1000 * 1.8),
            "co2_g": pytest.approx(saved_wh * 0.39),
            "cost_usd": pytest.approx(2.25 / 3600),
            "percent": pytest.approx(600 / 700 * 100),
            "counterfactual": {
                **CONFIG.baseline.model_dump(),
                "mean_batch": 4.0,
                "busy_s": 0.25,
                "completion_tokens": 46,
                "wh": pytest.approx(175 / 3600),
                "water_l": pytest.approx(175 / 3600 / 1000 * 1.8),
                "co2_g": pytest.approx(175 / 3600 * 0.39),
                "cost_usd": pytest.approx(2.5 / 3600),
            },
        },
    }


@pytest.mark.parametrize(
    ("last_reason", "by_tau", "why"),
    [
        ("", False, None),
        ("auto", True, None),
        ("asked", False, None),
        ("plain", False, None),
        ("auto_off", False, "drafts would have cost more time than they saved"),
        ("probe", False, "drafts would have cost more time than they saved"),
        ("probe", True, "the acceptance of its drafts fell under tau"),
        ("seeded", False, "a sampled answer with a seed must be the same each time, so nothing is drafted for it"),
    ],
)
def test_metrics_say_why_nothing_was_drafted_at_the_end(last_reason: str, by_tau: bool, why: str | None) -> None:
    assert used_spec(SpecStats(stopped_by_tau=by_tau, last_reason=last_reason))["why_stopped"] == why


def test_an_answer_without_tokens_or_drafts_has_finite_metrics() -> None:
    data = metrics_data(
        manual(90),
        CONFIG,
        Finished("stop", 3, 0, queue_ms=50, spec=SpecStats(), busy_s=0.0),
        arrived_s=1.0,
        admitted_s=1.0,
        first_token_s=None,
        ended_s=1.0,
    )
    assert (data["ttft_ms"], data["tokens_per_sec"], data["energy"]["wh"]) == (0, 0, 0)
    assert data["spec"] == {
        "method": None,
        "steps": 0,
        "draft_tokens": 0,
        "accepted_tokens": 0,
        "acceptance_rate": None,
        "mean_acceptance_length": None,
        "drafts": {},
        "tau": None,
        "steps_by_reason": {},
        "stopped_by_tau": False,
        "why_stopped": None,
    }
    assert orjson.loads(orjson.dumps(data)) == data


def test_a_loss_against_the_baseline_is_shown_as_a_negative_saving() -> None:
    data = metrics_data(
        manual(10),
        CONFIG,
        Finished("length", 3, 1, 0.0, SpecStats(), 14.0),
        arrived_s=0.0,
        admitted_s=0.0,
        first_token_s=14.0,
        ended_s=14.0,
    )
    # 14 s at 100 W against 0.1 s at 700 W: 1400 Ws for 70 Ws.
    assert data["savings"]["percent"] == pytest.approx(-1900)


def eco(**over: Any) -> AppConfig:
    """The config with another eco tier."""
    return CONFIG.model_copy(update={"tiers": CONFIG.tiers | {"eco": CONFIG.tiers["eco"].model_copy(update=over)}})


def metrics_of(finished: Finished, config: AppConfig = CONFIG) -> dict[str, Any]:
    return metrics_data(manual(10), config, finished, arrived_s=0.0, admitted_s=0.0, first_token_s=1.0, ended_s=2.0)


@pytest.mark.parametrize(
    ("limit_watts", "high_watts"), [(None, 123), (110, 110), (100, 100), (1000, 123), (60, 100)]
)  # 60: a limit that the tier's own watts contradict
def test_the_range_ends_at_the_power_limit_of_the_gpus(limit_watts: float | None, high_watts: float) -> None:
    data = metrics_of(Finished("stop", 3, 2, 0.0, SpecStats(), busy_s=3.6), eco(limit_watts=limit_watts))
    assert data["energy"]["range"] == pytest.approx({"low": 0.071, "high": high_watts / 1000})


def test_a_measured_answer_has_the_joules_of_its_counters() -> None:
    finished = Finished("stop", 3, 2, 0.0, SpecStats(), busy_s=0.5, idle_s=2.0, energy=Energy(36.0, 18.0))
    data = metrics_of(finished)
    full_wh = (36 + 18 + 2.5 * 150) / 3600
    assert data["energy"] == {
        "wh": pytest.approx(0.01),
        "full_wh": pytest.approx(full_wh),
        "range": {"low": pytest.approx(0.0095), "high": pytest.approx(0.0105)},
        "source": "measured",
        "reason": None,
    }
    assert data["water_l"] == pytest.approx(0.01 / 1000 * 1.8)
    assert data["co2_g"] == pytest.approx(0.01 * 0.39)
    assert data["full"]["co2_g"] == pytest.approx(full_wh * 0.39)
    assert data["cost_usd"] == pytest.approx(0.5 / 3600)  # the price is of time
    assert data["savings"]["counterfactual"]["wh"] - data["savings"]["wh"] == pytest.approx(0.01)


def test_without_measured_idle_watts_the_idle_part_has_the_tiers() -> None:
    finished = Finished("stop", 3, 2, 0.0, SpecStats(), busy_s=0.5, idle_s=2.0, energy=Energy(36.0))
    assert metrics_of(finished)["energy"]["full_wh"] == pytest.approx((36 + 2 * 20 + 2.5 * 150) / 3600)


@pytest.mark.parametrize(
    ("energy", "over", "reason"),
    [
        (Energy(reason="NVML: Driver Not Loaded"), {}, "NVML: Driver Not Loaded"),
        (Energy(), {}, "no engine with a meter"),
        (Energy(), {"gpu": None, "gpus": 0.0}, "no GPU: a CPU has no energy counter"),
    ],
)
def test_a_modelled_answer_says_why(energy: Energy, over: dict[str, Any], reason: str) -> None:
    finished = Finished("stop", 3, 2, 0.0, SpecStats(), busy_s=0.5, energy=energy)
    shown = metrics_of(finished, eco(**over))["energy"]
    assert (shown["source"], shown["reason"]) == ("modelled", reason)
    assert shown["wh"] == pytest.approx(50 / 3600)


def test_the_way_to_the_ingress_counts_in_no_batch() -> None:
    """An answer alone on the engine for 10 ms, which took 2 s on its way."""
    alone = Finished("stop", 3, 2, 0.0, SpecStats(), busy_s=0.01, engine_s=0.01)
    assert metrics_of(alone)["mean_batch"] == 1
    assert metrics_of(replace(alone, engine_s=0.04))["mean_batch"] == 4


def test_on_a_cpu_there_is_no_range_of_a_gpus_watts() -> None:
    data = metrics_of(Finished("stop", 3, 2, 0.0, SpecStats(), busy_s=1.0), eco(gpu=None, gpus=0.0))
    assert data["energy"]["range"] is None
    assert data["energy"]["full_wh"] == data["energy"]["wh"]  # no server beside it, and no idle time
