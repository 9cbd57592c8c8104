"""One application with stub engines for the long tests, which `make test-long` runs and CI does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.load.client import HOST
from bench.load.servers import Server, application, running
from tests.integration.application.conftest import STUBS
from tests.support.api import Api


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    server = application({"/": STUBS})
    with running(server):
        yield server


@pytest.fixture
def api(server: Server) -> Iterator[Api]:
    with Api(f"http://{HOST}:{server.port}") as api:
        yield api
