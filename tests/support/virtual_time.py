"""An event loop whose clock jumps: waits end at once and in order, so a test of a 15 s ping takes no time."""

from __future__ import annotations

import asyncio
import selectors


class NothingCanHappenError(AssertionError):
    """Every task waits, no timer is set and no I/O is ready: a real loop would hang here."""


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of sleeping until the next timer, adds the time to `now_s`."""

    now_s = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise NothingCanHappenError
        self.now_s += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop for tests without threads and sockets."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s
