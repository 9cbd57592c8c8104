"""The highest likely rate: Wilson's upper bound."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.runs.wilson import highest_likely_rate


def test_it_is_what_a_hand_computes() -> None:
    # (0.1 + 9/200 + 3 sqrt(0.09/100 + 9/40000)) / (1 + 9/100)
    assert highest_likely_rate(100, 0.1, 3) == pytest.approx(0.225343, abs=1e-6)
    # None of 100, z = 2: z^2 / (n + z^2).
    assert highest_likely_rate(100, 0, 2) == pytest.approx(4 / 104)
    # (0.5 + 0.02 + 2 sqrt(0.0025 + 0.0001)) / 1.04
    assert highest_likely_rate(100, 0.5, 2) == pytest.approx((0.52 + 2 * 0.0026**0.5) / 1.04)


def test_without_any_doubt_it_is_the_rate() -> None:
    assert highest_likely_rate(100, 0.1, 0) == pytest.approx(0.1)


def test_next_to_no_evidence_leaves_everything_possible() -> None:
    assert highest_likely_rate(1e-308, 0, 2) == 1


@given(st.floats(1e-6, 1e6), st.floats(0, 1), st.floats(0.1, 5))
@example(1618, 1.0, 3)  # the quotient alone is 1 - 1e-16
def test_it_is_never_under_the_rate_and_nears_it_with_evidence(trials: float, rate: float, z: float) -> None:
    upper = highest_likely_rate(trials, rate, z)
    assert rate <= upper <= 1 + 1e-9
    assert highest_likely_rate(10 * trials, rate, z) <= upper + 1e-9
