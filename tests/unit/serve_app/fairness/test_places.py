"""Bounded places, of which some are kept for keys that hold few."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.fairness.claims import ANYBODY, Claim
from serve_app.fairness.places import Holders, kept, open_to

LARGE, SMALL, BATCH = Claim("large"), Claim("small"), Claim("large", batch=True)


@pytest.mark.parametrize(("places", "expected"), [(0, 0), (1, 0), (2, 1), (8, 1), (16, 2), (32, 4), (128, 16)])
def test_an_eighth_is_kept_and_at_least_one_of_several(places: int, expected: int) -> None:
    assert kept(places) == expected


def fill(holders: Holders, claim: Claim, places: int) -> int:
    """Take places one by one until no more may be taken; return how many were."""
    taken = 0
    while holders.may_take(claim, places):
        holders.take(claim)
        taken += 1
    return taken


def test_one_key_takes_all_but_the_kept_places_and_another_one_those() -> None:
    holders = Holders()
    assert fill(holders, LARGE, 32) == 28
    assert fill(holders, SMALL, 32) == 4
    assert holders.all == 32


def test_a_key_with_few_places_may_take_a_kept_one_and_one_with_as_many_as_are_kept_may_not() -> None:
    assert [open_to(SMALL, held, 32) for held in (0, 3, 4)] == [32, 32, 28]


def test_a_batch_request_leaves_a_quarter_and_others_take_it() -> None:
    holders = Holders()
    assert fill(holders, BATCH, 32) == 24
    assert fill(holders, LARGE, 32) == 4  # its key has 24 places already
    assert fill(holders, SMALL, 32) == 4


def test_where_nobody_has_a_key_every_place_may_be_taken() -> None:
    assert fill(Holders(), ANYBODY, 32) == 32


def test_of_one_place_nothing_is_kept() -> None:
    assert (open_to(LARGE, 0, 1), open_to(BATCH, 0, 1)) == (1, 1)


def test_a_request_of_several_sequences_needs_room_for_all() -> None:
    holders = Holders()
    holders.take(LARGE, 26)
    assert holders.may_take(LARGE, 32, 2)
    assert not holders.may_take(LARGE, 32, 3)


def test_a_request_of_more_sequences_than_are_kept_gets_no_kept_place() -> None:
    holders = Holders()
    fill(holders, LARGE, 320)
    assert holders.all == 280
    assert not holders.may_take(SMALL, 320, 41)
    assert holders.may_take(SMALL, 320, 40)
    holders.take(Claim("third"), 1)
    assert not holders.may_take(SMALL, 320, 40)


@given(
    st.lists(st.tuples(st.sampled_from([LARGE, SMALL, BATCH, Claim("third")]), st.integers(1, 3)), max_size=60),
    st.integers(2, 64),
)
def test_places_are_never_given_twice_and_what_is_freed_is_free_again(
    wishes: list[tuple[Claim, int]], places: int
) -> None:
    holders, taken = Holders(), []
    for claim, wanted in wishes:
        if holders.may_take(claim, places, wanted):
            holders.take(claim, wanted)
            taken.append((claim, wanted))
    assert holders.all == sum(wanted for _, wanted in taken) <= places
    for claim, wanted in taken:
        holders.free(claim, wanted)
    assert [holders.all, *(holders.of(claim) for claim in (LARGE, SMALL))] == [0, 0, 0]
