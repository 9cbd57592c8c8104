"""Fields that an engine with drafts refuses, and the tiers that accept them."""

from __future__ import annotations

from typing import Any

import pytest

from router.capabilities import fields_refused_with_drafts, tiers_without_drafts
from router.observation import Observation, TierState
from tests.unit.router.profiles import small_profile

PROFILE = small_profile()


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"logit_bias": {"5": -100}}, ("logit_bias",)),
        ({"min_p": 0.05}, ("min_p",)),
        ({"min_p": 1}, ("min_p",)),
        ({"logit_bias": {"5": 1}, "min_p": 0.1}, ("logit_bias", "min_p")),
    ],
    ids=str,
)
def test_fields_that_an_engine_with_drafts_refuses_are_named(body: dict[str, Any], fields: tuple[str, ...]) -> None:
    assert fields_refused_with_drafts(body) == fields


@pytest.mark.parametrize(
    "body",
    [{}, {"logit_bias": {}}, {"logit_bias": None}, {"min_p": 0}, {"min_p": 0.0}, {"min_p": None}, {"min_p": "x"}],
    ids=str,
)
def test_fields_without_effect_are_not_refused(body: dict[str, Any]) -> None:
    assert fields_refused_with_drafts(body) == ()


def test_a_tier_whose_first_entry_makes_no_drafts_accepts_them() -> None:
    assert tiers_without_drafts(PROFILE, Observation()) == ("ultra",)


def test_a_tier_that_fell_back_to_an_entry_without_drafts_accepts_them() -> None:
    fallen = Observation({"eco": TierState(running=1, active_entry="small-alone")})
    assert tiers_without_drafts(PROFILE, fallen) == ("eco", "ultra")


def test_a_tier_that_cannot_start_accepts_none() -> None:
    assert tiers_without_drafts(PROFILE, Observation({"ultra": TierState(failed=True)})) == ()
