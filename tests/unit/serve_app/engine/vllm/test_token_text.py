"""Token texts add up to the engine's text, whatever the engine holds back, cuts or releases late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

from hypothesis import example, given
from hypothesis import strategies as st

from serve_app.engine.interface import Token
from serve_app.engine.vllm.token_text import TokenTexts

PIECES = st.one_of(
    st.sampled_from(["", " the", "é", "電", "力", "⚡", "👩‍🔬", "\n\n", "</s", "top"]), st.text(max_size=4)
)


@dataclass(frozen=True)
class Run:
    """What an engine does with a request: a token's piece per id, how many ids a step, and how it releases text."""

    pieces: list[str]
    step_sizes: list[int]
    held_back: list[int]
    """Characters that the engine keeps back after each step."""
    cut_at: int | None
    """Offset at which a stop string cuts the text; None: it ends with the last piece."""


@st.composite
def runs(draw: st.DrawFn) -> Run:
    pieces = draw(st.lists(PIECES, min_size=1, max_size=20))
    sizes: list[int] = []
    while sum(sizes) < len(pieces):
        sizes.append(draw(st.integers(1, min(5, len(pieces) - sum(sizes)))))
    held = draw(st.lists(st.integers(0, 8), min_size=len(sizes), max_size=len(sizes)))
    whole = len("".join(pieces))
    return Run(pieces, sizes, held, draw(st.none() | st.integers(0, whole)))


def decode_by_id(pieces: list[str]) -> Callable[[int], str]:
    return lambda token_id: pieces[token_id]


def play(run: Run) -> tuple[str, list[list[Token]]]:
    """The engine's whole text, and the tokens that each step gave."""
    whole = "".join(run.pieces)
    truth = whole if run.cut_at is None else whole[: run.cut_at]
    texts = TokenTexts(decode_by_id(run.pieces))
    pushed, decoded, sent = 0, "", 0
    out: list[list[Token]] = []
    for number, size in enumerate(run.step_sizes):
        for token_id in range(pushed, pushed + size):
            texts.push(token_id, -0.25 * token_id, token_id % 3 == 1, token_id % 5)
            decoded += run.pieces[token_id]
        pushed += size
        finished = number == len(run.step_sizes) - 1
        until = len(truth) if finished else max(sent, min(len(truth), len(decoded) - run.held_back[number]))
        out.append(texts.release(truth[sent:until], finished))
        sent = until
    return truth, out


@given(runs())
@example(Run(["He", "", "llo", " 👩‍🔬"], [1, 2, 1], [2, 1, 0], None))
@example(Run(["stop", " it"], [1, 1], [4, 0], 0))
def test_token_texts_add_up_to_the_engines_text_with_one_token_per_id_in_order(run: Run) -> None:
    truth, steps = play(run)
    tokens = [token for step in steps for token in step]
    assert "".join(token.text for token in tokens) == truth
    assert [token.token_id for token in tokens] == list(range(len(run.pieces)))


@given(runs())
def test_logprobs_accepted_flags_and_depths_stay_with_their_ids(run: Run) -> None:
    _, steps = play(run)
    for token in (token for step in steps for token in step):
        assert token.logprob == -0.25 * token.token_id
        assert token.spec_accepted is (token.token_id % 3 == 1)
        assert token.spec_k == token.token_id % 5


@given(runs())
def test_without_hold_back_each_token_has_exactly_its_piece_in_the_first_step_with_a_whole_character(run: Run) -> None:
    prompt = Run(run.pieces, run.step_sizes, [0] * len(run.step_sizes), None)
    _, steps = play(prompt)
    assert [token.text for step in steps for token in step] == run.pieces
    ends = list(accumulate(run.step_sizes))
    given = list(accumulate(len(step) for step in steps))
    for end, so_far in zip(ends[:-1], given[:-1], strict=True):
        assert so_far == max((position for position in range(1, end + 1) if run.pieces[position - 1]), default=0)
    assert given[-1] == ends[-1]


@given(runs())
def test_every_step_but_the_last_ends_with_a_token_that_has_text(run: Run) -> None:
    # There an answer can be resumed: a decoder cannot begin within a character.
    _, steps = play(run)
    assert all(run.pieces[step[-1].token_id] for step in steps[:-1] if step)


def test_a_token_is_held_until_the_last_character_of_its_piece_is_released() -> None:
    texts = TokenTexts(decode_by_id(["abc", "d"]))
    texts.push(0, None, False)
    assert texts.release("ab", finished=False) == []
    texts.push(1, None, True)
    assert texts.release("c", finished=False) == [Token("abc", 0, None, False)]
    assert texts.release("d", finished=True) == [Token("d", 1, None, True)]


def test_what_a_stop_string_cuts_off_leaves_empty_tokens_and_a_shortened_one() -> None:
    texts = TokenTexts(decode_by_id(["one", " two", " three"]))
    for token_id in range(3):
        texts.push(token_id, None, False)
    assert [token.text for token in texts.release("one t", finished=True)] == ["one", " t", ""]


def test_text_beyond_the_last_piece_goes_to_the_last_token() -> None:
    # An engine flushes a dangling half character as a replacement character when the answer ends.
    texts = TokenTexts(decode_by_id(["a", ""]))
    texts.push(0, None, False)
    texts.push(1, None, False)
    assert [token.text for token in texts.release("a\ufffd", finished=True)] == ["a", "\ufffd"]
