"""What `bench.energy` says of made-up bills."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bench.energy import equal, restless, spread, unbilled
from sustainability.shares import Totals


def batch(*bills: float, busy: Totals = Totals(10.0)) -> Any:  # noqa: B008 - it cannot change
    return SimpleNamespace(replies=[SimpleNamespace(busy_s=bill) for bill in bills], busy=busy)


def test_unbilled_is_what_nobody_pays_over_busy_time() -> None:
    assert unbilled(batch(4.0, 5.0)) == pytest.approx(0.1)
    assert unbilled(batch(4.0, 5.0, busy=Totals(10.0, left_s=1.0))) == 0
    assert unbilled(batch(6.0, 5.0)) == pytest.approx(0.1)


def test_the_spread_is_of_the_mean_bill_of_equal_requests() -> None:
    assert spread(batch(0.9, 1.0, 1.1)) == pytest.approx(0.2)
    assert len(equal(8)) == 8
    assert len(set(equal(8))) == 1


@pytest.mark.parametrize("size", [1, 8, 32])
def test_a_restless_batch_ends_with_a_request_that_stays(size: int) -> None:
    asks = restless(size)
    assert asks[-1].leave_after is None
    assert asks[-1].max_tokens > max(ask.max_tokens for ask in asks[:-1])
