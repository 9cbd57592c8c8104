"""A request's speculation, to and from the extra sampling arguments that carry it."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.difficulty.categories import Category
from router.registry import Speculation
from router.spec_params import NO_DRAFTS, SpecParams
from serve_app.speculation.params import DEFAULT_CATEGORY, from_arguments, to_arguments

SPECULATION = Speculation(method="ngram", k_max=8, k=5, tau=0.25)
requested = st.builds(
    SpecParams,
    enabled=st.booleans(),
    k=st.none() | st.just("auto") | st.integers(0, 32),
    tau=st.none() | st.floats(0, 1),
)


@given(requested, st.sampled_from(get_args(Category)))
def test_resolved_parameters_survive_the_journey_as_json(requested: SpecParams, category: str) -> None:
    resolved, _ = requested.resolve(SPECULATION)
    arguments = json.loads(json.dumps(to_arguments(resolved, category)))
    arrived, arrived_category = from_arguments(arguments | {"other": [1]})
    assert arrived.resolve(SPECULATION)[0] == resolved
    assert arrived_category == category


def test_a_request_without_arguments_is_resolved_as_the_chain_entry_says() -> None:
    spec, category = from_arguments({})
    assert spec.resolve(SPECULATION)[0] == SpecParams(k=5, tau=0.25)
    assert category in get_args(Category)
    assert category == DEFAULT_CATEGORY


def test_no_drafts_are_0_draft_tokens() -> None:
    arguments = to_arguments(NO_DRAFTS, "code")
    assert arguments == {"speculation_k": 0, "speculation_tau": 0.0, "speculation_category": "code"}


@pytest.mark.parametrize(
    "arguments",
    [{"k": -1}, {"k": 33}, {"k": 2.5}, {"k": "many"}, {"tau": float("nan")}, {"tau": 1.1}, {"tau": "half"}, {"K": 3}],
    ids=str,
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        from_arguments({f"speculation_{key}": value for key, value in arguments.items()})
