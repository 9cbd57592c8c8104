"""Expected speed: the committed estimates, and the arithmetic for what they lack."""

from __future__ import annotations

import pytest

from cluster.catalogue.speed import decode_ms, estimates, expected, prefill_ms
from cluster.catalogue.types import catalogue

MODELS, GPUS = catalogue().models, catalogue().gpus


def test_every_estimate_is_of_the_catalogue_and_slower_with_more_requests() -> None:
    for model, gpus in estimates().items():
        for gpu, sizes in gpus.items():
            assert (model in MODELS, gpu in GPUS) == (True, True)
            for estimate in sizes.values():
                assert list(estimate.step_ms) == [1, 8, 32, 128]
                assert estimate.step_ms[128] >= estimate.step_ms[1] > 0


def test_an_estimate_from_measured_kernels_says_so() -> None:
    speed = expected("llama-3.1-8b-instruct-fp8", "H100", 1)
    assert speed.basis == "kernels"
    assert speed.tokens_per_s == pytest.approx(228, abs=5)  # 4.39 ms a step


# 8.03e9 bytes / (0.74 x 3.35e12) = 3.24 ms.
def test_a_decode_step_reads_the_weights_at_the_measured_share_of_the_bandwidth() -> None:
    model = MODELS["llama-3.1-8b-instruct-fp8"]
    assert decode_ms(model, GPUS["H100"], 1, 1) == pytest.approx(3.24, abs=0.01)
    assert decode_ms(model, GPUS["H100"], 2, 1) == pytest.approx(1.62, abs=0.01)


# 2 x 7.5e9 x 512 / (0.5 x 70e12) = 0.22 s on an A10G.
def test_a_prefill_is_bound_by_compute() -> None:
    assert prefill_ms(MODELS["llama-3.1-8b-instruct-w4a16"], GPUS["A10G"], 1, 512) == pytest.approx(220, abs=3)


def test_a_batch_reads_more_experts_than_one_request_but_never_more_than_there_are() -> None:
    model, gpu = MODELS["qwen3-30b-a3b-instruct-2507-fp8"], GPUS["H100"]
    one, many = (decode_ms(model, gpu, 1, batch) for batch in (1, 16))
    assert 5 * one < many
    assert decode_ms(model, gpu, 1, 17) == many


def test_cards_without_an_estimate_get_the_arithmetic() -> None:
    speed = expected("llama-3.1-8b-instruct-w4a16", "A10G", 1)
    assert (speed.basis, speed.tokens_per_s) == ("bandwidth", 95)
