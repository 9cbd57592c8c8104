"""Every entry of every shipped profile fits its card, and what does not fit is named with its parts."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.catalogue.memory import (
    Budget,
    context_gib,
    entry_budget,
    kv_cache,
    memory_problems,
    share_of,
    utilization,
)
from cluster.catalogue.speed import expected
from cluster.catalogue.types import GIB, catalogue
from cluster.profiles.reading import load_profile, shipped_profiles
from router.registry import ChainEntry, Profile, Tier

MODELS = catalogue().models
GPUS = catalogue().gpus


def gpu_tier(gpu: str = "L4", gpus: float = 1, **over: Any) -> Tier:
    entry = {"name": "only", "target": "llama-3.1-8b-instruct-w4a16", "max_model_len": 16384} | over
    return (
        load_profile("gpu")
        .tiers["eco"]
        .model_copy(update={"gpu": gpu, "gpus": gpus, "chain": (ChainEntry.model_validate(entry),)})
    )


def budget(gpu: str = "L4", gpus: float = 1, **over: Any) -> Budget:
    tier = gpu_tier(gpu, gpus, **over)
    found = entry_budget(tier.chain[0], tier)
    assert found is not None
    return found


@pytest.mark.parametrize("name", shipped_profiles())
def test_every_entry_of_a_shipped_profile_fits_its_card(name: str) -> None:
    assert memory_problems(load_profile(name)) == []


def test_the_catalogue_knows_every_gpu_and_model_of_the_gpu_profile() -> None:
    for tier in load_profile("gpu").tiers.values():
        assert all(entry_budget(entry, tier) is not None for entry in tier.chain)


def test_the_gpu_profiles_prices_and_watts_are_the_catalogues() -> None:
    for tier in load_profile("gpu").tiers.values():
        card = GPUS[str(tier.gpu)]
        assert tier.price_usd_per_hour == pytest.approx(card.price_usd_per_hour * tier.gpus)
        assert (tier.active_watts, tier.idle_watts) == (card.active_watts * tier.gpus, card.idle_watts * tier.gpus)
        assert tier.limit_watts == card.limit_watts * tier.gpus


def test_the_gpu_profiles_expected_speed_is_the_estimated_one() -> None:
    for tier in load_profile("gpu").tiers.values():
        speed = expected(tier.chain[0].target, str(tier.gpu), tier.tensor_parallel)
        assert (tier.expected_ttft_ms, tier.expected_tokens_per_s) == (speed.ttft_ms, speed.tokens_per_s)


def test_the_gpu_profiles_eco_is_the_cheapest_per_token_of_a_stream() -> None:
    tiers = load_profile("gpu").tiers
    usd = [tier.price_usd_per_hour / (tier.expected_tokens_per_s or 0) for tier in tiers.values()]
    assert usd == sorted(usd)


def test_the_gpu_profiles_models_are_the_catalogues() -> None:
    for key, source in load_profile("gpu").models.items():
        known = MODELS.get(key) or catalogue().eagle3_heads[key]
        assert (source.repo, source.revision) == (known.repo, known.revision)
        assert source.size_gb == pytest.approx(known.weight_bytes / 1e9, abs=0.06)


def test_a_head_of_the_235b_is_as_large_as_others_report() -> None:
    # 0.57e9 weights: 3 x 4096 x 4096 to merge, 4096 x 128 x (2 x 72 + 64) of attention, 3 x 4096 x 12288, 4096 x 64000.
    head = catalogue().eagle3_heads["eagle3-qwen3-235b-a22b-2507"]
    assert head.weight_bytes / 2e9 == pytest.approx(0.57, abs=0.01)
    speculation = {"method": "eagle3", "draft": "eagle3-qwen3-235b-a22b-2507", "k_max": 5}
    found = budget("H100", 4, target="qwen3-235b-a22b-instruct-2507-fp8", max_model_len=32768, speculation=speculation)
    assert found.fits
    assert found.draft == pytest.approx(1.15e9 / 4 / GIB, abs=0.01)


def test_a_checkpoint_with_its_own_lm_head_is_as_large_as_its_files() -> None:
    assert MODELS["qwen3-4b-instruct-2507-w4a16"].weight_bytes / 1e9 == pytest.approx(3.43, abs=0.02)


# 32 layers x 2 x 8 heads x 128 x 2 bytes = 128 KiB a token: 16384 tokens are 2 GiB.
@pytest.mark.parametrize(
    ("parallel", "tokens", "gib"), [(1, 16384, 2.0), (1, 32768, 4.0), (2, 16384, 1.0), (8, 16384, 0.25)]
)
def test_a_full_context_takes_its_tokens_keys_and_values(parallel: int, tokens: int, gib: float) -> None:
    assert kv_cache(MODELS["llama-3.1-8b-instruct-fp8"], parallel, tokens) == gib


def test_a_short_context_still_leaves_room_for_16_mean_requests() -> None:
    model = MODELS["llama-3.1-8b-instruct-fp8"]
    assert kv_cache(model, 1, 4096) == 16 * 640 * model.kv_bytes_per_token(32, 1) / GIB
    assert kv_cache(model, 1, 512) == 16 * 512 * model.kv_bytes_per_token(32, 1) / GIB


def test_more_cards_than_kv_heads_do_not_split_a_head() -> None:
    model = MODELS["qwen3-235b-a22b-instruct-2507-fp8"]
    assert model.kv_bytes_per_token(94, 8) == model.kv_bytes_per_token(94, 4)


def test_an_8b_in_16_bits_with_a_head_leaves_an_l4_too_little_for_a_long_context() -> None:
    model = MODELS["llama-3.1-8b-instruct-fp8"].model_copy(update={"weights": "bf16"})
    known = catalogue().model_copy(update={"models": {"big": model}})
    speculation = {"method": "eagle3", "draft": "eagle3-llama-3.1-8b", "k_max": 7}
    tier = gpu_tier(target="big", max_model_len=16384, speculation=speculation)
    found = entry_budget(tier.chain[0], tier, known)
    assert found is not None
    assert not found.fits
    assert found.weights == pytest.approx(14.96, abs=0.01)


def test_a_draft_its_graphs_and_its_layer_in_the_kv_cache_are_counted() -> None:
    alone = budget()
    speculation = {"method": "eagle3", "draft": "eagle3-llama-3.1-8b", "k_max": 4}
    drafting = budget(speculation=speculation)
    assert drafting.draft == pytest.approx(0.79, abs=0.01)
    assert drafting.graphs > alone.graphs
    assert drafting.kv / alone.kv == pytest.approx(33 / 32, rel=0.002)


def test_a_draft_model_is_counted_with_its_kv_cache() -> None:
    speculation = {"method": "draft_model", "draft": "qwen2.5-0.5b-instruct", "k_max": 4}
    assert budget(speculation=speculation).draft == pytest.approx(0.92, abs=0.01)


def test_two_cards_hold_half_the_weights_each_and_nccls_buffers() -> None:
    one, two = budget("H100"), budget("H100", 2)
    assert two.weights == one.weights / 2
    assert two.kv == one.kv / 2


def test_an_eager_engine_captures_no_graphs() -> None:
    assert budget(engine_args={"enforce_eager": True}).graphs == 0


def test_a_tier_may_use_what_its_gpu_memory_utilization_allows() -> None:
    assert budget().allowed == pytest.approx(0.92 * 21.95)
    assert budget(engine_args={"gpu_memory_utilization": 0.5}).allowed == pytest.approx(0.5 * 21.95)
    assert budget(gpus=0.4).allowed == pytest.approx(0.381 * 21.95)  # less the CUDA context


@pytest.mark.parametrize(("gpu", "target"), [("T4", "llama-3.1-8b-instruct-w4a16"), ("L4", "my-own-model")])
def test_nothing_is_said_of_a_gpu_or_model_that_the_catalogue_lacks(gpu: str, target: str) -> None:
    tier = gpu_tier(gpu, target=target)
    assert entry_budget(tier.chain[0], tier) is None


def test_an_entry_that_is_too_big_is_named_with_what_it_needs() -> None:
    raw = load_profile("gpu").model_dump(mode="json")
    raw["tiers"]["performance"]["gpu"] = "A10G"
    problems = memory_problems(Profile.model_validate(raw))
    assert len(problems) == 3
    assert problems[0].startswith(
        "tiers.performance.chain, entry '70b-w4a16-eagle3' on 1 x A10G: needs 50.2 GiB (weights 37.0, draft 2.6, "
    )
    assert problems[0].endswith(" of 20.2 GiB")


@pytest.mark.parametrize("gpu", GPUS)
def test_shares_that_fill_a_card_leave_every_process_its_cuda_context(gpu: str) -> None:
    card = GPUS[gpu]
    for shares in ((0.5, 0.5), (0.25,) * 4, (0.1, 0.2, 0.3, 0.4)):
        taken = sum(utilization(share, card) * card.memory_gib + context_gib(card) for share in shares)
        assert taken <= card.memory_gib


@pytest.mark.parametrize("gpu", GPUS)
def test_a_share_holds_what_it_was_asked_for_and_a_hundredth_less_does_not(gpu: str) -> None:
    card = GPUS[gpu]
    for need in (1.0, 3.3, 9.9):
        share = share_of(need, card)
        assert utilization(share, card) * card.memory_gib >= need
        assert utilization(round(share - 0.01, 2), card) * card.memory_gib < need
