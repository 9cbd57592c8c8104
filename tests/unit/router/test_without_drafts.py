"""Requests that an engine which drafts refuses: which they are, and which tiers take them."""

from __future__ import annotations

from typing import Any

import pytest

from router.observation import Observation, TierState
from router.registry import TierName
from router.without_drafts import fields_without_drafts, nearest, tiers_without_drafts
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
def test_the_fields_that_need_an_engine_without_drafts_are_named(body: dict[str, Any], fields: tuple[str, ...]) -> None:
    assert fields_without_drafts(body) == fields


@pytest.mark.parametrize(
    "body",
    [{}, {"logit_bias": {}}, {"logit_bias": None}, {"min_p": 0}, {"min_p": 0.0}, {"min_p": None}, {"min_p": "x"}],
    ids=str,
)
def test_fields_that_ask_for_nothing_go_with_drafts(body: dict[str, Any]) -> None:
    assert fields_without_drafts(body) == ()


def test_a_tier_whose_first_entry_does_not_draft_takes_them() -> None:
    assert tiers_without_drafts(PROFILE, Observation()) == ("ultra",)


def test_a_tier_that_has_fallen_back_to_an_entry_without_drafts_takes_them_too() -> None:
    fallen = Observation({"eco": TierState(running=1, active_entry="small-alone")})
    assert tiers_without_drafts(PROFILE, fallen) == ("eco", "ultra")


def test_a_tier_that_cannot_start_takes_none() -> None:
    assert tiers_without_drafts(PROFILE, Observation({"ultra": TierState(failed=True)})) == ()


@pytest.mark.parametrize(
    ("tier", "among", "chosen"),
    [
        ("eco", ("ultra",), "ultra"),
        ("balanced", ("eco", "ultra"), "eco"),
        ("balanced", ("eco", "performance"), "performance"),
        ("ultra", ("eco", "balanced"), "balanced"),
        ("eco", (), None),
    ],
)
def test_the_nearest_tier_stands_in_and_of_two_the_more_powerful(
    tier: TierName, among: tuple[TierName, ...], chosen: str | None
) -> None:
    assert nearest(tier, among) == chosen
