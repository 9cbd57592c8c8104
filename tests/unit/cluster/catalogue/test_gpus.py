"""Every figure of a card that bills depend on says where it comes from."""

from __future__ import annotations

import pytest

from cluster.catalogue.types import catalogue


@pytest.mark.parametrize("name", catalogue().gpus)
def test_watts_and_price_of_a_card_have_a_source_a_year_and_a_confidence(name: str) -> None:
    card = catalogue().gpus[name]
    for source, year, confidence in (
        (card.watts_source, card.watts_year, card.watts_confidence),
        (card.price_source, card.price_year, card.price_confidence),
    ):
        assert len(source) > 10
        assert 2018 <= year <= 2026
        assert confidence in ("low", "medium", "high")


@pytest.mark.parametrize("name", catalogue().gpus)
def test_no_card_draws_more_than_its_limit_and_where_the_limit_is_taken_for_the_draw_it_is(name: str) -> None:
    card = catalogue().gpus[name]
    assert 0 < card.idle_watts < card.active_watts <= card.limit_watts
    if card.watts_source.startswith(("TDP", "power limit")):
        assert card.active_watts == card.limit_watts
        assert card.watts_confidence == "low"


@pytest.mark.parametrize("name", catalogue().gpus)
def test_a_price_that_was_not_collected_is_of_low_confidence(name: str) -> None:
    card = catalogue().gpus[name]
    assert (card.price_confidence == "low") == ("not collected" in card.price_source)
