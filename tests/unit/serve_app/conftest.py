"""Async tests here run on a clock that jumps, and the application's own clock with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings

from tests.support.virtual_time import VirtualTimeLoop

# A busy machine must not fail a property test.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"virtual": VirtualTimeLoop}


@pytest.fixture(autouse=True)
def _application_clock_is_the_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    def monotonic() -> float:
        return asyncio.get_running_loop().time()

    for module in ("serve_app.inference", "serve_app.openai_relay"):
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(monotonic=monotonic))
