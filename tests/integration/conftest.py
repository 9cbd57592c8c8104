"""One Ray cluster with stub engines for all integration tests: several copies of the application, a route each."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from bench.client import HOST
from bench.servers import Server, free_port, running
from tests.support.api import Api

FAST_STUB = {"tokens_per_s": 200.0}
# The applications differ only in their config. `main` is the shipped one with stub engines.
APPLICATIONS: dict[str, dict[str, Any]] = {
    "main": {"stub": FAST_STUB},
    "tight": {
        "stub": FAST_STUB,
        "limits": {"max_body_bytes": 2048, "max_prompt_chars": 500, "retry_after_s": 7, "request_timeout_s": 4},
        "tiers": {"eco": {"max_ongoing_requests": 1, "max_queued_requests": 1}},
        "ingress": {"replicas": 2},
    },
    # Steps named `ngram` pretend not to start: eco falls back, balanced has no other step.
    "broken": {
        "stub": {"tokens_per_s": 200.0, "failing_steps": ["ngram"]},
        "tiers": {
            "balanced": {
                "chain": [{"name": "ngram", "target": "smollm2-135m-instruct", "max_model_len": 2048}],
            }
        },
    },
}


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """All applications behind one Serve."""
    port = free_port()
    scratch = Path(tempfile.mkdtemp(prefix="plt-"))  # short: Ray's socket paths below it are limited to 107 bytes
    config = {
        "http_options": {"host": HOST, "port": port, "request_timeout_s": None},
        "applications": [
            {
                "name": name,
                "route_prefix": "/" if name == "main" else f"/{name}",
                "import_path": "serve_app.app:build",
                "args": {"profile": "local", "inference_mode": "mock", **args},
            }
            for name, args in APPLICATIONS.items()
        ],
    }
    path = scratch / "serve_config.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    server = Server(
        name="integration",
        command=[str(Path(sys.executable).with_name("serve")), "run", "--address", "local", str(path)],
        port=port,
        ready_path="/readyz",
        env={
            "RAY_TMPDIR": str(scratch),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
            "RAY_worker_niceness": "0",
        },
        scratch=scratch,
    )
    with running(server, timeout_s=180):
        for name in APPLICATIONS:
            if name != "main":
                _wait_ready(f"http://{HOST}:{port}/{name}")
        yield server


def _wait_ready(base_url: str) -> None:
    Api(base_url).wait_for(lambda api: api.get("/readyz").status_code == 200, timeout_s=120)


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
