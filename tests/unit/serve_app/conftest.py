"""Async tests here run on a virtual clock that skips waits, and so does the application's own clock.

Tests that need sockets ask for the real loops instead: `pytestmark = REAL_LOOPS` (tests/support/real_loops.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from tests.support.real_loops import FACTORIES, LoopFactory, asks_for_real_loops
from tests.support.virtual_time import VirtualTimeLoop


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, LoopFactory]:
    return FACTORIES if asks_for_real_loops(item) else {"virtual": VirtualTimeLoop}


@pytest.fixture(autouse=True)
def _application_clock_is_the_loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if asks_for_real_loops(request.node):
        return  # uvloop's clock stands still within a round of the loop, and goes by milliseconds

    def monotonic() -> float:
        return asyncio.get_running_loop().time()

    for module in ("serve_app.api.inference", "serve_app.api.request_record", "serve_app.api.v1.exchange"):
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(monotonic=monotonic))
