"""Speculation changes no distribution: sampled answers of a real engine with drafts and without, by a two-sample test.

The model has 64 tokens and random weights (`tests/support/tiny_llama.py`), so that a wrong distribution shows in few
samples. Half of the samples without drafts have a seed of their own, as vLLM samples those in another way; the seeds
are fixed. Requests with a seed get no drafts (`test_depths.py`), so none of the drafted ones has one. The
depths of `auto` follow the clock, so no two runs are the same to the last token: a run fails without any fault with
probability `ALPHA` at most.

Here are the draft model's drafts at the temperature where a fault shows most; `tests/long` has the other drafts and
temperatures.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import numpy as np

from bench.engine.engines import Ask, EngineProcess, Reply, engine_process
from cluster.profiles.reading import load_profile
from router.registry import ChainEntry, DraftsChoice, Speculation
from tests.support.tiny_llama import CHARACTERS, DRAFT, MAX_LENGTH, SPECIAL_TOKENS, TARGET, VOCABULARY, write_tiny_llama
from tests.support.two_sample import compare, detectable_effect

SAMPLES: Final = 1500
"""Of each of the two sides of a comparison."""
LENGTH: Final = 8
"""Tokens of a sample: the first one is sampled without drafts, the others may come in steps with drafts."""
K_MAX: Final = 4
CONCURRENT: Final = 128
"""Requests that the engine works on at a time."""
DEPTHS: Final[tuple[int | Literal["auto"], ...]] = (1, 2, 3, K_MAX, "auto", "auto")
CHOICES: Final[tuple[DraftsChoice, ...]] = ("own", "ngram", "auto", "ngram", "own")
"""Who drafts, where the engine can draft in both ways; five, so that each meets each of the six depths."""
COMPARISONS: Final = 4
"""Here and in `tests/long`."""
ALPHA: Final = 0.001
"""Probability that any of the comparisons fails although all distributions are equal, at most."""
ALPHA_EACH: Final = ALPHA / COMPARISONS
PLACES: Final = LENGTH + LENGTH - 1
"""Tests in one comparison: of each token, and of each pair of neighbours."""


def own_text(length: int = 200) -> str:
    """What the model itself may say at temperature 0.5: it repeats its habits, so that n-gram lookup finds drafts."""
    random = np.random.default_rng(5)
    tokens = [len(SPECIAL_TOKENS)]
    while len(tokens) < length:
        distribution = TARGET.distribution(tokens[-32:], 0.5)
        distribution[: len(SPECIAL_TOKENS)] = 0  # a prompt of plain characters
        tokens.append(int(random.choice(len(distribution), p=distribution / distribution.sum())))
    return "".join(CHARACTERS[token - len(SPECIAL_TOKENS)] for token in tokens)


@contextmanager
def tiny_engine(speculation: Speculation, folder: Path) -> Iterator[EngineProcess]:
    """An engine of the tiny model that drafts in this way."""
    models = {"target": folder / "target", "draft": folder / "draft"}
    write_tiny_llama(models["target"], TARGET)
    write_tiny_llama(models["draft"], DRAFT)
    # All samples are asked at once.
    tier = load_profile("local").tiers["eco"].model_copy(update={"max_ongoing_requests": SAMPLES})
    with engine_process(tiny_step(speculation), tier, models, folder / "log") as engine:
        yield engine


def tiny_step(speculation: Speculation) -> ChainEntry:
    return ChainEntry(
        name="tiny",
        target="target",
        max_model_len=MAX_LENGTH,
        speculation=speculation,
        engine_args={
            "dtype": "float32",
            "distributed_executor_backend": "uni",
            "enforce_eager": True,
            "max_num_seqs": CONCURRENT,
            "kv_cache_memory_bytes": 256 * 1024 * 1024,
        },
    )


def sample(engine: EngineProcess, temperature: float, depths: tuple[int | Literal["auto"], ...]) -> list[Reply]:
    prompt = own_text()
    every, choices = itertools.cycle(depths), itertools.cycle(CHOICES)
    seeded = depths == (0,)
    asks = [
        Ask(
            prompt,
            k=next(every),
            max_tokens=LENGTH,
            temperature=temperature,
            seed=number if seeded and number % 4 < 2 else None,
            drafts=next(choices),
        )
        for number in range(SAMPLES)
    ]
    return engine.ask(asks).replies


def test_drafts_change_no_distribution(vllm_installed: None, tmp_path: Path) -> None:
    speculation = Speculation(method="draft_model", draft="draft", k_max=K_MAX, drafts="own")
    with tiny_engine(speculation, tmp_path) as engine:
        assert_drafts_change_no_distribution(engine, 0.5)


def assert_drafts_change_no_distribution(engine: EngineProcess, temperature: float) -> None:
    """With probability 0.99 this finds any difference of Cohen's w >= 0.19 in a token or a pair of neighbours (0.17
    with 0.9), and so any of that total variation; `test_the_samples_are_enough` has the arithmetic.

    Without the repair in `cpu_worker.py` it fails: p = 1e-22 with n-gram drafts at temperature 0.5, and 4e-154 and
    5e-109 with those of the draft model; n-gram drafts at temperature 1 (p = 0.0015) are too few for a verdict by
    themselves, but are accepted suspiciously seldom.
    """
    without = sample(engine, temperature, (0,))
    drafted = sample(engine, temperature, DEPTHS)

    assert sum(reply.draft_tokens for reply in without) == 0
    comparison = compare([reply.token_ids for reply in drafted], [reply.token_ids for reply in without])
    # Enough drafts, and of both fates, for a fault to show.
    drafts, accepted = (
        sum(getattr(reply, name) for reply in drafted) / SAMPLES for name in ("draft_tokens", "accepted_tokens")
    )
    assert drafts > 1
    assert 0.02 < accepted / drafts < 0.95
    for reply in drafted:
        assert reply.accepted == reply.flags_of_steps
        assert reply.core_steps == reply.verifications
    assert comparison.p_value > ALPHA_EACH, comparison


def test_the_samples_are_enough() -> None:
    """With as many categories as there are tokens, or bins of pairs: with fewer, smaller differences are found."""
    assert detectable_effect(SAMPLES, VOCABULARY, ALPHA_EACH / PLACES, 0.99) < 0.195
    assert detectable_effect(SAMPLES, VOCABULARY, ALPHA_EACH / PLACES, 0.9) < 0.17
