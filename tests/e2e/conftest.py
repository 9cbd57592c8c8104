"""One server on real vLLM engines (CPU build) for all e2e tests: a cold start costs most of a minute."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final

import openai
import pytest

from bench.load.client import HOST
from bench.load.servers import Server, running
from tests.support.api import Answer, Api
from tests.support.e2e_app import e2e_application

QUESTION: Final = "What is the capital of France?"
TIER_OF_POWER: Final = {10: "eco", 40: "balanced", 70: "performance", 95: "ultra"}
WARM_POWER: Final = 10

# Cold starts come first, so that the tests after them find every tier warm; those that kill an engine and the server
# come last.
FIRST = ("test_inference", "test_fallback")
LAST = ("test_health", "test_stopping")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    places = [place for place, item in enumerate(items) if here in item.path.parents]
    for place, item in zip(places, sorted((items[place] for place in places), key=_place), strict=True):
        items[place] = item


def _place(item: pytest.Item) -> int:
    file = item.path.stem
    if file in FIRST:
        return FIRST.index(file)
    return len(FIRST) + (LAST.index(file) + 1 if file in LAST else 0)


@pytest.fixture(scope="session")
def starting(bundled_model: Path) -> Iterator[Server]:
    """The shipped application when its ingress answers; its eco tier still starts."""
    server = e2e_application()
    with running(server):
        yield server


@pytest.fixture(scope="session")
def woken(starting: Server) -> Iterator[dict[int, Future[Answer]]]:
    """The first answers of the three cold tiers by power, under way: they start together, and with eco."""
    with ThreadPoolExecutor(len(TIER_OF_POWER)) as pool:
        yield {power: pool.submit(ask, starting, power) for power in TIER_OF_POWER if power != WARM_POWER}


@pytest.fixture(scope="session")
def server(starting: Server, woken: dict[int, Future[Answer]]) -> Server:
    """The shipped application with all tiers warm: answers that stream beside cold starts would stall."""
    wait(woken.values())  # `first` raises what went wrong
    with Api(f"http://{HOST}:{starting.port}") as api:
        api.wait_for(lambda api: "eco" in api.get("/readyz").json()["warm"])
    return starting


@pytest.fixture
def api(server: Server) -> Iterator[Api]:
    with Api(f"http://{HOST}:{server.port}") as api:
        yield api


@pytest.fixture
def client(api: Api) -> Iterator[openai.OpenAI]:
    """The official SDK."""
    with openai.OpenAI(base_url=f"{api.base_url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        yield client


@pytest.fixture(scope="session")
def first(server: Server, woken: dict[int, Future[Answer]]) -> dict[int, Answer]:
    """The first answer of every tier by power."""
    return {WARM_POWER: ask(server, WARM_POWER)} | {power: answer.result() for power, answer in woken.items()}


def ask(server: Server, power: int) -> Answer:
    """The greedy answer of the tier of that power to a question."""
    with Api(f"http://{HOST}:{server.port}") as api:
        return api.infer(prompt=QUESTION, mode="manual", power=power, temperature=0, max_tokens=24)
