"""How many tokens a request has taken, whatever becomes of it."""

from __future__ import annotations

from serve_app.api.request_record import TokensTaken


def test_each_token_is_told_once() -> None:
    told: list[int] = []
    tokens = TokensTaken(more=told.append)
    for prompt, completion in ((0, 0), (5, 0), (5, 0), (5, 2), (5, 7)):
        tokens.saw(prompt, completion)
    assert told == [5, 2, 5]


def test_an_answer_that_begins_anew_elsewhere_is_counted_from_where_it_was() -> None:
    told: list[int] = []
    tokens = TokensTaken(more=told.append)
    for prompt, completion in ((5, 3), (5, 0), (5, 2), (5, 4)):
        tokens.saw(prompt, completion)
    assert told == [8, 1]
