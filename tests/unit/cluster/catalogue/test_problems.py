"""What cannot work in a profile is named with its key, what it got and what it allows."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.catalogue.problems import profile_problems
from cluster.profiles.reading import load_profile, merge, shipped_profiles
from router.registry import Profile

HEAD_8B = {"method": "eagle3", "draft": "eagle3-llama-3.1-8b", "k_max": 4}
FP8_4B = {"qwen3-4b-instruct-2507-fp8": {"source": "hub", "repo": "Qwen/Qwen3-4B-Instruct-2507-FP8"}}
ENTRY = "tiers.eco.chain, entry 'only': "


def problems(models: dict[str, Any] | None = None, gpu: str = "H100", gpus: float = 1, **entry: Any) -> list[str]:
    """Return the problems of the profile `gpu` with one entry in `eco`."""
    chain = [{"name": "only", "target": "llama-3.1-8b-instruct-w4a16", "max_model_len": 8192} | entry]
    over = {"tiers": {"eco": {"gpu": gpu, "gpus": gpus, "chain": chain}}, "models": models or {}}
    return profile_problems(Profile.model_validate(merge(load_profile("gpu").model_dump(mode="json"), over)))


def hub(**over: Any) -> dict[str, Any]:
    return {"source": "hub", "repo": "org/name"} | over


@pytest.mark.parametrize("name", shipped_profiles())
def test_the_shipped_profiles_have_no_problems(name: str) -> None:
    assert profile_problems(load_profile(name)) == []


def test_an_engine_may_not_use_more_of_a_card_than_its_tiers_share() -> None:
    assert problems(gpus=0.5, engine_args={"gpu_memory_utilization": 0.49}) == []
    assert problems(gpus=0.5, engine_args={"gpu_memory_utilization": 0.5}) == [
        ENTRY + "engine_args.gpu_memory_utilization: got 0.5, must be at most 0.492, the tier's share of a card (gpus: "
        "0.5) less its CUDA context, as others have the rest"
    ]


def test_a_batch_that_is_too_small_for_the_drafts_is_named() -> None:
    few = {"max_num_seqs": 4}
    assert problems(speculation=HEAD_8B, engine_args=few) == [
        ENTRY + "max_num_seqs: got 4, must be more than speculation.k_max (4)"
    ]
    assert problems(speculation=HEAD_8B, engine_args={"max_num_seqs": 5}) == []
    assert problems(engine_args=few) == []
    assert problems(speculation=HEAD_8B, engine_args=few, runner="v1") == []
    assert problems(speculation={"method": "suffix", "k_max": 8}, engine_args=few) == []


def test_a_context_longer_than_the_models_is_named_unless_it_is_stretched() -> None:
    models = {"qwen2.5-0.5b-instruct": hub()}
    long: dict[str, Any] = {"target": "qwen2.5-0.5b-instruct", "max_model_len": 32769}
    assert problems(models, **long) == [
        ENTRY + "max_model_len: got 32769, must be at most 32768, the context of qwen2.5-0.5b-instruct"
    ]
    assert problems(models, **long, engine_args={"hf_overrides": {"rope_parameters": {}}}) == []


@pytest.mark.parametrize(
    ("target", "gpus", "expected"),
    [
        (
            "qwen3-30b-a3b-instruct-2507-fp8",
            4,
            "gpus: got 4, must be at most 2 for target qwen3-30b-a3b-instruct-2507-fp8, which cannot be split over "
            "more cards",
        ),
        ("qwen2.5-0.5b-instruct", 4, "gpus: got 4, must divide the 14 attention heads of target qwen2.5-0.5b-instruct"),
        (
            "qwen2.5-14b-instruct-awq",
            5,
            "gpus: got 5, must divide the 8 KV heads of target qwen2.5-14b-instruct-awq, or be a multiple",
        ),
        ("qwen2.5-0.5b-instruct", 2, None),
    ],
)
def test_a_model_is_split_over_as_many_cards_as_its_heads_allow(target: str, gpus: int, expected: str | None) -> None:
    assert problems({target: hub()}, gpus=gpus, target=target) == ([ENTRY + expected] if expected else [])


def test_a_draft_model_is_split_as_its_target_is() -> None:
    speculation = {"method": "draft_model", "draft": "qwen2.5-0.5b-instruct", "k_max": 3}
    target = "qwen2.5-14b-instruct-awq"
    assert problems(
        {"qwen2.5-0.5b-instruct": hub(), target: hub()}, gpus=4, target=target, speculation=speculation
    ) == [ENTRY + "gpus: got 4, must divide the 14 attention heads of draft qwen2.5-0.5b-instruct"]


def test_a_head_of_another_target_is_named_with_those_that_it_was_made_for() -> None:
    made_for = "llama-3.1-8b-instruct-w4a16 and llama-3.1-8b-instruct-fp8"
    got = f"speculation.draft: got 'eagle3-llama-3.1-8b', an EAGLE-3 head made for {made_for}, not for "
    assert problems(speculation=HEAD_8B) == []
    assert problems(FP8_4B, target="qwen3-4b-instruct-2507-fp8", speculation=HEAD_8B) == [
        ENTRY + got + "qwen3-4b-instruct-2507-fp8, of which no head is known"
    ]
    assert problems(gpus=2, target="llama-3.3-70b-instruct-fp8", speculation=HEAD_8B) == [
        ENTRY + got + "llama-3.3-70b-instruct-fp8, whose head is 'eagle3-llama-3.3-70b'"
    ]
    assert problems({"my-own-model": hub()}, target="my-own-model", speculation=HEAD_8B) == []


def test_of_a_gpu_that_is_not_known_it_is_said_that_nothing_was_checked() -> None:
    (problem,) = problems(gpu="T4", max_model_len=10**6)
    assert problem.startswith(
        "tiers.eco.gpu: got 'T4', which the catalogue does not know, so nothing of this tier was checked; known are "
    )


def test_weights_that_the_card_cannot_compute_with_are_named() -> None:
    assert problems(FP8_4B, gpu="A10G", target="qwen3-4b-instruct-2507-fp8") == [
        ENTRY + "target: got 'qwen3-4b-instruct-2507-fp8', whose weights (fp8-block) need a GPU of compute capability "
        "8.9 or higher; A10G has 8.6"
    ]


@pytest.mark.parametrize(
    ("size_gb", "gpus", "quantization", "fits"),
    [(20, 1, None, True), (22, 1, None, False), (24, 0.5, "fp8", False), (22, 1, "fp8", True), (40, 2, None, True)],
)
def test_weights_that_alone_are_larger_than_the_tiers_memory_are_named(
    size_gb: float, gpus: float, quantization: str | None, fits: bool
) -> None:
    found = problems(
        {"my-own-model": hub(size_gb=size_gb)}, "L4", gpus, target="my-own-model", quantization=quantization
    )
    assert len(found) == (0 if fits else 1)
    assert all(line.startswith(f"{ENTRY}models.my-own-model.size_gb: got {size_gb:g}, so the ") for line in found)


def test_the_size_is_told_in_gib_with_what_the_tier_has() -> None:
    (found,) = problems({"my-own-model": hub(size_gb=22)}, "L4", target="my-own-model")
    assert found.endswith("the weights alone need 20.5 GiB of 20.2 GiB on 1 x L4")
