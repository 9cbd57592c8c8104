"""One server on real vLLM engines (CPU build) for all e2e tests: a cold start costs most of a minute."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
def server(bundled_model: Path) -> Iterator[Server]:
    """The shipped application with its eco tier warm."""
    server = e2e_application()
    with running(server):
        yield server


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
def first(server: Server) -> dict[int, Answer]:
    """The first answer of every tier by power; the three cold ones are woken together."""
    with ThreadPoolExecutor(len(TIER_OF_POWER)) as pool:
        answers = pool.map(lambda power: ask(server, power), TIER_OF_POWER)
        return dict(zip(TIER_OF_POWER, answers, strict=True))


def ask(server: Server, power: int) -> Answer:
    """The greedy answer of the tier of that power to a question."""
    with Api(f"http://{HOST}:{server.port}") as api:
        return api.infer(prompt=QUESTION, mode="manual", power=power, temperature=0, max_tokens=24)
