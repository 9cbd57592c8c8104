"""Whether past runs speak against drafting."""

from __future__ import annotations

from typing import Any

import pytest

from router.plan import spec_plan
from router.registry import Speculation
from router.request import SpecWish
from router.runs.past_drafts import drafts_are_waste
from router.runs.summary import RunSummary

NO_WISH = SpecWish()
WASTE = RunSummary(runs=50, draft_tokens=4000, accepted_tokens=20)


def step(**over: Any) -> Speculation:
    return Speculation.model_validate({"method": "ngram", "k_max": 5, "tau": 0.2} | over)


def seen(drafted: float, rate: float) -> RunSummary:
    return RunSummary(runs=50, draft_tokens=drafted, accepted_tokens=drafted * rate)


def test_drafts_that_were_hardly_ever_accepted_are_not_made() -> None:
    assert drafts_are_waste(step(), NO_WISH, WASTE)
    spec = spec_plan(step(), NO_WISH, WASTE)
    assert (spec.enabled, spec.k) == (False, 0)
    assert spec.reason == "hardly any of the recent drafts for such prompts were accepted on this tier"


def test_without_past_runs_or_with_good_ones_the_controller_decides() -> None:
    for past in (RunSummary(), RunSummary(runs=9), seen(4000, 0.3), seen(4000, 0.1)):
        spec = spec_plan(step(), NO_WISH, past)
        assert (spec.enabled, spec.k_mode, spec.tau) == (True, "auto", 0.2)


def test_a_few_poor_drafts_prove_nothing() -> None:
    assert not drafts_are_waste(step(), NO_WISH, seen(200, 0.0))
    assert drafts_are_waste(step(), NO_WISH, seen(2000, 0.0))


def test_a_higher_floor_gives_up_sooner_and_without_one_only_what_is_near_zero_is_given_up() -> None:
    some = seen(20_000, 0.04)
    assert drafts_are_waste(step(tau=0.3), NO_WISH, some)
    assert not drafts_are_waste(step(tau=0.1), NO_WISH, some)
    assert not drafts_are_waste(step(tau=0.0), NO_WISH, some)
    assert drafts_are_waste(step(tau=0.0), NO_WISH, seen(20_000, 0.005))


@pytest.mark.parametrize("wish", [{"k": 4}, {"k": "auto"}, {"tau": 0.1}, {"enabled": True}], ids=str)
def test_the_users_own_wish_is_kept(wish: dict[str, Any]) -> None:
    spec = spec_plan(step(), SpecWish.model_validate(wish), WASTE)
    assert spec == spec_plan(step(), SpecWish.model_validate(wish))
    assert spec.enabled


def test_a_depth_that_the_profile_fixes_is_kept() -> None:
    assert spec_plan(step(k=3), NO_WISH, WASTE).k == 3


def test_a_step_that_judges_its_own_draft_goes_on_drafting() -> None:
    judging = step(method="draft_model", draft="small", floor=0.05)
    assert spec_plan(judging, NO_WISH, WASTE).enabled
