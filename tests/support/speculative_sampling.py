"""Lossless speculative sampling in plain Python: what an engine's output must be distributed as, in exact fractions.

The algorithm is Leviathan et al. 2023 (arXiv:2211.17192, algorithm 1) and Chen et al. 2023 (arXiv:2302.01318, algorithm
2): a drafted token x is accepted with probability min(1, p(x)/q(x)); the first rejected one is replaced by a sample of
norm(max(p - q, 0)); when all are accepted, one more token is sampled from p.

`verify` is the algorithm on given random numbers. `step_distribution` and `output_distribution` enumerate everything
that it may do, with the probability of each, so that a test of them samples nothing and has no tolerance.

n-gram lookup and greedy decoding are the same algorithm on one-hot distributions: see `one_hot` and `greedy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

Distribution = tuple[Fraction, ...]
"""Probability of each token."""
Model = Callable[[tuple[int, ...]], Distribution]
"""The next token's distribution after these tokens."""


@dataclass(frozen=True, slots=True)
class Step:
    """One verification of a request: what was drafted, how much of it was accepted, and what came out."""

    drafted: tuple[int, ...]
    accepted: int
    tokens: tuple[int, ...]
    """The accepted drafts, then one token of the target's own."""


History = tuple[Step, ...]
DraftMore = Callable[[History, tuple[int, ...]], bool]
"""Whether to draft one more token, after these steps of the request and these drafts of the step at hand. The token
that would be drafted next is not among its arguments: `output_distribution` shows with `keep` what happens if it is."""


def up_to(k: int) -> DraftMore:
    """Draft k tokens in each step."""
    return lambda history, drafted: len(drafted) < k


def one_hot(token: int, vocabulary: int) -> Distribution:
    """A deterministic draft as a distribution: an n-gram match, or the draft model's most likely token."""
    return tuple(Fraction(int(other == token)) for other in range(vocabulary))


def greedy(distribution: Distribution) -> Distribution:
    """The distribution at temperature 0. Of equally likely tokens the first one is taken, as `argmax` does."""
    return one_hot(distribution.index(max(distribution)), len(distribution))


def exact(weights: Sequence[float]) -> Distribution:
    """Floats as a distribution whose sum is exactly 1."""
    fractions = [Fraction(weight) for weight in weights]
    total = sum(fractions)
    return tuple(weight / total for weight in fractions)


def acceptance(p: Distribution, q: Distribution, token: int) -> Fraction:
    """Probability that a token drafted from q is accepted, min(1, p/q)."""
    if q[token] == 0:
        raise ValueError(f"token {token} cannot have been drafted: its draft probability is 0")
    return min(Fraction(1), p[token] / q[token])


def residual(p: Distribution, q: Distribution) -> Distribution:
    """What a rejected draft is replaced from: norm(max(p - q, 0)). Where p = q nothing is rejected."""
    rest = [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]
    total = sum(rest)
    return tuple(weight / total for weight in rest)


def pick(distribution: Distribution, uniform: Fraction) -> int:
    """The token at which the cumulated distribution passes `uniform`, a number in [0, 1)."""
    below = Fraction(0)
    for token, probability in enumerate(distribution):
        below += probability
        if uniform < below:
            return token
    raise ValueError(f"no token at {uniform}: the distribution sums to {below}")


def verify(
    drafted: Sequence[int], q: Sequence[Distribution], p: Sequence[Distribution], uniforms: Sequence[Fraction]
) -> Step:
    """One step on k drafts: k draft distributions, k+1 target distributions, k+1 random numbers in [0, 1).

    The first k random numbers decide on the drafts, the last one picks the token that replaces or follows them.
    """
    k = len(drafted)
    if not (len(q) == k and len(p) == len(uniforms) == k + 1):
        raise ValueError(
            f"{k} drafts need {k} of q, {k + 1} of p and uniforms; got {len(q)}, {len(p)}, {len(uniforms)}"
        )
    for position, token in enumerate(drafted):
        # Strictly below: a token that the target never gives is then never accepted, not even at 0.
        if not uniforms[position] < acceptance(p[position], q[position], token):
            replacement = pick(residual(p[position], q[position]), uniforms[k])
            return Step(tuple(drafted), position, (*drafted[:position], replacement))
    return Step(tuple(drafted), k, (*drafted, pick(p[k], uniforms[k])))


def step_distribution(
    target: Model,
    draft: Model,
    history: History,
    draft_more: DraftMore,
    keep: DraftMore = lambda history, drafted: True,
) -> dict[Step, Fraction]:
    """Every outcome of one step after `history`, with its probability.

    `keep` sees the drafts of the step with the newest one, and can still take that one back. That does no harm where
    drafts are deterministic, and is not lossless where they are sampled.
    """
    past = tokens_of(history)
    outcomes: dict[Step, Fraction] = {}

    def add(drafted: tuple[int, ...], accepted: int, last: Distribution, probability: Fraction) -> None:
        for token, chance in enumerate(last):
            if chance * probability:
                step = Step(drafted, accepted, (*drafted[:accepted], token))
                outcomes[step] = outcomes.get(step, Fraction(0)) + chance * probability

    for drafted, probability in _drafts(draft, history, draft_more, keep):
        for position, token in enumerate(drafted):
            p, q = target(past + drafted[:position]), draft(past + drafted[:position])
            accept = acceptance(p, q, token)
            if accept < 1:
                add(drafted, position, residual(p, q), probability * (1 - accept))
            probability *= accept
        add(drafted, len(drafted), target(past + drafted), probability)
    return outcomes


def _drafts(
    draft: Model, history: History, draft_more: DraftMore, keep: DraftMore, drafted: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[int, ...], Fraction]]:
    """Every sequence that may be drafted in a step, with its probability."""
    if not draft_more(history, drafted):
        yield drafted, Fraction(1)
        return
    for token, chance in enumerate(draft(tokens_of(history) + drafted)):
        if not chance:
            continue
        if not keep(history, (*drafted, token)):
            yield drafted, chance
            continue
        for longer, probability in _drafts(draft, history, draft_more, keep, (*drafted, token)):
            yield longer, chance * probability


def output_distribution(
    target: Model,
    draft: Model,
    length: int,
    draft_more: DraftMore,
    keep: DraftMore = lambda history, drafted: True,
    history: History = (),
) -> dict[tuple[int, ...], Fraction]:
    """Joint distribution of the first `length` tokens of a request, over as many steps as they take."""
    tokens = tokens_of(history)
    if len(tokens) >= length:
        return {tokens[:length]: Fraction(1)}
    joint: dict[tuple[int, ...], Fraction] = {}
    for step, probability in step_distribution(target, draft, history, draft_more, keep).items():
        rest = output_distribution(target, draft, length, draft_more, keep, (*history, step))
        for sequence, chance in rest.items():
            joint[sequence] = joint.get(sequence, Fraction(0)) + probability * chance
    return joint


def autoregressive_distribution(
    target: Model, length: int, past: tuple[int, ...] = ()
) -> dict[tuple[int, ...], Fraction]:
    """Joint distribution of the first `length` tokens without speculation, by the chain rule."""
    if len(past) == length:
        return {past: Fraction(1)}
    return {
        sequence: chance * probability
        for token, chance in enumerate(target(past))
        if chance
        for sequence, probability in autoregressive_distribution(target, length, (*past, token)).items()
    }


def tokens_of(history: History) -> tuple[int, ...]:
    """What the request has put out in these steps."""
    return tuple(token for step in history for token in step.tokens)


def overlap(p: Distribution, q: Distribution) -> Fraction:
    """Probability that a draft from q is accepted: sum of min(p, q) (Leviathan et al., lemma 3.3, theorem 3.5)."""
    return sum((min(a, b) for a, b in zip(p, q, strict=True)), Fraction(0))


def expected_tokens(outcomes: Mapping[Step, Fraction]) -> Fraction:
    """Mean number of tokens of a step."""
    return sum((len(step.tokens) * probability for step, probability in outcomes.items()), Fraction(0))


def expected_tokens_iid(alpha: Fraction, k: int) -> Fraction:
    """Mean number of tokens of a step on k drafts that are accepted with probability alpha each, independently.

    1 + alpha + ... + alpha^k, which is (1 - alpha^(k+1)) / (1 - alpha) where alpha < 1 (Leviathan et al., equation 1).
    """
    return sum((alpha**i for i in range(k + 1)), Fraction(0))
