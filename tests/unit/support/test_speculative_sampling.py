"""The reference is lossless, in fractions; and what is not lossless is told apart from it."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import product
from typing import TypeVar
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.speculative_sampling import (
    Distribution,
    DraftMore,
    History,
    Model,
    Step,
    acceptance,
    autoregressive_distribution,
    exact,
    expected_tokens,
    expected_tokens_iid,
    greedy,
    one_hot,
    output_distribution,
    overlap,
    pick,
    residual,
    step_distribution,
    up_to,
    verify,
)

DEPTH_LIMIT = 3
T = TypeVar("T")


def of(*weights: int) -> Distribution:
    """(1, 3) is 1/4 and 3/4."""
    return tuple(Fraction(weight, sum(weights)) for weight in weights)


def always(distribution: Distribution) -> Model:
    return lambda past: distribution


def distributions(vocabulary: int) -> st.SearchStrategy[Distribution]:
    weights = st.lists(st.integers(0, 4), min_size=vocabulary, max_size=vocabulary)
    return weights.filter(any).map(lambda drawn: of(*drawn))


def chosen_by(table: list[T]) -> Callable[..., T]:
    """A function of everything it is given: an arbitrary but fixed entry of the table."""
    return lambda *arguments: table[crc32(repr(arguments).encode()) % len(table)]


@st.composite
def model_pairs(draw: st.DrawFn) -> tuple[Model, Model]:
    """A target and a draft of one vocabulary, each an arbitrary function of all tokens before."""
    tables = st.lists(distributions(draw(st.integers(2, 3))), min_size=1, max_size=5)
    return chosen_by(draw(tables)), chosen_by(draw(tables))


@st.composite
def depths(draw: st.DrawFn) -> DraftMore:
    """Any rule of the past, up to a limit: a fixed K, `auto`, a `tau` that stops drafting, K = 0 now and then."""
    rule = chosen_by(draw(st.lists(st.booleans(), min_size=1, max_size=8)))
    limit = draw(st.integers(0, DEPTH_LIMIT))
    return lambda history, drafted: len(drafted) < limit and rule(history, drafted)


@given(models=model_pairs(), k=st.integers(0, DEPTH_LIMIT))
def test_the_first_token_is_the_targets_whatever_is_drafted(models: tuple[Model, Model], k: int) -> None:
    target, draft = models
    assert output_distribution(target, draft, 1, up_to(k)) == autoregressive_distribution(target, 1)


@settings(max_examples=40)
@given(models=model_pairs(), k=st.integers(0, 2), length=st.integers(2, 3))
def test_the_first_tokens_together_are_the_targets_whatever_is_drafted(
    models: tuple[Model, Model], k: int, length: int
) -> None:
    target, draft = models
    assert output_distribution(target, draft, length, up_to(k)) == autoregressive_distribution(target, length)


@settings(max_examples=40)
@given(models=model_pairs(), draft_more=depths())
def test_a_depth_that_depends_on_the_past_in_any_way_changes_nothing(
    models: tuple[Model, Model], draft_more: DraftMore
) -> None:
    target, draft = models
    assert output_distribution(target, draft, 2, draft_more) == autoregressive_distribution(target, 2)


@given(models=model_pairs(), draft_more=depths())
def test_the_outcomes_of_a_step_are_all_there_is(models: tuple[Model, Model], draft_more: DraftMore) -> None:
    outcomes = step_distribution(*models, (), draft_more)
    assert sum(outcomes.values()) == 1
    for step in outcomes:
        assert len(step.tokens) == step.accepted + 1
        assert step.tokens[:-1] == step.drafted[: step.accepted]


def test_a_tau_that_stops_drafting_after_a_bad_step_really_stops_it() -> None:
    def tau(history: History, drafted: tuple[int, ...]) -> bool:
        rates = [Fraction(step.accepted, len(step.drafted)) for step in history if step.drafted]
        return len(drafted) < 2 and all(rate >= Fraction(1, 2) for rate in rates)

    target, draft = always(of(1, 3)), always(of(3, 1))
    bad, good = Step((0, 0), 0, (1,)), Step((1, 0), 1, (1, 1))
    assert {len(step.drafted) for step in step_distribution(target, draft, (bad,), tau)} == {0}
    assert {len(step.drafted) for step in step_distribution(target, draft, (good,), tau)} == {2}
    assert output_distribution(target, draft, 3, tau) == autoregressive_distribution(target, 3)


@given(models=model_pairs(), draft_more=depths())
def test_a_deterministic_draft_may_even_be_dropped_after_it_was_seen(
    models: tuple[Model, Model], draft_more: DraftMore
) -> None:
    # An n-gram match, or the draft model's most likely token: seeing it tells nothing that the past did not.
    target, model = models
    draft: Model = lambda past: greedy(model(past))  # noqa: E731
    output = output_distribution(target, draft, 2, up_to(2), keep=draft_more)
    assert output == autoregressive_distribution(target, 2)


def test_dropping_a_sampled_draft_after_it_was_seen_is_not_lossless() -> None:
    # Drafts of token 1 are dropped, as by a threshold of 1/2 on the drafted token's own probability.
    target, draft = always(of(1, 1)), always(of(3, 1))
    output = output_distribution(target, draft, 1, up_to(1), keep=lambda history, drafted: drafted[-1] == 0)
    # 0: drafted (3/4) and accepted (2/3), or not drafted (1/4) and sampled from p (1/2).
    assert output == {(0,): Fraction(5, 8), (1,): Fraction(3, 8)}


@given(p=distributions(3), q=distributions(3))
def test_sampled_drafts_may_be_verified_as_if_they_were_certain_and_are_accepted_less_often(
    p: Distribution, q: Distribution
) -> None:
    # What an engine does that samples its drafts and has lost their probabilities.
    output, accepted = [Fraction(0)] * 3, Fraction(0)
    for token, drafted in enumerate(q):
        for step, probability in step_distribution(always(p), always(one_hot(token, 3)), (), up_to(1)).items():
            output[step.tokens[0]] += drafted * probability
            accepted += drafted * probability * step.accepted
    assert tuple(output) == p
    assert accepted == sum(a * b for a, b in zip(p, q, strict=True)) <= overlap(p, q)


def test_certain_drafts_that_are_verified_as_if_they_were_sampled_are_not_lossless() -> None:
    # The most likely token of (3/4, 1/4) is always drafted, and accepted with probability (1/2) / (3/4).
    p, q = of(1, 1), of(3, 1)
    tokens = [verify((0,), [q], [p, p], [Fraction(i, 3), Fraction(0)]).tokens[0] for i in range(3)]
    assert tokens == [0, 0, 1]


def test_replacing_a_rejected_draft_from_p_is_not_lossless() -> None:
    p, q = of(1, 3), of(3, 1)
    rejected = 1 - overlap(p, q)
    output = [min(a, b) + rejected * a for a, b in zip(p, q, strict=True)]
    assert output == [Fraction(3, 8), Fraction(5, 8)]
    assert output_distribution(always(p), always(q), 1, up_to(1)) == {(0,): Fraction(1, 4), (1,): Fraction(3, 4)}


@given(p=distributions(3), q=distributions(3), k=st.integers(0, DEPTH_LIMIT))
def test_a_step_gives_as_many_tokens_as_the_formula_says_when_acceptance_is_iid(
    p: Distribution, q: Distribution, k: int
) -> None:
    alpha = overlap(p, q)
    expected = expected_tokens(step_distribution(always(p), always(q), (), up_to(k)))
    assert expected == expected_tokens_iid(alpha, k)
    if alpha < 1:
        assert expected == (1 - alpha ** (k + 1)) / (1 - alpha)
    else:
        assert expected == k + 1


@given(p=distributions(3), q=distributions(3))
def test_a_draft_is_accepted_with_the_probability_that_the_distributions_share(
    p: Distribution, q: Distribution
) -> None:
    outcomes = step_distribution(always(p), always(q), (), up_to(1))
    accepted = sum((probability for step, probability in outcomes.items() if step.accepted), Fraction(0))
    assert accepted == overlap(p, q) == 1 - sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2


@given(target=distributions(4), token=st.integers(0, 3))
def test_a_certain_draft_is_accepted_as_often_as_the_target_says_it(target: Distribution, token: int) -> None:
    assert overlap(target, one_hot(token, 4)) == target[token]


@given(models=model_pairs(), k=st.integers(0, DEPTH_LIMIT))
def test_greedy_decoding_accepts_the_drafts_that_agree_and_corrects_the_first_that_does_not(
    models: tuple[Model, Model], k: int
) -> None:
    target: Model = lambda past: greedy(models[0](past))  # noqa: E731
    draft: Model = lambda past: greedy(models[1](past))  # noqa: E731
    ((step, probability),) = step_distribution(target, draft, (), up_to(k)).items()
    assert probability == 1
    ((own, _),) = autoregressive_distribution(target, k + 1).items()
    agreeing = next((i for i in range(k) if step.drafted[i] != own[i]), k)
    assert (step.accepted, step.tokens) == (agreeing, own[: agreeing + 1])


def test_random_numbers_give_each_outcome_as_often_as_the_enumeration_says() -> None:
    # The outcome is constant between multiples of 1/12: all thresholds (1/2, 2/3, cumulated p and residuals) are such.
    p, q = of(2, 1, 1), of(1, 2, 1)
    grid = [Fraction(2 * i + 1, 24) for i in range(12)]
    counted: dict[Step, Fraction] = {}
    for drafted in product(range(3), repeat=2):
        for uniforms in product(grid, repeat=3):
            step = verify(drafted, [q, q], [p, p, p], uniforms)
            weight = q[drafted[0]] * q[drafted[1]] / len(grid) ** 3
            counted[step] = counted.get(step, Fraction(0)) + weight
    assert counted == step_distribution(always(p), always(q), (), up_to(2))


@pytest.mark.parametrize(
    ("uniforms", "accepted", "tokens"),
    [
        (("0", "0", "0"), 2, (1, 1, 0)),
        (("49/100", "49/100", "99/100"), 2, (1, 1, 2)),
        (("1/2", "0", "0"), 0, (0,)),  # p/q = (1/4) / (1/2): 1/2 is the first number that rejects
        (("0", "1/2", "0"), 1, (1, 0)),
    ],
)
def test_a_step_worked_out_by_hand(uniforms: tuple[str, ...], accepted: int, tokens: tuple[int, ...]) -> None:
    p, q = of(2, 1, 1), of(1, 2, 1)
    step = verify((1, 1), [q, q], [p, p, p], [Fraction(uniform) for uniform in uniforms])
    assert step == Step((1, 1), accepted, tokens)


def test_the_residual_is_what_the_target_has_more_of() -> None:
    assert residual(of(2, 1, 1), of(1, 2, 1)) == of(1, 0, 0)
    assert residual(of(3, 3, 2), of(0, 0, 1)) == of(1, 1, 0)
    # A certain draft: the target without that token.
    assert residual(of(2, 1, 1), one_hot(0, 3)) == of(0, 1, 1)


def test_a_token_that_the_target_never_gives_is_rejected_by_every_random_number() -> None:
    p, q = of(0, 1), of(1, 1)
    assert verify((0,), [q], [p, p], [Fraction(0), Fraction(0)]).tokens == (1,)


def test_picking_follows_the_cumulated_distribution() -> None:
    assert [pick(of(1, 0, 3), Fraction(i, 8)) for i in range(8)] == [0, 0, 2, 2, 2, 2, 2, 2]
    with pytest.raises(ValueError, match="sums to 1/2"):
        pick((Fraction(1, 2),), Fraction(3, 4))


def test_of_equally_likely_tokens_greedy_takes_the_first() -> None:
    assert greedy(of(1, 2, 2)) == of(0, 1, 0)


def test_floats_become_a_distribution_that_sums_to_one() -> None:
    distribution = exact([0.1] * 10)
    assert sum(distribution) == 1
    assert distribution == of(*[1] * 10)


def test_a_draft_that_cannot_have_been_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="token 0 cannot have been drafted"):
        acceptance(of(1, 1), of(0, 1), 0)


def test_verify_says_how_many_distributions_it_needs() -> None:
    with pytest.raises(ValueError, match="1 drafts need 1 of q, 2 of p and uniforms; got 1, 1, 2"):
        verify((0,), [of(1, 1)], [of(1, 1)], [Fraction(0)] * 2)
