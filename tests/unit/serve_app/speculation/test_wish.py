"""A request's wish, to and from the dict that travels with it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.speculation.wish import SpeculationWish

wishes = st.builds(
    SpeculationWish,
    k=st.just("auto") | st.integers(0, 8),
    tau=st.none() | st.floats(0, 1),
    category=st.text(min_size=1),
)


@given(wishes)
def test_a_wish_survives_the_journey_as_json(wish: SpeculationWish) -> None:
    assert SpeculationWish.from_dict(json.loads(json.dumps(wish.to_dict())), k_max=8) == wish


def test_missing_keys_have_their_defaults() -> None:
    assert SpeculationWish.from_dict({}) == SpeculationWish(k="auto", tau=None, category="general_reasoning")


def test_an_integer_tau_is_a_number() -> None:
    assert SpeculationWish.from_dict({"tau": 1}).tau == 1.0


def test_k_is_bounded_only_where_the_engine_is_known() -> None:
    assert SpeculationWish.from_dict({"k": 9}).k == 9
    with pytest.raises(ValueError, match=r"speculation\.k must be 'auto' or an integer from 0 to 8, got 9"):
        SpeculationWish.from_dict({"k": 9}, k_max=8)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"k": True}, r"speculation\.k must be 'auto' or an integer of at least 0, got True"),
        ({"k": -1}, r"speculation\.k must be 'auto' or an integer of at least 0, got -1"),
        ({"k": 2.0}, r"speculation\.k must be .*, got 2\.0"),
        ({"k": "5"}, r"speculation\.k must be .*, got '5'"),
        ({"k": None}, r"speculation\.k must be .*, got None"),
        ({"tau": float("nan")}, r"speculation\.tau must be null or a number from 0 to 1, got nan"),
        ({"tau": 1.1}, r"speculation\.tau must be .*, got 1\.1"),
        ({"tau": False}, r"speculation\.tau must be .*, got False"),
        ({"tau": "0.5"}, r"speculation\.tau must be .*, got '0\.5'"),
        ({"category": ""}, r"speculation\.category must be a non-empty string, got ''"),
        ({"category": 3}, r"speculation\.category must be a non-empty string, got 3"),
        ({"K": 3, "k": 2}, r"speculation has unknown keys \['K'\], allowed: \['k', 'tau', 'category'\]"),
        ([], r"speculation must be a mapping with any of \['k', 'tau', 'category'\], got \[\]"),
    ],
)
def test_a_wrong_wish_says_what_is_wrong_and_what_is_allowed(data: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        SpeculationWish.from_dict(data)
