"""The measurements on one engine: requests in, figures out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from bench.engine.engines import Ask, Batch, EngineProcess, Reply
from bench.engine.prompts import cycled
from bench.kit.gsm8k import Problem, is_right
from bench.kit.plan import AUTO, MIXED, OFF, Engine, Measurement
from bench.kit.results import Results
from bench.kit.run import NothingToCompareError
from bench.reporting.stats import median, percentile
from router.registry import Tier

Depth = int | Literal["auto"]
ANSWERS: Final = 8
"""Prompts whose greedy answers are compared."""
COMPARED_TOKENS: Final = 48
LOAD_TOKENS: Final = 48
LOAD_PROMPTS: Final = 4
"""At least so many are sent."""
PROMPTS_A_CATEGORY: Final = 8
CHARACTERS_A_TOKEN: Final = 2
"""At least so many has a prompt's token on average, with a real tokenizer."""
GSM8K_BATCH: Final = 32
GSM8K_TOKENS: Final = 320


@dataclass(frozen=True, slots=True)
class Measurer:
    """Measures on engines.

    Args:
        families: prompts by category.
        problems: of GSM8K.
        results: has the answers of engines without speculation, to compare with.
        references: for each drafting engine's key, the engine without speculation.
    """

    families: Mapping[str, Sequence[str]]
    problems: Sequence[Problem]
    results: Results
    references: Mapping[str, Engine]

    def __call__(self, process: EngineProcess, engine: Engine, what: Measurement, limit_s: float) -> dict[str, Any]:
        """Measure; see `Measure`.

        Raises:
            ValueError: there is nothing to ask the entry.
        """
        k_max = engine.entry.speculation.k_max if engine.entry.speculation else 0
        families = self._families(engine)
        if not families:
            raise ValueError(f"max_model_len is {engine.entry.max_model_len}: no prompt fits for sure")
        prompts = interleaved(families)
        match what.kind:
            case "start":
                batch = process.ask([Ask(prompts[0], k=0, max_tokens=1)], timeout_s=limit_s)
                return {"answered": len(batch.replies)}
            case "answers":
                asks = with_depths(prompts[:ANSWERS], what.setting, k_max, COMPARED_TOKENS)
                answers = process.ask(asks, timeout_s=limit_s).token_ids
                return {"token_ids": answers} if what.setting == OFF else self._compared(engine, answers)
            case "load":
                count = max(LOAD_PROMPTS, what.batch)
                sent = cycled(prompts, 0, count)
                asks = with_depths(sent, what.setting, k_max, LOAD_TOKENS)
                batch = process.ask(asks, timeout_s=limit_s, at_once=what.batch)
                return load_figures(batch, what.setting) | energy_figures(batch, engine.tier)
            case "acceptance":
                return acceptance(process, families, k_max, limit_s)
            case "gsm8k":
                asks = [Ask(problem.prompt, k=0, max_tokens=GSM8K_TOKENS) for problem in self.problems]
                replies = process.ask(asks, timeout_s=limit_s, at_once=GSM8K_BATCH).replies
                right = sum(map(is_right, self.problems, (reply.text for reply in replies)))
                return {"right": right, "of": len(replies), "cut": sum(r.finish_reason == "length" for r in replies)}

    def hopeless(self, engine: Engine, what: Measurement) -> bool:
        """Return whether it compares with the answers of an engine that has failed or cannot be started."""
        reference = self.references[engine.key]
        return (
            what.kind == "answers"
            and what.setting != OFF
            and (reference.impossible is not None or self.results.failed(reference))
        )

    def _compared(self, engine: Engine, answers: Sequence[Sequence[int]]) -> dict[str, Any]:
        reference = self.results.get(self.references[engine.key], Measurement("answers", OFF))
        if reference is None:
            raise NothingToCompareError(f"{engine.label}: the engine without speculation has not answered")
        return agreement(reference["token_ids"], answers)

    def _families(self, engine: Engine) -> dict[str, list[str]]:
        """Return the prompts that fit the entry's context for sure: a stand-in's tokens are single characters."""
        most = engine.entry.max_model_len - max(LOAD_TOKENS, COMPARED_TOKENS) - 64  # of the chat template
        characters = most if engine.dummy else CHARACTERS_A_TOKEN * most
        fitting = {
            name: [prompt for prompt in each if len(prompt) <= characters] for name, each in self.families.items()
        }
        return {name: prompts for name, prompts in fitting.items() if prompts}


def acceptance(
    process: EngineProcess, families: Mapping[str, Sequence[str]], k_max: int, limit_s: float
) -> dict[str, Any]:
    """Return the acceptance rate of each category with all drafts that the entry allows."""
    named = [(name, prompt) for name, each in families.items() for prompt in each[:PROMPTS_A_CATEGORY]]
    asks = [Ask(prompt, k=k_max, max_tokens=LOAD_TOKENS) for _, prompt in named]
    replies = process.ask(asks, timeout_s=limit_s, at_once=PROMPTS_A_CATEGORY).replies
    by_category: dict[str, list[int]] = {name: [0, 0] for name in families}
    for (name, _), reply in zip(named, replies, strict=True):
        by_category[name][0] += reply.draft_tokens
        by_category[name][1] += reply.accepted_tokens
    return {"by_category": {name: rate(*counts) for name, counts in by_category.items()}}


def interleaved(families: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the prompts, one of each category after the other."""
    longest = max(map(len, families.values()))
    return [prompts[place] for place in range(longest) for prompts in families.values() if place < len(prompts)]


def with_depths(prompts: Sequence[str], setting: str, k_max: int, max_tokens: int) -> list[Ask]:
    """Return greedy requests with the depths that the setting says; in `mixed` each has another."""

    def depth(place: int) -> Depth:
        if setting == AUTO:
            return "auto"
        if setting == MIXED:
            return place % (k_max + 1)
        return 0 if setting == OFF else int(setting.removeprefix("K="))

    return [Ask(prompt, k=depth(place), max_tokens=max_tokens) for place, prompt in enumerate(prompts)]


def agreement(reference: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return how many answers are equal, and the mean share of tokens before the first difference (0-1).

    On a GPU a batch of another shape may add up in another order, so that the better of two almost equal tokens may
    change; after that the answers differ. So equality of all is expected only where arithmetic does not depend on the
    batch.
    """
    shares = []
    for expected, got in zip(reference, answers, strict=True):
        same = next((i for i, pair in enumerate(zip(expected, got, strict=False)) if pair[0] != pair[1]), None)
        agreed = min(len(expected), len(got)) if same is None else same
        shares.append(agreed / max(len(expected), len(got), 1))
    exact = sum(list(expected) == list(got) for expected, got in zip(reference, answers, strict=True))
    return {"exact": exact, "of": len(answers), "agreed_prefix": sum(shares) / len(shares)}


def load_figures(batch: Batch, setting: str) -> dict[str, Any]:
    """Return speed, latencies, acceptance, and the time of an engine step at this depth."""
    ttft_s = [reply.ttft_s for reply in batch.replies]
    itl_s = [gap for reply in batch.replies for gap in reply.itl_s]
    drafted = sum(reply.draft_tokens for reply in batch.replies)
    accepted = sum(reply.accepted_tokens for reply in batch.replies)
    wanted = int(setting.removeprefix("K=")) if setting.startswith("K=") else 0 if setting == OFF else None
    times = [
        gap_s for reply in batch.replies for gap_s, depth in step_times(reply) if wanted is None or depth == wanted
    ]
    return {
        "tokens_per_s": batch.tokens_per_s,
        "ttft_p50_ms": 1000 * percentile(ttft_s, 50),
        "ttft_p99_ms": 1000 * percentile(ttft_s, 99),
        "itl_p50_ms": 1000 * percentile(itl_s, 50) if itl_s else None,
        "itl_p99_ms": 1000 * percentile(itl_s, 99) if itl_s else None,
        "step_p50_ms": 1000 * median(times) if times else None,
        "steps": len(times),
        "acceptance_rate": rate(drafted, accepted),
    }


def energy_figures(batch: Batch, tier: Tier) -> dict[str, Any]:
    """Return the cards' mean power by their counters, beside what the tier's watts give for the same time."""
    energy = batch.energy
    if energy is None or energy.reason is not None:
        return {"energy_reason": energy.reason if energy else None}
    busy_s = min(batch.busy.busy_s, batch.seconds)
    modelled_j = tier.active_watts * busy_s + tier.idle_watts * (batch.seconds - busy_s)
    return {
        "watts": energy.counter_j / batch.seconds,
        "modelled_watts": modelled_j / batch.seconds,
        "joules_per_token": energy.counter_j / batch.tokens,
        "modelled_joules_per_token": modelled_j / batch.tokens,
        "busy_share": busy_s / batch.seconds,
        # Of what the counters showed: what answers were billed, or will be, and what was idle.
        "found_again": (energy.billed_j + energy.aside_j + energy.owed_j + energy.idle_j) / energy.counter_j
        if energy.counter_j > 0
        else None,
    }


def step_times(reply: Reply) -> Iterator[tuple[float, int]]:
    """Yield (time, s; draft tokens verified) of the engine steps that had an item of their own.

    An item has the tokens of one step or, when the client was slow, of several; then its time is no step's. An engine
    without speculation keeps no steps, and each of its steps has one token.
    """
    if not reply.steps:
        yield from ((gap_s, 0) for gap_s, tokens in reply.gaps if tokens == 1)
        return
    steps = iter(reply.steps)
    for place, (tokens, gap_s) in enumerate(
        zip((count for _, count in reply.arrivals), (None, *(gap for gap, _ in reply.gaps)), strict=True)
    ):
        taken = 0
        depths = []
        while taken < tokens:
            step = next(steps, None)
            if step is None:
                return
            depths.append(step.drafted)
            taken += step.accepted + 1
        last = place == len(reply.arrivals) - 1  # the end of the answer cuts the last step's tokens off
        if gap_s is not None and len(depths) == 1 and (taken == tokens or last):
            yield gap_s, depths[0]
        elif taken != tokens and not last:
            return  # text that was held back has shifted the items against the steps


def rate(drafted: int, accepted: int) -> float | None:
    """Return the share of draft tokens that were accepted (0-1); None: there were none."""
    return accepted / drafted if drafted else None
