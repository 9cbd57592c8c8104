"""A draft depth of its own for each request, on real engines and without a server: answers, limits, and the record.

Two engines with the bundled model. `roomy` is eco of the shipped local profile. `scarce` reads prompts in pieces and
has too little memory for the requests of a batch, so that it takes memory away from requests under way.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Literal, NamedTuple

import pytest

from bench.energy import unbilled
from bench.engine.engines import Ask, EngineProcess, Reply, engine_process
from cluster.profiles.reading import load_profile
from tests.support.e2e_app import MODEL

COPY: Final = (
    'Repeat this JSON exactly: {"name": "Anna", "age": 31, "city": "Oslo", "tags": ["a", "b", "c"], "name2": "Anna", '
    '"age2": 31, "city2": "Oslo"}'
)
SUMS: Final = "What is 12 + 7, 13 + 8, 14 + 9, 15 + 10, 16 + 11 and 17 + 12?"
"""Its answer repeats what was asked and then goes on in another way: drafts come, and fail."""
QUESTION: Final = "What is the capital of France?"
LENGTHS: Final = {COPY: 64, SUMS: 48, QUESTION: 16}
"""Most tokens of each answer; of `SUMS` enough for tau to see that drafts fail."""
K_MAX: Final = 5
PIECE_TOKENS: Final = 64
"""Most tokens of a step of `scarce`: its long prompts take several steps."""
LITTLE_KV_BYTES: Final = 26 * 1024 * 1024
"""Room for one request of 512 tokens, or for the prompts of five."""
SLOW_STEPS: Final = 4
"""A few engine steps."""


class Params(NamedTuple):
    k: int | Literal["auto"]
    tau: float


PARAMS: Final = (
    Params(0, 0.0),
    Params(1, 0.0),
    Params(2, 0.0),
    Params(K_MAX, 0.0),
    Params("auto", 0.0),
    Params(2, 0.9),
    Params(K_MAX, 0.9),
    Params("auto", 0.9),
)


class Engines(NamedTuple):
    roomy: EngineProcess
    scarce: EngineProcess


@pytest.fixture(scope="module")
def engines(bundled_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """Both started together: most of a start is one thread's work."""
    profile = load_profile("local")
    tier, entry = profile.tiers["eco"], profile.entry("eco", None)
    assert entry.speculation is not None
    assert (entry.speculation.method, entry.speculation.k_max) == ("ngram", K_MAX)
    little = {
        "max_num_batched_tokens": PIECE_TOKENS,
        "max_num_seqs": 8,
        "kv_cache_memory_bytes": LITTLE_KV_BYTES,
        "block_size": 32,
        "enable_prefix_caching": False,  # a prompt that was seen before is read in pieces all the same
    }
    scarce = entry.model_copy(update={"max_model_len": 512, "engine_args": entry.engine_args | little})
    logs = tmp_path_factory.mktemp("engines")
    models = {MODEL: bundled_model}
    with ExitStack() as stack:
        engines = Engines(
            stack.enter_context(engine_process(entry, tier, models, logs / "roomy.log")),
            stack.enter_context(engine_process(scarce, tier, models, logs / "scarce.log")),
        )
        yield engines


@pytest.fixture(scope="module")
def plain(engines: Engines) -> dict[str, Reply]:
    """The greedy answer to each prompt, without drafts, alone on the engine."""
    batch = engines.roomy.ask_alone([Ask(prompt, k=0, max_tokens=LENGTHS[prompt]) for prompt in LENGTHS])
    return dict(zip(LENGTHS, batch.replies, strict=True))


class Mixed(NamedTuple):
    asks: list[Ask]
    replies: list[Reply]


@pytest.fixture(scope="module")
def mixed(engines: Engines) -> Mixed:
    """All params with every prompt, in two batches of twelve; every fifth client is slow."""
    pairs = enumerate(itertools.product(PARAMS, LENGTHS))
    asks = [
        Ask(prompt, params.k, params.tau, LENGTHS[prompt], pause_steps=0 if number % 5 else SLOW_STEPS)
        for number, (params, prompt) in pairs
    ]
    batches = [asks[::2], asks[1::2]]
    assert [len(batch) for batch in batches] == [12, 12]
    replies = [reply for batch in batches for reply in engines.roomy.ask(batch).replies]
    return Mixed([ask for batch in batches for ask in batch], replies)


def with_params(mixed: Mixed, k: int | Literal["auto"], tau: float = 0.0) -> list[Reply]:
    chosen = [reply for ask, reply in zip(*mixed, strict=True) if (ask.k, ask.tau) == (k, tau)]
    assert len(chosen) == len(LENGTHS)
    return chosen


def test_greedy_answers_are_the_same_at_every_depth_in_one_batch(mixed: Mixed, plain: dict[str, Reply]) -> None:
    for ask, reply in zip(*mixed, strict=True):
        assert reply.token_ids == plain[ask.prompt].token_ids, ask
        assert (reply.text, reply.finish_reason) == (plain[ask.prompt].text, plain[ask.prompt].finish_reason), ask
    assert {prompt: reply.finish_reason for prompt, reply in plain.items()} == {
        COPY: "stop", SUMS: "length", QUESTION: "stop"
    }  # fmt: skip


@pytest.mark.parametrize("k", [0, 1, 2, K_MAX])
def test_a_request_verifies_at_most_its_requested_depth_in_a_step(mixed: Mixed, k: int) -> None:
    replies = with_params(mixed, k)

    assert max(depth for reply in replies for depth in reply.depths) == k
    assert {reason for reply in replies for reason in reply.reasons} == {"asked"}


def test_an_automatic_depth_stays_within_the_limit(mixed: Mixed) -> None:
    replies = with_params(mixed, "auto")

    assert max(depth for reply in replies for depth in reply.depths) <= K_MAX
    reasons = {reason for reply in replies for reason in reply.reasons}
    assert "auto" in reasons
    assert reasons <= {"auto", "auto_off", "probe", "plain", "trial"}


def test_our_record_equals_the_engine_cores_step_by_step(mixed: Mixed) -> None:
    for ask, reply in zip(*mixed, strict=True):
        assert reply.core_steps is not None, ask
        assert reply.verifications == reply.core_steps, ask
    assert sum(reply.draft_tokens for reply in mixed.replies) > 0


def test_the_record_keeps_steps_apart_that_a_slow_client_took_together(mixed: Mixed) -> None:
    slow = [reply for ask, reply in zip(*mixed, strict=True) if ask.pause_steps]

    assert len(slow) == 5
    assert any(len(reply.arrivals) < len(reply.steps) / 2 for reply in slow)
    for reply in slow:
        assert reply.verifications == reply.core_steps
        assert reply.accepted == reply.flags_of_steps


def test_a_token_is_flagged_where_its_draft_was_accepted(mixed: Mixed) -> None:
    for ask, reply in zip(*mixed, strict=True):
        assert reply.accepted == reply.flags_of_steps, ask
        cut = sum(step.accepted + 1 for step in reply.steps) - len(reply.token_ids)
        assert 0 <= cut <= K_MAX, ask
        # Of the last step the target's own token is cut first, and it has no flag.
        assert sum(reply.accepted) == reply.accepted_tokens - max(0, cut - 1), ask


def test_totals_add_up_to_the_steps(mixed: Mixed) -> None:
    for ask, reply in zip(*mixed, strict=True):
        assert reply.draft_tokens == sum(step.drafted for step in reply.steps), ask
        assert reply.accepted_tokens == sum(step.accepted for step in reply.steps), ask
        # The step that ends the prefill gives a token and verifies nothing.
        assert reply.steps[0].reason == "", ask
        assert sum(reply.reasons.values()) == len(reply.steps) - 1, ask


def test_a_floor_of_acceptance_stops_drafts_that_fail(mixed: Mixed) -> None:
    [floored] = [r for a, r in zip(*mixed, strict=True) if (a.prompt, a.k, a.tau) == (SUMS, K_MAX, 0.9)]
    [free] = [r for a, r in zip(*mixed, strict=True) if (a.prompt, a.k, a.tau) == (SUMS, K_MAX, 0.0)]

    assert floored.stopped_by_tau
    assert floored.reasons["tau_stopped"] > 0
    assert {step.drafted for step in floored.steps if step.reason == "tau_stopped"} == {0}
    assert floored.draft_tokens < free.draft_tokens


def test_without_a_floor_nothing_is_stopped_by_it(mixed: Mixed) -> None:
    for ask, reply in zip(*mixed, strict=True):
        if not ask.tau:
            assert not reply.stopped_by_tau, ask
            assert "tau_stopped" not in reply.reasons, ask


def test_a_stop_string_ends_the_answer_alike_at_every_depth(engines: Engines) -> None:
    asks = [Ask(COPY, params.k, params.tau, stop=('": "Os',)) for params in PARAMS]

    replies = engines.roomy.ask(asks).replies

    for reply in replies:
        assert reply.finish_reason == "stop"
        assert reply.text == '{"name": "Anna", "age": 31, "city'
        assert reply.token_ids == replies[0].token_ids
        # The front end found the stop string: the core does not know of it, and may run on to an end of its own.
        assert reply.accepted == reply.flags_of_steps
        assert reply.draft_tokens == sum(step.drafted for step in reply.steps)
    assert replies[0].draft_tokens == 0
    assert replies[PARAMS.index(Params(K_MAX, 0.0))].accepted_tokens > 0


LONG_PROMPTS: Final = tuple(
    f"Repeat this list exactly: {[f'{word} {number}' for number in range(start, start + 9)]}"
    for word, start in zip(
        ("red", "blue", "green", "black", "white", "pink", "gold", "grey"), range(10, 90, 10), strict=True
    )
)
"""Of more than one piece each. As many of them as fit into the memory of `scarce` do not fit with their answers."""


def test_answers_and_record_survive_chunked_prefill_and_preemption(engines: Engines) -> None:
    plain = engines.roomy.ask([Ask(prompt, k=0, max_tokens=32) for prompt in LONG_PROMPTS])
    asks = [Ask(prompt, *params, 32) for prompt, params in zip(LONG_PROMPTS, PARAMS, strict=True)]

    together = engines.scarce.ask(asks)

    assert min(reply.prompt_tokens for reply in plain.replies) > PIECE_TOKENS
    assert plain.preemptions == 0
    assert together.preemptions > 0
    assert together.token_ids == plain.token_ids
    for ask, reply in zip(asks, together.replies, strict=True):
        assert reply.verifications == reply.core_steps, ask
        assert reply.accepted == reply.flags_of_steps, ask
    assert together.replies[PARAMS.index(Params(K_MAX, 0.0))].accepted_tokens > 0


def test_shares_add_up_to_the_busy_time_when_requests_are_preempted_and_clients_leave(engines: Engines) -> None:
    asks = [Ask(prompt, *params, 48) for prompt, params in zip(LONG_PROMPTS, PARAMS, strict=True)]
    leaving = [Ask(LONG_PROMPTS[0], k=2, max_tokens=48, leave_after=6), Ask(LONG_PROMPTS[1], k=0, leave_after=9)]
    stays = Ask(LONG_PROMPTS[2], k=0, max_tokens=64)  # to the end, so that the engine's report covers all

    batch = engines.scarce.ask([*asks, *leaving, *asks[::-1], stays], at_once=8)

    assert batch.preemptions > 0
    assert sum(reply.finish_reason == "left" for reply in batch.replies) == 2
    assert min(reply.prompt_tokens for reply in batch.replies if reply.prompt_tokens) > PIECE_TOKENS
    assert unbilled(batch) < 0.01
    assert batch.busy.busy_s <= 1.01 * batch.seconds


def test_a_seeded_answer_is_the_same_each_time_and_with_chunked_prefill(engines: Engines) -> None:
    # vLLM 0.32 on CPU ended the engine of such a request; nothing may be drawn for a piece, or the answer changes.
    prompt = "Tell a story about " + ", ".join(f"item {number}" for number in range(40))
    ask = Ask(prompt, k=0, max_tokens=16, temperature=1.0, seed=7)
    in_pieces = engines.scarce.ask([ask, ask]).replies
    whole = engines.roomy.ask_alone([ask]).replies
    assert whole[0].prompt_tokens > 2 * PIECE_TOKENS
    assert len({tuple(reply.token_ids) for reply in [*in_pieces, *whole]}) == 1


RECORD: Final = 'Repeat this record exactly: {"part": "bolt", "size": 12, "box": "north", "sizes": [12, 14, 12]}'
SEEDED: Final = Ask(RECORD, k="auto", temperature=0.9, seed=20, max_tokens=32)
"""Its text can be drafted for: where it was, how many drafts each step had decided what its generator was asked for."""


@pytest.fixture(scope="module")
def seeded(engines: Engines) -> list[Reply]:
    """The same seeded request twice alone, and five times in a batch with others that are drafted for."""
    alone = engines.roomy.ask_alone([SEEDED] * 2).replies
    others = [Ask(COPY, k=K_MAX, max_tokens=64), Ask(SUMS, k="auto", max_tokens=48)]
    batch = engines.roomy.ask([SEEDED, *others, *[SEEDED] * 4, *others]).replies
    assert sum(reply.accepted_tokens for reply in (batch[1], batch[2])) > 0
    return [*alone, batch[0], *batch[3:7]]


def test_a_seeded_sampled_request_gives_one_text_alone_and_in_any_batch(seeded: list[Reply]) -> None:
    assert len(seeded) == 7
    assert len({tuple(reply.token_ids) for reply in seeded}) == 1


def test_a_seeded_sampled_request_is_not_drafted_for_and_its_record_says_why(seeded: list[Reply]) -> None:
    for reply in seeded:
        assert reply.draft_tokens == 0
        assert set(reply.reasons) == {"seeded"}


def test_a_seeded_greedy_request_and_a_sampled_one_without_a_seed_are_drafted_for(engines: Engines) -> None:
    greedy, sampled = engines.roomy.ask(
        [Ask(COPY, k=2, seed=20, max_tokens=32), Ask(COPY, k=2, temperature=0.5, max_tokens=32)]
    ).replies

    assert greedy.draft_tokens > 0
    assert sampled.draft_tokens > 0
    assert set(greedy.reasons) == set(sampled.reasons) == {"asked"}
