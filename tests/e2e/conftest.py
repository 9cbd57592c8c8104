"""One server on real vLLM engines (CPU build) for most e2e tests: a cold start costs most of a minute.

The tests of speculation have engines of their own, without a server (`bench/engine/engines.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import openai
import pytest

from bench.load.client import HOST
from bench.load.servers import Server, running
from cluster.weights import missing_reason, models_dir
from cluster.weights.folder import model_path
from tests.support.api import Api
from tests.support.e2e_app import EARLY_EXIT, MODEL, e2e_application

# Engines without the server, and the one with a cluster of its own, come before it, so that the cores are theirs. Then
# cold starts, so that the tests after them find every tier warm; the test that kills an engine comes last.
FIRST = (
    "test_speculation_engine",
    "test_engine_answers",
    "test_speculation_sampling",
    "test_draft_fallback",
    "test_gpu_nodes",
    "test_bundled_weights",
    "test_fallback",
    "test_inference",
)
LAST = "test_health"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    ours = [item for item in items if here in item.path.parents]
    ours.sort(key=lambda item: _place(item.path.stem))
    items[:] = [item for item in items if here not in item.path.parents] + ours


def _place(file: str) -> int:
    if file in FIRST:
        return FIRST.index(file)
    return len(FIRST) + (file == LAST)


@pytest.fixture(scope="session")
def vllm_installed() -> None:
    """Skips where there is no vLLM."""
    if find_spec("vllm") is None:  # not imported here: that takes ten seconds
        pytest.skip("needs vLLM: pip install --no-deps -r requirements/cpu.txt")


@pytest.fixture(scope="session")
def bundled_model(vllm_installed: None) -> Path:
    """The bundled model's folder."""
    return _folder_of(MODEL)


@pytest.fixture(scope="session")
def early_exit_model(vllm_installed: None) -> Path:
    """The folder of its early-exit draft."""
    return _folder_of(EARLY_EXIT)


def _folder_of(model: str) -> Path:
    if reason := missing_reason(models_dir({}), model):
        pytest.skip(reason)
    return model_path(models_dir({}), model)


@pytest.fixture(scope="session")
def server(bundled_model: Path) -> Iterator[Server]:
    """Both applications behind one Serve, eco of the shipped one warm."""
    server = e2e_application()
    with running(server, timeout_s=300):
        yield server


@pytest.fixture
def api(server: Server) -> Iterator[Api]:
    """The shipped configuration."""
    with Api(f"http://{HOST}:{server.port}") as api:
        yield api


@pytest.fixture
def broken(server: Server) -> Iterator[Api]:
    """Tiers whose first steps cannot start."""
    with Api(f"http://{HOST}:{server.port}/broken") as api:
        yield api


@pytest.fixture
def client(api: Api) -> Iterator[openai.OpenAI]:
    """The official SDK on the shipped configuration."""
    with openai.OpenAI(base_url=f"{api.base_url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        yield client
