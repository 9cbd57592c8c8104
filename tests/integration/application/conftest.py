"""One Ray cluster with stub engines: several copies of the application, a route each.

They differ only in their config. A start costs a minute, so a test that wants another config adds it to one of them
where that disturbs no other test.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.load.client import HOST
from bench.load.servers import Server, application, running
from cluster.profiles.reading import merge
from router.registry import TIER_NAMES
from serve_app.auth.key_file import write_keys
from serve_app.auth.keys import KeyList
from tests.support.agent_cases import KEY
from tests.support.api import Api
from tests.support.messages_api import MessagesApi
from tests.support.raw_http import QUICK, connected, request

# Those that wake a tier that others want cold, that look at what took its time meanwhile, that change what others see.
LAST = (
    *("test_fallback", "test_stalled", "test_pool_restart", "test_poor_draft", "test_runs", "test_metrics"),
    *("test_fuzz", "test_stopping"),
)
STUBS: dict[str, Any] = {
    "profile": "local",
    "inference_mode": "mock",
    "stub": {"tokens_per_s": 200.0},
    # Of Ray: five applications with all that tests wake must find room on two cores.
    "tiers": {name: {"cpus": 0.05} for name in TIER_NAMES},
}
TIGHT: dict[str, Any] = {
    "limits": {"max_body_bytes": 2048, "max_prompt_chars": 500, "request_timeout_s": 4},
    "tiers": {
        "eco": {"max_ongoing_requests": 1, "max_queued_requests": 1},
        "performance": {"idle_before_zero_s": 5.0},
    },
    "ingress": {"replicas": 2},
}
# Chain entries named `ngram` pretend not to start: eco falls back, balanced has no other entry. The draft of ultra is
# never good enough.
BROKEN: dict[str, Any] = {
    "stub": {"failing_entries": ["ngram"]},
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
}
EXPLAINING: dict[str, Any] = {"agent": {"mode": "single_shot", "pause_s": 0}}
PLANNING: dict[str, Any] = {
    "agent": {"mode": "multi_turn", "pause_s": 0, "timeout_s": 3.0},
    "tiers": {
        "eco": {"max_ongoing_requests": 1},
        # A stub serves any model. All other tiers have the same one, so this is the only stronger tier.
        "ultra": {
            "cold_start_s": 5.0,
            "chain": [{"name": "other", "target": "smollm2-135m-instruct-early-exit-4", "max_model_len": 2048}],
        },
    },
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    places = [place for place, item in enumerate(items) if here in item.path.parents]
    for place, item in zip(places, sorted((items[place] for place in places), key=_place), strict=True):
        items[place] = item


def _place(item: pytest.Item) -> int:
    return 1 + LAST.index(item.path.stem) if item.path.stem in LAST else 0


@pytest.fixture(scope="package")
def claude() -> Iterator[MessagesApi]:
    """The Messages API that the agents ask."""
    with MessagesApi() as claude:
        yield claude


@pytest.fixture(scope="package")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The keys of the application that asks for them; none yet."""
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    write_keys(path, KeyList(version=1))
    return path


@pytest.fixture(scope="package")
def server(claude: MessagesApi, keys_file: Path) -> Iterator[Server]:
    """All applications behind one Serve."""
    locked = {"auth": {"mode": "keys", "keys_file": str(keys_file)}, "ingress": {"replicas": 2}}
    agent = {"agent": {"base_url": claude.url}}
    server = application(
        {
            "/": STUBS,
            "/tight": merge(STUBS, TIGHT),
            "/broken": merge(merge(STUBS, BROKEN), merge(EXPLAINING, agent)),
            "/locked": merge(STUBS, locked),
            "/planning": merge(STUBS, merge(PLANNING, agent)),
        }
    )
    # Ray shows metrics after 3 s instead of 10.
    server.env = {**server.env, "ANTHROPIC_API_KEY": KEY, "RAY_metrics_report_interval_ms": "3000"}
    with running(server):
        yield server


Stalled = dict[str, list[socket.socket]]


@pytest.fixture(scope="package")
def stalled(server: Server) -> Iterator[Stalled]:
    """Connections that have sent most of a request, by the code of the error that they get when their time is over."""
    small = request(QUICK)[:-5]  # waits in HAProxy
    large = request({**QUICK, "prompt": "x" * 60_000})[:-5]  # more than HAProxy holds: waits in the ingress
    with contextlib.ExitStack() as stack:
        waiting: Stalled = {"request_timeout": [], "body_timeout": []}
        for sent, code in ((small, "request_timeout"), (large, "body_timeout")):
            for _ in range(100):
                connection = stack.enter_context(connected(server))
                connection.sendall(sent)
                waiting[code].append(connection)
        yield waiting


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
def locked(server: Server) -> Iterator[Api]:
    """One that asks for keys, with two ingress replicas."""
    with Api(f"http://{HOST}:{server.port}/locked") as api:
        yield api


@pytest.fixture
def broken(server: Server) -> Iterator[Api]:
    """Engines whose first chain entries do not start."""
    with Api(f"http://{HOST}:{server.port}/broken") as api:
        yield api


@pytest.fixture
def explaining(broken: Api) -> Api:
    """An agent that explains every plan."""
    return broken


@pytest.fixture
def planning(server: Server) -> Iterator[Api]:
    """An agent that makes the plans; the eco tier takes one request at a time."""
    with Api(f"http://{HOST}:{server.port}/planning") as api:
        yield api
