"""What a request's speculation parameters become on a chain entry, and how they travel to the scheduler."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.difficulty.categories import Category
from router.registry import Drafts, DraftsChoice, Speculation
from router.spec_params import DEFAULT_CATEGORY, NO_DRAFTS, SpecParams, WhoDrafts

SPECULATION = Speculation(method="ngram", k_max=8, tau=0.25)
BOTH = Speculation(method="draft_model", draft="d", k_max=8, tau="auto", drafts="own")


@pytest.mark.parametrize(
    ("requested", "resolved"),
    [
        ({}, {"k": "auto", "tau": 0.25, "drafts": "ngram"}),
        ({"k": 3}, {"k": 3, "tau": 0.25, "drafts": "ngram"}),
        ({"k": 32, "tau": 0.0}, {"k": 8, "tau": 0.0, "drafts": "ngram"}),
        ({"k": "auto", "tau": 0.9}, {"k": "auto", "tau": 0.9, "drafts": "ngram"}),
        ({"tau": "auto"}, {"k": "auto", "tau": "auto", "drafts": "ngram"}),
    ],
    ids=str,
)
def test_the_entry_fills_in_what_the_client_left_open_and_caps_k(
    requested: dict[str, Any], resolved: dict[str, Any]
) -> None:
    spec, reason = SpecParams.model_validate(requested).resolve(SPECULATION)
    assert (spec, reason) == (SpecParams.model_validate(resolved), None)
    assert spec.resolve(SPECULATION) == (spec, None)


@pytest.mark.parametrize("drafts", [None, "own", "ngram", "auto"])
def test_an_entry_that_drafts_in_both_ways_lets_the_client_choose(drafts: DraftsChoice | None) -> None:
    requested = SpecParams(drafts=drafts)
    assert requested.resolve(BOTH)[0] == SpecParams(k="auto", tau="auto", drafts=drafts)
    in_tier: tuple[tuple[DraftsChoice | None, str | None], ...] = ((None, None), ("ngram", "poor"))
    for now, why in in_tier:
        who = requested.who_drafts(BOTH, requested.resolve(BOTH)[0], now, why)
        # Without a choice, the tier's way holds.
        assert who == WhoDrafts(drafts, drafts or now or "own", None if drafts else why)


@pytest.mark.parametrize(
    ("drafts", "speculation", "used", "why"),
    [
        ("own", SPECULATION, "ngram", "the tier's entry has only ngram drafts"),
        ("auto", SPECULATION, "ngram", None),
        ("ngram", Speculation(method="eagle3", draft="d", k_max=8), "own", "the tier's entry has only own drafts"),
        ("ngram", Speculation(method="suffix", k_max=8), "own", "the tier's entry has only own drafts"),
        ("own", Speculation(method="eagle3", draft="d", k_max=8), "own", None),
    ],
)
def test_an_entry_that_drafts_in_one_way_keeps_to_it_and_says_so(
    drafts: DraftsChoice, speculation: Speculation, used: DraftsChoice, why: str | None
) -> None:
    requested = SpecParams(drafts=drafts)
    assert requested.resolve(speculation)[0].drafts == used
    assert requested.who_drafts(speculation, requested.resolve(speculation)[0], None, None) == WhoDrafts(
        drafts, used, why
    )


def test_nobody_drafts_where_nothing_is_drafted() -> None:
    for requested, speculation in ((SpecParams(k=0, drafts="own"), BOTH), (SpecParams(drafts="own"), None)):
        who = requested.who_drafts(speculation, requested.resolve(speculation)[0], "ngram", "poor")
        assert who == WhoDrafts("own", None, None)


@pytest.mark.parametrize(
    ("requested", "speculation", "over", "reason"),
    [
        ({"k": 5}, None, {}, "makes no drafts"),
        ({"enabled": False, "k": 5}, SPECULATION, {}, "no drafts are requested"),
        ({"k": 0}, SPECULATION, {}, "no drafts are requested"),
        ({}, Speculation(method="ngram", k_max=8, k=0), {}, "no drafts are requested"),
        ({"k": 5}, SPECULATION, {"seeded": True}, "with a seed"),
        ({}, SPECULATION, {"wasteful": True}, "hardly any"),
    ],
)
def test_drafting_is_off_with_a_reason(
    requested: dict[str, Any], speculation: Speculation | None, over: dict[str, bool], reason: str
) -> None:
    spec, why = SpecParams.model_validate(requested).resolve(speculation, **over)
    assert spec == NO_DRAFTS
    assert why is not None
    assert reason in why


def test_most_drafts_is_k_and_k_max_for_auto() -> None:
    assert SpecParams(k=3).most_drafts(SPECULATION) == 3
    assert SpecParams(k="auto").most_drafts(SPECULATION) == 8
    assert NO_DRAFTS.most_drafts(SPECULATION) == NO_DRAFTS.most_drafts(None) == 0


# --- as sampling arguments ---

requested = st.builds(
    SpecParams,
    enabled=st.booleans(),
    k=st.none() | st.just("auto") | st.integers(0, 32),
    tau=st.none() | st.just("auto") | st.floats(0, 1),
    drafts=st.none() | st.sampled_from(get_args(Drafts)) | st.just("auto"),
)


@given(requested, st.sampled_from([SPECULATION, BOTH]), st.sampled_from(get_args(Category)))
def test_resolved_parameters_are_the_same_after_json(
    requested: SpecParams, speculation: Speculation, category: str
) -> None:
    resolved, _ = requested.resolve(speculation)
    arguments = json.loads(json.dumps(resolved.to_arguments(category)))
    arrived, arrived_category = SpecParams.from_arguments(arguments | {"other": [1]})
    assert arrived.resolve(speculation)[0] == resolved
    assert arrived_category == category


def test_a_request_without_arguments_is_resolved_as_the_chain_entry_says() -> None:
    spec, category = SpecParams.from_arguments({})
    assert spec.resolve(SPECULATION)[0] == SpecParams(k="auto", tau=0.25, drafts="ngram")
    assert category == DEFAULT_CATEGORY
    assert category in get_args(Category)


def test_no_drafts_travel_as_0_draft_tokens() -> None:
    arguments = NO_DRAFTS.to_arguments("code")
    assert arguments == {"speculation_k": 0, "speculation_tau": 0.0, "speculation_category": "code"}


@pytest.mark.parametrize(
    "wrong",
    [
        *({"k": -1}, {"k": 33}, {"k": 2.5}, {"k": "many"}),
        *({"tau": float("nan")}, {"tau": 1.1}, {"tau": "half"}),
        *({"drafts": "eagle"}, {"drafts": 1}, {"K": 3}),
    ],
    ids=str,
)
def test_a_wrong_argument_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SpecParams.from_arguments({f"speculation_{key}": value for key, value in wrong.items()})
