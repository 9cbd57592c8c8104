"""What must hold of every batch, by the models computed in numpy and by what vLLM's runner did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from tests.support.tiny_llama import DRAFT, TARGET, TinyLlama, tokenizer
from tests.support.v2_on_cpu.engine import Ask, Batch

PROMPTS = ("abcabcabcabcabcabc", "Hello there, how are you", "the end of the world is the end", "x y z x y z x y")


def asks(*ks: int | str, max_tokens: int = 12) -> list[Ask]:
    """A request for each k, each with another prompt."""
    return [Ask(prompt, k, max_tokens) for prompt, k in zip(PROMPTS, ks, strict=False)]  # type: ignore[arg-type]


def ids(text: str) -> list[int]:
    return list(tokenizer().encode(text).ids)


def greedy(model: TinyLlama, tokens: Sequence[int], count: int) -> list[int]:
    """The model's own continuation, in double precision."""
    text = list(tokens)
    for _ in range(count):
        text.append(int(model.logits(text)[-1].argmax()))
    return text[len(tokens) :]


def check_answers(requests: Sequence[Ask], batch: Batch) -> None:
    """Every token is the target's most likely one."""
    for ask, reply in zip(requests, batch.replies, strict=True):
        assert reply.token_ids == greedy(TARGET, ids(ask.prompt), len(reply.token_ids)), ask
        if ask.abort_after is None and not ask.stop:
            assert len(reply.token_ids) == ask.max_tokens, ask


def check_records(batch: Batch) -> None:
    """Our record of each step says what the runner verified and accepted.

    With asynchronous scheduling a request may be in one more step after its end, whose output is thrown away.
    """
    for place, reply in enumerate(batch.replies):
        ours = [(record["drafted"], record["accepted"]) for record in reply.records]
        runners = batch.verified(place)
        assert ours == runners[: len(ours)], place
        assert len(runners) - len(ours) in (0, 1), place
        assert sum(record["tokens"] for record in reply.records) == len(reply.token_ids), place


def proposals(requests: Sequence[Ask], batch: Batch, place: int, done: int = 0) -> Iterator[tuple[int, list[int]]]:
    """Yield (tokens of the answer so far, the drafts after them that were verified) for each step of a request."""
    steps = [step for step in batch.steps if place in step.scheduled]
    for step, following in pairwise(steps):
        if place in step.verified:
            done += step.verified[place][1] + 1
            drafts = step.proposed.get(place, [])[: following.drafts.get(place, 0)]
            if drafts and done < requests[place].max_tokens:
                yield done, drafts


def check_drafts(
    requests: Sequence[Ask], batch: Batch, places: Sequence[int] | None = None, before: Sequence[int] = ()
) -> Iterator[int]:
    """Every draft that is verified is what the draft model says after the whole text so far; yields their number.

    Args:
        requests: of the batch.
        batch: what came of them.
        places: whose drafts; None: all.
        before: tokens of each answer before the batch's first step.
    """
    for place in range(len(requests)) if places is None else places:
        ask, tokens = requests[place], batch.replies[place].token_ids
        for done, drafts in proposals(requests, batch, place, before[place] if before else 0):
            assert drafts == greedy(DRAFT, ids(ask.prompt) + tokens[:done], len(drafts)), (place, done)
            yield len(drafts)
