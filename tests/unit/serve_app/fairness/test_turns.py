"""Whose turn it is where requests wait for places."""

from __future__ import annotations

from serve_app.fairness.claims import Claim
from serve_app.fairness.turns import Turns

LARGE, SMALL, BATCH = Claim("large"), Claim("small"), Claim("small", batch=True)


def turns_of(turns: Turns[str], places: int) -> list[str]:
    """Let go all who may, in their order."""
    gone = []
    while (waiter := turns.next(places)) is not None:
        gone.append(waiter)
    return gone


def test_the_requests_of_one_key_go_in_the_order_in_which_they_came() -> None:
    turns: Turns[str] = Turns()
    for name in "abc":
        turns.wait(LARGE, name)
    assert turns_of(turns, 8) == ["a", "b", "c"]


def test_keys_take_turns_however_many_requests_one_of_them_sent_before() -> None:
    turns: Turns[str] = Turns()
    for number in range(4):
        turns.wait(LARGE, f"large {number}")
    for number in range(2):
        turns.wait(SMALL, f"small {number}")
    assert turns_of(turns, 64) == ["large 0", "small 0", "large 1", "small 1", "large 2", "large 3"]


def test_a_key_that_has_filled_its_part_waits_and_a_newcomer_goes_at_once() -> None:
    turns: Turns[str] = Turns()
    for number in range(10):
        turns.wait(LARGE, f"large {number}")
    assert turns_of(turns, 8) == [f"large {number}" for number in range(7)]
    turns.wait(SMALL, "small")
    assert turns_of(turns, 8) == ["small"]
    assert len(turns) == 3


def test_the_next_one_goes_when_a_place_is_freed() -> None:
    turns: Turns[str] = Turns()
    for number in range(3):
        turns.wait(LARGE, str(number))
    assert turns_of(turns, 2) == ["0"]
    turns.holders.free(LARGE)
    assert turns_of(turns, 2) == ["1"]


def test_batch_requests_go_last_even_those_of_the_key_with_the_fewest_places() -> None:
    turns: Turns[str] = Turns()
    turns.wait(BATCH, "batch")
    for number in range(3):
        turns.wait(LARGE, f"large {number}")
    assert turns_of(turns, 64) == ["large 0", "large 1", "large 2", "batch"]


def test_whoever_has_left_is_passed_over() -> None:
    turns: Turns[str] = Turns()
    for name in "abc":
        turns.wait(LARGE, name)
    turns.leave(LARGE, "a")
    turns.leave(SMALL, "b")  # nobody of that name waits there
    assert turns_of(turns, 8) == ["b", "c"]


def test_nobody_goes_where_there_is_no_place() -> None:
    turns: Turns[str] = Turns()
    turns.wait(SMALL, "a")
    assert turns.next(0) is None
