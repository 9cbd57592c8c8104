"""One Ray cluster with stub engines for all integration tests: several copies of the application, a route each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bench.load.client import HOST
from bench.load.servers import Server, application, running
from tests.support.agent_cases import KEY
from tests.support.api import Api
from tests.support.messages_api import MessagesApi

FAST_STUB = {"tokens_per_s": 200.0}
# The applications differ only in their config. `main` is the shipped one with stub engines.
APPLICATIONS: dict[str, dict[str, Any]] = {
    "main": {"stub": FAST_STUB},
    "tight": {
        "stub": FAST_STUB,
        "limits": {"max_body_bytes": 2048, "max_prompt_chars": 500, "request_timeout_s": 4},
        "tiers": {"eco": {"max_ongoing_requests": 1, "max_queued_requests": 1}},
        "ingress": {"replicas": 2},
    },
    # Steps named `ngram` pretend not to start: eco falls back, balanced has no other step. The draft of ultra is
    # never good enough.
    "broken": {
        "stub": {"tokens_per_s": 200.0, "failing_entries": ["ngram"]},
        "speculation": {"fallback_min_tokens": 20},
        "tiers": {
            "balanced": {
                "chain": [{"name": "ngram", "target": "smollm2-135m-instruct", "max_model_len": 2048}],
            },
            "ultra": {
                "chain": [
                    {
                        "name": "poor-draft",
                        "target": "smollm2-135m-instruct",
                        "max_model_len": 2048,
                        "speculation": {
                            "method": "draft_model",
                            "draft": "smollm2-135m-instruct-early-exit-4",
                            "k_max": 3,
                            "floor": 0.99,
                        },
                    }
                ],
            },
        },
    },
}


@pytest.fixture(scope="package")
def claude() -> Iterator[MessagesApi]:
    """The Messages API that the agents of `explaining` and `planning` ask."""
    with MessagesApi() as claude:
        yield claude


@pytest.fixture(scope="package")
def server(claude: MessagesApi) -> Iterator[Server]:
    """All applications behind one Serve."""
    stubs = {"profile": "local", "inference_mode": "mock"}
    agents = {
        "explaining": {"mode": "single_shot", "pause_s": 0},
        "planning": {"mode": "multi_turn", "pause_s": 0, "timeout_s": 3.0},
    }
    applications = APPLICATIONS | {
        name: {"stub": FAST_STUB, "agent": agent | {"base_url": claude.url}} for name, agent in agents.items()
    }
    server = application({"/" if name == "main" else f"/{name}": stubs | args for name, args in applications.items()})
    server.env = {**server.env, "ANTHROPIC_API_KEY": KEY}
    with running(server, timeout_s=180):
        yield server


@pytest.fixture
def api(server: Server) -> Iterator[Api]:
    """The shipped configuration with stub engines."""
    with Api(f"http://{HOST}:{server.port}") as api:
        yield api


@pytest.fixture
def tight(server: Server) -> Iterator[Api]:
    """Small limits, two ingress replicas."""
    with Api(f"http://{HOST}:{server.port}/tight") as api:
        yield api


@pytest.fixture
def broken(server: Server) -> Iterator[Api]:
    """Engines whose first steps do not start."""
    with Api(f"http://{HOST}:{server.port}/broken") as api:
        yield api


@pytest.fixture
def explaining(server: Server) -> Iterator[Api]:
    """An agent that explains every plan."""
    with Api(f"http://{HOST}:{server.port}/explaining") as api:
        yield api


@pytest.fixture
def planning(server: Server) -> Iterator[Api]:
    """An agent that makes the plans."""
    with Api(f"http://{HOST}:{server.port}/planning") as api:
        yield api
