"""Expected speed: one formula for every model and card, with coefficients that are fitted to measured kernel times."""

from __future__ import annotations

import pytest

from cluster.catalogue.speed import (
    Coefficients,
    coefficients,
    decode_ms,
    expected,
    prefill_ms,
    split_mb,
    step_ms,
    usd_per_million,
)
from cluster.catalogue.types import catalogue

MODELS, GPUS = catalogue().models, catalogue().gpus
PLAIN = Coefficients(
    bandwidth_share=0.5, compute_share=0.5, layer_ms=0.03, split_ms=0.01, split_ms_per_mb=0.1, fitted_to="nothing"
)


def step(model: str, gpu: str, parallel: int, batch: int) -> float:
    """Return the time of a step with the plain coefficients."""
    return decode_ms(MODELS[model], GPUS[gpu], PLAIN, parallel, batch)


def test_every_card_has_coefficients() -> None:
    assert list(coefficients()) == list(GPUS)


def test_a_card_without_measured_kernels_has_those_of_the_card_like_it() -> None:
    assert coefficients()["L4"] == coefficients()["A10G"]
    assert coefficients()["L4"].fitted_to == coefficients()["L40S"].fitted_to == "L40S"
    assert coefficients()["A100-80G"].fitted_to == "A100-80G, H100"  # no split was measured on it


@pytest.mark.parametrize(
    ("batch", "measured"),
    [(1, 155), (8, 1165), (32, 4110)],  # tokens/s, vLLM 0.26, 2026-11-27: docs/gpus.md
)
def test_an_8b_in_16_bits_on_an_h100_is_as_fast_as_was_measured(batch: int, measured: float) -> None:
    model = MODELS["llama-3.1-8b-instruct-fp8"].model_copy(update={"weights": "bf16"})
    found = decode_ms(model, GPUS["H100"], coefficients()["H100"], 1, batch)
    assert 1000 * batch / found == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize(("streams", "measured"), [(1, 482), (32, 8402), (128, 16582)])
def test_no_model_is_faster_than_the_host_was_with_the_smallest(streams: int, measured: float) -> None:
    assert 1000 * streams / step_ms("qwen2.5-0.5b-instruct", "B200", 1, streams) == pytest.approx(measured, rel=0.1)


# 32 layers x (4096 x 128 x 80 + 3 x 4096 x 14336) weights of 1 byte, an LM head of 128256 x 4096 x 2 bytes: 8.03e9
# bytes; 640 tokens x 131072 bytes of KV: 0.084e9; at half of 3.35e9 bytes a ms, and 32 layers x 0.03 ms.
def test_a_step_reads_weights_and_kv_cache_and_pays_for_its_layers() -> None:
    assert step("llama-3.1-8b-instruct-fp8", "H100", 1, 1) == pytest.approx((8.03 + 0.084) / 1.675 + 0.96, abs=0.01)
    assert step("llama-3.1-8b-instruct-fp8", "H100", 1, 8) == pytest.approx((8.03 + 0.671) / 1.675 + 0.96, abs=0.01)


# Half of the bytes on each card; 32 layers x 0.01 ms; 32 x 4096 x 2 x 2 x 2 / 2 bytes: 0.52 MB at 0.1 ms.
def test_two_cards_read_half_each_and_pay_for_talking() -> None:
    assert split_mb(MODELS["llama-3.1-8b-instruct-fp8"], 2, 1) == pytest.approx(0.524, abs=0.001)
    expected_ms = (8.03 + 0.084) / 2 / 1.675 + 0.96 + 0.32 + 0.052
    assert step("llama-3.1-8b-instruct-fp8", "H100", 2, 1) == pytest.approx(expected_ms, abs=0.01)


# 4-bit weights are computed in 16 bits: 2 x 7.5e9 x 512 / (0.5 x 70e12) = 220 ms, and 32 layers.
def test_a_prefill_is_bound_by_compute() -> None:
    assert prefill_ms(MODELS["llama-3.1-8b-instruct-w4a16"], GPUS["A10G"], PLAIN, 1, 512) == pytest.approx(
        220 + 0.96, abs=1
    )


# 8 of 128 experts: 8 for one token, 128 x (1 - (1 - 1/16)^16) = 82.4 for 16, 128 for many.
@pytest.mark.parametrize(("tokens", "experts"), [(1, 8), (16, 82.4), (1000, 128)])
def test_a_batch_reads_the_experts_that_any_of_its_tokens_passes(tokens: int, experts: float) -> None:
    model = MODELS["qwen3-30b-a3b-instruct-2507-fp8"]
    one = 48 * 3 * 2048 * 768
    assert (model.bytes_read(tokens) - model.bytes_read(1)) / one == pytest.approx(experts - 8, abs=0.1)


def test_a_smaller_format_of_a_model_is_never_slower() -> None:
    for gpu in ("L4", "L40S", "H100", "B200"):
        formats = ("qwen3-4b-instruct-2507-w4a16", "qwen3-4b-instruct-2507-fp8", "qwen3-4b-instruct-2507")
        steps = [step_ms(each, gpu, 1, 8) for each in formats]
        assert steps == sorted(steps)


def test_the_price_of_tokens_is_that_of_the_time_they_take() -> None:
    # 3.6 USD/h is 0.001 USD/s; 10 ms a step of 10 tokens: 1000 s for 10^6.
    assert usd_per_million(3.6, 10, 10) == pytest.approx(1.0)


def test_expected_figures_are_those_of_one_stream() -> None:
    speed = expected("llama-3.1-8b-instruct-fp8", "H100", 1)
    assert speed.tokens_per_s == round(1000 / step_ms("llama-3.1-8b-instruct-fp8", "H100", 1, 1))
    model, card = MODELS["llama-3.1-8b-instruct-fp8"], coefficients()["H100"]
    assert speed.ttft_ms == round(30 + prefill_ms(model, GPUS["H100"], card, 1, 512))
