"""Whether past runs speak against drafting."""

from __future__ import annotations

from typing import Any

import pytest

from router.registry import Speculation
from router.runs.past_drafts import drafts_are_waste
from router.runs.summary import RunSummary
from router.spec_params import SpecParams

OPEN = SpecParams()
WASTE = RunSummary(runs=50, draft_tokens=4000, accepted_tokens=20)


def speculation(**over: Any) -> Speculation:
    return Speculation.model_validate({"method": "ngram", "k_max": 5, "tau": 0.2} | over)


def seen(drafted: float, rate: float) -> RunSummary:
    return RunSummary(runs=50, draft_tokens=drafted, accepted_tokens=drafted * rate)


def test_drafts_that_were_hardly_ever_accepted_are_waste() -> None:
    assert drafts_are_waste(speculation(), OPEN, WASTE)


def test_without_past_runs_or_with_good_ones_the_controller_decides() -> None:
    for past in (RunSummary(), RunSummary(runs=9), seen(4000, 0.3), seen(4000, 0.1)):
        assert not drafts_are_waste(speculation(), OPEN, past)


def test_a_few_poor_drafts_prove_nothing() -> None:
    assert not drafts_are_waste(speculation(), OPEN, seen(200, 0.0))
    assert drafts_are_waste(speculation(), OPEN, seen(2000, 0.0))


def test_a_higher_tau_finds_waste_sooner_and_without_one_only_near_zero_is_waste() -> None:
    some = seen(20_000, 0.04)
    assert drafts_are_waste(speculation(tau=0.3), OPEN, some)
    assert not drafts_are_waste(speculation(tau=0.1), OPEN, some)
    assert not drafts_are_waste(speculation(tau=0.0), OPEN, some)
    assert drafts_are_waste(speculation(tau=0.0), OPEN, seen(20_000, 0.005))


@pytest.mark.parametrize("spec", [{"k": 4}, {"k": "auto"}, {"tau": 0.1}, {"enabled": True}], ids=str)
def test_what_the_client_sets_is_kept(spec: dict[str, Any]) -> None:
    assert not drafts_are_waste(speculation(), SpecParams.model_validate(spec), WASTE)


def test_a_depth_that_the_profile_fixes_is_kept() -> None:
    assert not drafts_are_waste(speculation(k=3), OPEN, WASTE)


@pytest.mark.parametrize("both_ways", [{"floor": 0.05}, {"drafts": "auto"}])
def test_an_entry_that_drafts_in_both_ways_goes_on_drafting(both_ways: dict[str, Any]) -> None:
    assert not drafts_are_waste(speculation(method="draft_model", draft="small", **both_ways), OPEN, WASTE)


def test_an_entry_without_drafts_wastes_none() -> None:
    assert not drafts_are_waste(None, OPEN, WASTE)
