"""In which order the requests of an engine get its seats."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from serve_app.fairness.claims import ANYBODY, Claim
from serve_app.fairness.places import kept
from serve_app.fairness.seats import FIRST, seating

LARGE, SMALL, BATCH = Claim("large"), Claim("small"), Claim("large", batch=True)


def several(claim: Claim, count: int, name: str) -> list[tuple[str, Claim]]:
    return [(f"{name} {number}", claim) for number in range(count)]


def test_a_newcomer_gets_a_kept_seat_before_all_that_wait() -> None:
    order = seating(several(LARGE, 14, "seated"), [*several(LARGE, 5, "waiting"), ("small", SMALL)], 16, {"large"})
    assert order.ranks["small"] == FIRST
    assert min(order.ranks[f"waiting {number}"] for number in range(5)) > FIRST
    assert order.seats == 15


def test_one_key_alone_gets_all_seats_but_the_kept_ones() -> None:
    assert seating([], several(LARGE, 20, "waiting"), 16, set()).seats == 14


def test_a_key_over_its_share_gets_no_kept_seat_even_if_it_holds_none() -> None:
    seated = several(Claim("third"), 14, "third")
    assert seating(seated, [("large", LARGE)], 16, {"large"}).seats == 14
    assert seating(seated, [("large", LARGE)], 16, set()).seats == 15


def test_the_first_requests_of_a_key_go_before_its_further_ones() -> None:
    order = seating([], [*several(LARGE, 6, "large"), *several(SMALL, 3, "small")], 16, set())
    assert [order.ranks[f"large {number}"] for number in range(6)] == [0, 0, 1, 1, 1, 1]
    assert [order.ranks[f"small {number}"] for number in range(3)] == [0, 0, 1]


def test_batch_goes_last_and_leaves_a_quarter() -> None:
    order = seating(several(BATCH, 10, "seated"), [*several(BATCH, 5, "waiting"), ("large", LARGE)], 16, set())
    assert order.ranks["large"] < order.ranks["waiting 0"]
    assert order.seats == 12  # ten, the one in a hurry, and one more of batch
    assert seating(several(BATCH, 10, "seated"), several(BATCH, 5, "waiting"), 16, set()).seats == 12


def test_requests_of_nobody_in_particular_take_every_seat() -> None:
    order = seating([], several(ANYBODY, 20, "any"), 16, set())
    assert set(order.ranks.values()) == {FIRST}
    assert order.seats == 16


def test_whoever_has_a_seat_keeps_it() -> None:
    assert seating(several(LARGE, 16, "seated"), [], 16, {"large"}).seats == 16


CLAIMS = st.sampled_from([LARGE, SMALL, BATCH, Claim("third"), ANYBODY])


@given(st.lists(CLAIMS, max_size=16), st.lists(CLAIMS, max_size=20), st.sets(st.sampled_from(["large", "small"])))
def test_a_key_under_its_share_that_holds_few_seats_never_waits_for_one_unless_all_are_taken_by_such(
    seated: list[Claim], waiting: list[Claim], over: set[str]
) -> None:
    seats = 16
    sitting = [(f"seated {number}", claim) for number, claim in enumerate(seated)]
    standing = [(f"waiting {number}", claim) for number, claim in enumerate(waiting)]
    order = seating(sitting, standing, seats, over)
    assert len(seated) <= order.seats <= seats
    first = sum(order.ranks[request_id] == FIRST for request_id, _ in standing)
    assert order.seats >= min(seats, len(seated) + first)
    # Whoever is not first leaves the kept seats.
    if not first:
        assert order.seats <= max(len(seated), seats - kept(seats))
