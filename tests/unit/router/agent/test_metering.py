"""What an agent's calls cost, and what the budget allows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.agent.metering import BYTES_PER_TOKEN, Meter, Usage
from router.agent.settings import AgentPrices

PRICES = AgentPrices(input=1, cache_write=2, cache_read=0.1, output=5, source="invented")


def test_each_kind_of_token_has_its_price() -> None:
    usage = Usage(input_tokens=1000, output_tokens=100, cache_read_tokens=10_000, cache_write_tokens=500)
    assert usage.cost_usd(PRICES) == pytest.approx((1000 * 1 + 100 * 5 + 10_000 * 0.1 + 500 * 2) / 1e6)


def test_the_current_call_counts_and_is_not_counted_twice() -> None:
    meter = Meter(PRICES, 1.0)
    meter.begin()
    meter.note(Usage(input_tokens=100))
    meter.note(Usage(input_tokens=100, output_tokens=20))
    meter.begin()
    meter.note(Usage(input_tokens=7))
    assert meter.usage == Usage(input_tokens=107, output_tokens=20)
    assert meter.calls == 2


def test_totals_of_a_program_that_counts_by_itself_are_taken() -> None:
    meter = Meter(PRICES, 1.0)
    meter.charge(Usage(output_tokens=10), 0.25, calls=3)
    assert (meter.cost_usd, meter.calls, meter.usage.output_tokens) == (0.25, 3, 10)


def test_without_a_cost_of_its_own_the_prices_count() -> None:
    meter = Meter(PRICES, 1.0)
    meter.charge(Usage(output_tokens=10), None, calls=1)
    assert meter.cost_usd == pytest.approx(50e-6)


def test_a_call_gets_the_output_that_the_rest_of_the_budget_pays_for() -> None:
    meter = Meter(PRICES, 0.001)
    # 200 tokens of input at the price of a cache write, 2 USD per million, leave 600 millionths: 120 tokens at 5.
    assert meter.affordable_output(200 * BYTES_PER_TOKEN, most=400) == 120
    assert meter.affordable_output(0, most=100) == 100


def test_a_call_whose_input_exceeds_the_budget_gets_no_output() -> None:
    assert Meter(PRICES, 0.0001).affordable_output(10_000, most=400) <= 0


def test_spent_budget_is_not_available_again() -> None:
    meter = Meter(PRICES, 0.001)
    meter.begin()
    meter.note(Usage(output_tokens=100))
    assert meter.affordable_output(0, most=400) == 100


def test_a_model_that_costs_nothing_is_affordable() -> None:
    free = AgentPrices(input=0, cache_write=0, cache_read=0, output=0, source="own")
    assert Meter(free, 0.0).affordable_output(10_000, most=400) == 400


tokens = st.integers(0, 1_000_000)
usages = st.builds(Usage, tokens, tokens, tokens, tokens)


@given(usages, usages)
def test_costs_add_up(first: Usage, second: Usage) -> None:
    together = (first + second).cost_usd(PRICES)
    assert together == pytest.approx(first.cost_usd(PRICES) + second.cost_usd(PRICES))


@given(st.floats(0, 1), st.integers(0, 100_000), st.integers(1, 8192), st.integers(0, 100))
def test_a_call_within_its_output_limit_never_exceeds_the_budget(
    budget: float, size: int, most: int, spent: int
) -> None:
    meter = Meter(PRICES, budget)
    meter.begin()
    meter.note(Usage(output_tokens=spent))
    output = meter.affordable_output(size, most)
    if output > 0:
        meter.begin()
        meter.note(Usage(cache_write_tokens=size // BYTES_PER_TOKEN, output_tokens=output))
        assert meter.cost_usd <= budget + 1e-12
