"""A log for what may repeat at every step or request."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable


class SeldomLog:
    """Tells the same kind of thing at most once in a while, and then how often it happened meanwhile.

    Args:
        logger: where to.
        every_s: shortest time between two words of the same kind, s.
        clock: monotonic, s.
    """

    def __init__(
        self, logger: logging.Logger, every_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._every_s = every_s
        self._clock = clock
        self._told: dict[str, tuple[float, int]] = {}
        """By kind: when it was last told, and how often it happened since."""

    def warning(self, kind: str, message: str, *args: object, error: BaseException | None = None) -> None:
        """Tell it, or count it. `kind` is one of a few fixed words; with an error its traceback is told too."""
        now_s = self._clock()
        told_s, missed = self._told.get(kind, (float("-inf"), 0))
        if now_s - told_s < self._every_s:
            self._told[kind] = told_s, missed + 1
            return
        self._told[kind] = now_s, 0
        self._logger.warning(message + (f" (and {missed} more like it)" if missed else ""), *args, exc_info=error)
