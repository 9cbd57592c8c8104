"""Real event loops for tests with sockets: the standard one, and the one that Ray installs in its workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import pytest
import uvloop

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

FACTORIES: Final[dict[str, LoopFactory]] = {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}
REAL_LOOPS: Final = pytest.mark.asyncio(loop_factories=list(FACTORIES))
"""Runs a test once on each of them."""


def asks_for_real_loops(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("asyncio")
    return marker is not None and "loop_factories" in marker.kwargs
