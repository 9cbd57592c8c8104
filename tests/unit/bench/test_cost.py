"""What `bench.cost` makes of throughput and price."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bench.cost import cost_usd_per_million, estimated, hosted_row, main, measured_row
from cluster.profiles.reading import load_profile
from sustainability.factors import load_factors
from sustainability.shares import Totals


def test_a_million_tokens_cost_the_price_of_the_time_that_they_take() -> None:
    # 100 tokens/s for 3.60 USD/h: 10,000 s at 0.001 USD/s.
    assert cost_usd_per_million(3.6, seconds=5.0, tokens=500) == pytest.approx(10)


def test_a_measured_row_has_the_cost_of_the_whole_time_and_of_the_busy_time() -> None:
    batch: Any = SimpleNamespace(tokens=500, seconds=5.0, busy=Totals(4.0))
    tier = load_profile("local").tiers["eco"].model_copy(update={"price_usd_per_hour": 3.6})
    row = measured_row("eco", "ngram", tier, 8, batch)
    assert (row["tier"], row["entry"], row["batch"], row["tokens_per_s"]) == ("eco", "ngram", 8, 100)
    assert row["usd_per_million"] == pytest.approx(10)
    assert row["busy_usd_per_million"] == pytest.approx(8)


def test_every_tier_of_the_gpu_profile_has_an_estimate_that_falls_with_the_batch() -> None:
    rows = list(estimated())
    for name, tier in load_profile("gpu").tiers.items():
        mine = [row for row in rows if row["tier"] == name]
        costs = [float(row["usd_per_million"] or 0) for row in mine]
        assert [row["batch"] for row in mine] == [1, 8, 32]
        assert costs == sorted(costs, reverse=True)
        for row in mine:
            speed = float(row["tokens_per_s"] or 0)
            assert row["usd_per_million"] == pytest.approx(tier.price_usd_per_hour / 3600 / speed * 1e6)


def test_a_list_price_is_shown_with_its_day_and_confidence() -> None:
    [haiku] = [price for price in load_factors().hosted if price.model == "Claude Haiku 5.5"]
    row = hosted_row(haiku)
    assert (row["usd_per_million"], row["date"], row["confidence"]) == (0.5, "2026-10-07", "medium")


def test_a_profile_that_is_not_there_is_a_line_and_not_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--profile", "/nowhere.yaml"]) == 2
    assert "/nowhere.yaml" in capsys.readouterr().err
