"""Async tests here run on a clock that jumps."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.support.real_loops import LoopFactory
from tests.support.virtual_time import VirtualTimeLoop


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, LoopFactory]:
    return {"virtual": VirtualTimeLoop}
