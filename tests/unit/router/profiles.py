"""A small profile for the router's tests: four tiers with the production ranges, few steps, invented figures."""

from __future__ import annotations

from typing import Any

from router.registry import Profile

EAGLE_K_MAX = 4
NGRAM_K_MAX = 10


def profile_data() -> dict[str, Any]:
    """A valid profile as YAML would give it; a fresh copy, to be broken by the test that asks for it."""
    return {
        "description": "for tests",
        "tiers": {
            "eco": _tier(
                0, 25, "L4", [_step("small-ngram", "small", ngram=NGRAM_K_MAX), _step("small-alone", "small")]
            ),
            "balanced": _tier(26, 50, "A10G", [_step("medium-ngram", "medium", ngram=7)]),
            "performance": _tier(51, 80, "A100-80G", [_eagle_step(), _step("large-alone", "large")]),
            "ultra": _tier(81, 100, "H100", [_step("huge", "huge", max_model_len=16384)]),
        },
        "models": {
            name: {"source": "hub", "repo": f"test/{name}"} for name in ("small", "medium", "large", "huge", "head")
        },
        "baseline": {
            "gpu": "H100",
            "active_watts": 700,
            "price_usd_per_hour": 10,
            "ttft_s": 0.1,
            "tokens_per_s": 50,
            "source": "invented",
        },
    }


def small_profile() -> Profile:
    return Profile.model_validate(profile_data())


def _tier(low: int, high: int, gpu: str, chain: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "power": [low, high],
        "gpu": gpu,
        "replicas": {"min": 0, "max": 2},
        "price_usd_per_hour": 1.0,
        "active_watts": 100,
        "idle_watts": 20,
        "cold_start_s": 90,
        "chain": chain,
    }


def _step(name: str, target: str, max_model_len: int = 4096, ngram: int | None = None) -> dict[str, Any]:
    speculation = None if ngram is None else {"method": "ngram_gpu", "k_max": ngram, "tau": 0.3}
    return {"name": name, "target": target, "max_model_len": max_model_len, "speculation": speculation}


def _eagle_step() -> dict[str, Any]:
    speculation = {"method": "eagle3", "draft": "head", "k_max": EAGLE_K_MAX, "tau": 0.2}
    return {"name": "large-eagle", "target": "large", "max_model_len": 512, "speculation": speculation}
