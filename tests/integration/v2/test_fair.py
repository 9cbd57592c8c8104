"""vLLM's scheduler in the order of `serve_app/fairness/seats.py`: no key's requests stand before another's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from serve_app.engine.vllm.claim_argument import claim_of, put_claim
from serve_app.engine.vllm.fair_scheduler import MOST_SENT_BACK
from serve_app.fairness.claims import ANYBODY, Claim
from tests.support.scheduler_driver import Driver, scheduler_config

SEATS = 8
BUDGET = 64
"""Tokens of a step."""


@pytest.fixture(params=[3, 0], ids=["drafting", "without drafts"], scope="module")
def config(request: pytest.FixtureRequest, tiny_models: Path) -> Any:
    return scheduler_config(tiny_models, request.param, scheduling_policy="priority", max_num_seqs=SEATS)


@dataclass
class Request:
    """What the engine's front end sends to the scheduler, as far as it is used here."""

    sampling_params: Any
    cache_salt: str | None = None


def add(driver: Driver, name: str, claim: Claim, *, prompt: int = 4, max_tokens: int = 50) -> None:
    from vllm import SamplingParams

    request = Request(SamplingParams())
    put_claim(request, claim)
    driver.add(name, 0, prompt=prompt, max_tokens=max_tokens, arguments=request.sampling_params.extra_args)


def step(driver: Driver) -> dict[str, int]:
    """Run one step; return the tokens that each request had in it."""
    scheduled = driver.schedule()
    driver.update(scheduled)
    tokens: dict[str, int] = scheduled.num_scheduled_tokens
    return tokens


LARGE, SMALL, BATCH = Claim("large"), Claim("small"), Claim("large", batch=True)


def test_a_newcomer_is_in_the_next_step_beside_a_key_with_more_requests_than_there_are_seats(config: Any) -> None:
    driver = Driver(config)
    for number in range(12):
        add(driver, f"large {number}", LARGE)
    assert len(step(driver)) == SEATS - 1
    add(driver, "small", SMALL)
    assert "small" in step(driver)
    assert len(step(driver)) == SEATS


def test_the_seat_of_a_request_that_ends_goes_to_the_key_under_its_share(config: Any) -> None:
    driver = Driver(config)
    for number in range(12):
        add(driver, f"large {number}", LARGE, max_tokens=3 if number < 2 else 50)
    step(driver)
    for number in range(3):
        add(driver, f"small {number}", SMALL)
    seated = step(driver)
    assert [name for name in seated if name.startswith("small")] == ["small 0"]  # the kept seat
    while {"large 0", "large 1"} & step(driver).keys():
        pass
    # Of the two seats one is kept again.
    assert set(step(driver)) == {*(f"large {number}" for number in range(2, 7)), "small 0", "small 1"}


def test_a_newcomer_gets_the_seat_of_the_last_request_of_a_key_over_its_share_if_all_are_taken(config: Any) -> None:
    driver = Driver(config)
    for number in range(7):
        add(driver, f"large {number}", LARGE)
    step(driver)
    add(driver, "second", SMALL)
    step(driver)
    add(driver, "third", Claim("third"))
    step(driver)  # which finds no seat
    assert set(step(driver)) == {*(f"large {number}" for number in range(6)), "second", "third"}
    assert driver.scheduler.requests["large 6"].num_preemptions == 1
    tokens = len(driver.tokens["large 6"])
    driver.abort("second")
    driver.abort("third")
    assert "large 6" in step(driver)
    assert len(driver.tokens["large 6"]) == tokens + 1


def test_batch_requests_leave_a_quarter_of_the_seats_and_wait_behind_all_others(config: Any) -> None:
    driver = Driver(config)
    for number in range(9):
        add(driver, f"batch {number}", BATCH)
    assert len(step(driver)) == 6
    add(driver, "large", LARGE)
    add(driver, "batch 9", BATCH)
    assert set(step(driver)) - {f"batch {number}" for number in range(6)} == {"large"}


def keep_busy(driver: Driver, keys: int, streams: int, steps: int, **request: int) -> int:
    """Let so many keys keep so many streams each; return how often a request was sent back."""
    names: dict[str, Claim] = {}
    count = sent_back = 0
    for _ in range(steps):
        for key in range(keys):
            while sum(claim.tenant == f"key {key}" for claim in names.values()) < streams:
                names[name := f"request {(count := count + 1)}"] = Claim(f"key {key}")
                add(driver, name, names[name], **request)
        before = dict(driver.scheduler.requests)
        step(driver)
        for name in [name for name in names if name not in driver.scheduler.requests]:
            sent_back += before[name].num_preemptions
            del names[name]
    return sent_back + sum(int(request.num_preemptions) for request in driver.scheduler.requests.values())


def test_equal_keys_do_not_send_each_others_requests_back_where_seats_are_few(config: Any) -> None:
    assert keep_busy(Driver(config), keys=12, streams=1, steps=150, max_tokens=20) == 0


def test_keys_with_many_streams_send_few_back_where_memory_is_short(config: Any) -> None:
    """There is memory for about four at a time. vLLM itself takes it back once in a while, as without keys."""
    assert keep_busy(Driver(config, blocks=20), keys=2, streams=8, steps=200, prompt=30, max_tokens=40) < 30


def test_a_request_makes_room_for_others_twice_at_most(config: Any) -> None:
    driver = Driver(config, blocks=200)
    for number in range(SEATS - 1):
        add(driver, f"large {number}", LARGE, max_tokens=120)
    step(driver)
    for number in range(17):
        for twin in "ab":  # one gets the kept seat, the other the last of the large key's
            add(driver, f"new {number}{twin}", Claim(f"new {number}{twin}"), max_tokens=2)
        for _ in range(6):
            step(driver)
    requests = driver.scheduler.requests
    sent_back = [requests[f"large {number}"].num_preemptions for number in range(SEATS - 1)]
    assert sent_back == [MOST_SENT_BACK] * (SEATS - 1)


class NoGrammarYet:
    """Stands for a request's structured output, whose grammar is being compiled."""

    grammar: object = None


def test_a_request_whose_grammar_became_ready_late_gets_room_and_hides_nobody_before(config: Any) -> None:
    from vllm.v1.request import RequestStatus

    driver = Driver(config)
    for number in range(12):
        add(driver, f"large {number}", LARGE)
    step(driver)
    add(driver, "second", SMALL)
    step(driver)  # all seats are taken
    add(driver, "grammar", Claim("third"))
    request = driver.scheduler.requests["grammar"]
    request.structured_output_request = grammar = NoGrammarYet()
    request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    for _ in range(3):
        assert "grammar" not in step(driver)
    assert all(request.num_preemptions == 0 for request in driver.scheduler.requests.values())
    add(driver, "plain", Claim("fourth"))
    step(driver)
    assert "plain" in step(driver)
    grammar.grammar = object()
    driver.scheduler.schedule()
    request.structured_output_request = None
    assert request.status == RequestStatus.RUNNING


def test_a_short_prompt_is_read_at_once_beside_long_ones_of_a_key_over_its_share(config: Any) -> None:
    driver = Driver(config)
    for number in range(3):
        add(driver, f"large {number}", LARGE, prompt=100)
    first = step(driver)
    assert first.keys() == {"large 0"}  # which takes the whole step
    assert first["large 0"] > BUDGET / 2
    add(driver, "small", SMALL, prompt=10)
    assert step(driver)["small"] == 10


def test_a_long_prompt_of_a_key_alone_still_takes_whole_steps(config: Any) -> None:
    driver = Driver(config)
    add(driver, "large", LARGE, prompt=120)
    tokens = step(driver)["large"]
    assert tokens > BUDGET * 0.9
    assert step(driver) == {"large": 120 - tokens}


def test_when_the_cache_is_full_the_key_over_its_share_makes_room(config: Any) -> None:
    driver = Driver(config, blocks=10)
    for number in range(3):
        add(driver, f"large {number}", LARGE, prompt=30)
    for _ in range(3):
        step(driver)
    add(driver, "small", SMALL, prompt=20)
    ran = [step(driver) for _ in range(30)]
    assert ["small" in tokens for tokens in ran].index(True) <= 3  # as many as had to make room
    assert all("small" in tokens for tokens in ran[3:])
    assert driver.scheduler.requests["small"].num_preemptions == 0
    assert sum(driver.scheduler.requests[f"large {number}"].num_preemptions for number in range(3)) > 0


def test_without_keys_requests_take_every_seat_in_the_order_in_which_they_came(config: Any) -> None:
    driver = Driver(config)
    for number in range(12):
        driver.add(f"any {number}", 0)
    assert set(step(driver)) == {f"any {number}" for number in range(SEATS)}


def test_claims_are_forgotten_with_their_requests_also_of_clients_that_left(config: Any) -> None:
    driver = Driver(config)
    add(driver, "ends", LARGE, max_tokens=2)
    add(driver, "leaves", SMALL)
    for _ in range(3):
        step(driver)
    driver.abort("leaves")
    assert driver.scheduler._claims == {}


def test_a_claim_travels_in_the_sampling_parameters_and_its_salt_stands_before_the_clients_own() -> None:
    from vllm import SamplingParams

    request = Request(SamplingParams(extra_args={"theirs": 1}), "own")
    put_claim(request, Claim("key", batch=True, cache_salt="key"))
    assert request.cache_salt == "key:own"
    assert claim_of(request.sampling_params) == Claim("key", batch=True)
    assert request.sampling_params.extra_args["theirs"] == 1
    assert claim_of(SamplingParams()) == claim_of(None) == ANYBODY
