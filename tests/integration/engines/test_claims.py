"""Keys beside one another on a real engine: whose request is in the next step, and whose prompt is in whose cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.engine.engines import Ask, Batch, EngineProcess, Reply, engine_process
from cluster.profiles.reading import load_profile
from serve_app.fairness.claims import ANYBODY, Claim
from serve_app.fairness.places import BATCH_PART, kept
from tests.support.e2e_app import MODEL

LARGE, SMALL = Claim("large", cache_salt="large"), Claim("small", cache_salt="small")
LONG = "Describe the harbour of an old town in the morning, with all its ships, people and smells. " * 8
BLOCK = 16
"""Tokens of a block of the cache at most: a prompt's last tokens fill none."""


@pytest.fixture(scope="module")
def engine(bundled_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """eco's entry without speculation."""
    profile = load_profile("local")
    tier = profile.tiers["eco"]
    log = tmp_path_factory.mktemp("claims") / "log"
    with engine_process(tier.chain[-1], tier, {MODEL: bundled_model}, log) as process:
        process.ask([Ask("Hello.", max_tokens=2)])
        yield process


@pytest.fixture(scope="module")
def seats() -> int:
    tier = load_profile("local").tiers["eco"]
    return tier.most_sequences(tier.chain[-1])


def beside(engine: EngineProcess, others: int, claim: Claim) -> tuple[Batch, Reply]:
    """Ask for many long answers in the name of a claim, then for a short one of another key; return that one too."""
    crowd = [
        Ask(f"Tell a long story about the number {number}.", max_tokens=24, claim=claim) for number in range(others)
    ]
    batch = engine.ask([*crowd, Ask("Hello!", max_tokens=2, claim=SMALL, waits=True)])
    return batch, batch.replies[-1]


def steps_until_first(batch: Batch, small: Reply) -> int:
    """Return how many engine steps there were from the small request's arrival to its first token, with that one."""
    end_s = small.began_s + small.ttft_s
    return max(
        sum(small.began_s < other.began_s + at_s <= end_s for at_s, _ in other.arrivals) for other in batch.replies[:-1]
    )


def test_a_request_begins_two_steps_after_it_came_beside_a_key_with_more_requests_than_seats(
    engine: EngineProcess, seats: int
) -> None:
    batch, small = beside(engine, seats + 8, LARGE)
    assert steps_until_first(batch, small) <= 3  # the one under way when it came, and two
    at_once = sum(other.arrivals[0][0] < small.began_s + small.ttft_s for other in batch.replies[:-1])
    assert at_once <= seats - kept(seats)
    assert all(len(reply.token_ids) == 24 for reply in batch.replies[:-1])


def test_the_same_beside_batch_requests_of_its_own_key(engine: EngineProcess, seats: int) -> None:
    batch, small = beside(engine, seats + 8, SMALL._replace(batch=True))
    assert steps_until_first(batch, small) <= 3
    at_once = sum(other.arrivals[0][0] < small.began_s + small.ttft_s for other in batch.replies[:-1])
    assert at_once <= seats - seats // BATCH_PART


def test_a_request_that_gave_its_seat_to_another_key_ends_with_the_same_answer(engine: EngineProcess) -> None:
    """Every seat is taken, by three keys; the fourth one's requests send some of the first key's back."""
    crowd = [Ask(f"Count from {number} to one hundred.", max_tokens=32, claim=LARGE) for number in range(40)]
    alone = engine.ask(crowd[:4]).token_ids
    few = [Ask("Hello!", max_tokens=24, claim=Claim(f"key {number % 3}"), waits=True) for number in range(12)]
    batch = engine.ask([*crowd, *few])
    assert batch.preemptions > 0
    assert all(len(reply.token_ids) == 32 for reply in batch.replies[: len(crowd)])
    assert batch.token_ids[:4] == alone


def cached(engine: EngineProcess, prompt: str, claim: Claim) -> int:
    """Return how many tokens of a prompt the engine has in its cache for this claim."""
    return engine.ask([Ask(prompt, max_tokens=1, claim=claim)]).cached_tokens


def test_a_key_finds_its_own_prompt_in_the_cache_and_nobody_elses(engine: EngineProcess) -> None:
    assert cached(engine, LONG, LARGE) == 0
    own = cached(engine, LONG, LARGE)
    assert own > 100
    assert cached(engine, LONG, SMALL) < BLOCK
    assert cached(engine, LONG, ANYBODY) < BLOCK
    assert cached(engine, LONG, ANYBODY) == own  # those without a key share one


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}], "max_tokens": 1}),
        ("/v1/responses", {"input": LONG, "max_output_tokens": 1, "store": False}),
        ("/v1/messages", {"messages": [{"role": "user", "content": LONG}], "max_tokens": 1}),
    ],
)
def test_the_routes_of_other_apis_have_their_keys_cache_too(
    engine: EngineProcess, path: str, body: dict[str, Any]
) -> None:
    claim = Claim(path, cache_salt=path)
    [answer] = engine.call([(path, {"model": "eco", "temperature": 0, **body})], claim=claim)
    assert answer.status == 200, answer.body
    assert cached(engine, LONG, claim) > 100
    assert cached(engine, LONG, Claim("other", cache_salt=f"other than {path}")) < BLOCK


def test_a_clients_own_salt_parts_its_keys_cache_and_reaches_no_other_keys(engine: EngineProcess) -> None:
    body = {"model": "eco", "messages": [{"role": "user", "content": LONG}], "max_tokens": 1, "cache_salt": "mine"}
    [answer] = engine.call([("/v1/chat/completions", body)], claim=Claim("salted", cache_salt="salted"))
    assert answer.status == 200, answer.body
    assert cached(engine, LONG, Claim("salted", cache_salt="salted")) < BLOCK
    [again] = engine.call([("/v1/chat/completions", body)], claim=Claim("thief", cache_salt="thief"))
    assert again.status == 200
    assert cached(engine, LONG, Claim(None, cache_salt="mine")) < BLOCK
