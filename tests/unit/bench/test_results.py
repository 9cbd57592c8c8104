"""The figures that the issues name, from measurements made by hand."""

import pytest
import yaml

from bench.load.client import Flood, Stream
from bench.overhead import Cell, Cells, overhead_rows, plain_entry
from bench.relay import FAST, ITEM_A_TOKEN, SLOW, Result, evaluate, results_json
from bench.reporting.report import REPOSITORY
from router.registry import Profile


def _cell(ttft_ms: list[float], tokens_per_s: list[float]) -> Cell:
    answers = [Stream(ttft_s=ms / 1000, gaps_s=(0.05, 0.07), tokens=3, start_s=0, end_s=1) for ms in ttft_ms]
    return Cell(answers=answers, tokens_per_s=tokens_per_s)


def test_overhead_is_our_median_minus_that_of_bare_vllm_and_throughput_a_ratio_to_it() -> None:
    cells: Cells = {
        (1, "vllm"): _cell([200, 210, 400], [10, 12, 11]),
        (1, "/v1/chat/completions"): _cell([215, 216, 217], [11, 11, 11]),
        (1, "/api/inference"): _cell([205, 213, 214], [9.9, 9.9, 9.9]),
    }
    bare, openai, ours = overhead_rows(cells)
    assert (bare["ttft_overhead_p50_ms"], bare["throughput_ratio"]) == (0, 1)
    assert openai["ttft_overhead_p50_ms"] == pytest.approx(6)  # 216 - 210
    assert openai["throughput_ratio"] == pytest.approx(1)  # 11 / 11
    assert ours["ttft_overhead_p50_ms"] == pytest.approx(3)  # 213 - 210
    assert ours["throughput_ratio"] == pytest.approx(0.9)  # 9.9 / 11
    assert {"path", "streams", "ttft_overhead_p50_ms", "throughput_ratio"} <= set(ours)
    assert (ours["path"], ours["streams"], ours["tokens"]) == ("/api/inference", 1, 9)


def test_the_step_that_is_compared_does_not_speculate() -> None:
    text = (REPOSITORY / "cluster" / "profiles" / "local.yaml").read_text(encoding="utf-8")
    assert plain_entry(Profile.model_validate(yaml.safe_load(text))).speculation is None


def test_a_flood_is_evaluated_within_its_window_only() -> None:
    stream = ((0.5, 100), (1.0, 1), (1.02, 1), (1.05, 2), (3.0, 100))
    result = evaluate(
        [Flood(arrivals=(stream,), start_s=1.0, end_s=2.0, client_cpu_s=0.1, errors=())], expected_gap_s=0.02
    )
    assert result.tokens_per_s == 4
    assert result.added_itl_p50_ms == pytest.approx(0)  # of 0, +10 and -20 ms
    assert result.added_itl_p99_ms == pytest.approx(9.8)  # between 0 and +10 at position 1.98
    assert result.client_cpu_share == pytest.approx(0.1)


def test_a_flood_without_tokens_is_an_error_not_a_rate_of_zero() -> None:
    with pytest.raises(ValueError, match="no token event"):
        evaluate([Flood(arrivals=((),), start_s=0, end_s=1, client_cpu_s=0, errors=())], 0.0)


def test_relay_json_has_the_three_figures() -> None:
    results = {
        FAST.name: Result(40_000, 0, 1, 0.2),
        ITEM_A_TOKEN.name: Result(2_000, 0, 1, 0.1),
        SLOW.name: Result(3_200, 0.5, 3.5, 0.1),
    }
    assert results_json(results) == {"tokens_per_s": 40_000, "ratio_to_item_a_token": 20, "added_itl_p99_ms": 3.5}
