"""Which tokens of a step were drafted and accepted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from serve_app.engine.draft_flags import DraftFlags


def test_all_tokens_of_a_step_but_the_last_were_accepted() -> None:
    flags = DraftFlags()

    assert [flags.step(tokens, None) for tokens in (1, 6, 0, 3)] == [0, 5, 0, 2]
    assert flags.accepted == 7


def test_the_last_token_of_a_step_that_was_cut_is_an_accepted_draft() -> None:
    # Five of five drafts accepted, and the second of them ended the answer: the sampled token was cut with the rest.
    flags = DraftFlags()
    flags.step(1, None)

    assert flags.step(2, 5) == 2


def test_a_last_step_without_drafts_has_none_accepted() -> None:
    flags = DraftFlags()
    flags.step(6, None)

    assert flags.step(1, 5) == 0


@given(
    steps=st.lists(st.integers(0, 5), min_size=1, max_size=30),
    kept=st.integers(0, 1000),
)
def test_flags_are_exact_wherever_the_engine_cuts_the_last_step(steps: list[int], kept: int) -> None:
    """`steps`: accepted drafts of each; the last step keeps only some of its tokens."""
    flags = DraftFlags()
    *before, last = steps
    for accepted in before:
        assert flags.step(accepted + 1, None) == accepted
    tokens = kept % (last + 1) + 1

    assert flags.step(tokens, sum(steps)) == min(tokens, last)
    assert flags.accepted <= sum(steps)
