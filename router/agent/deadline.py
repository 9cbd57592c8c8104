"""Work that must end in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from router.agent.report import Fallback

AnswerT = TypeVar("AnswerT")


async def within(timeout_s: float, work: Awaitable[AnswerT]) -> AnswerT | Fallback:
    """The work's answer, or `timeout`; what it had in hand is then closed."""
    try:
        async with asyncio.timeout(timeout_s):
            return await work
    except TimeoutError:
        return Fallback("timeout", f"no end after {timeout_s:g} s")
