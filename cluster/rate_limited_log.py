"""A log for warnings that may repeat at every engine step or request."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable


class RateLimitedLog:
    """Logs warnings of one kind at most once per interval, with the number of those it left out.

    Args:
        logger: writes them.
        every_s: shortest time between two warnings of one kind, s.
        clock: monotonic, s.
    """

    def __init__(
        self, logger: logging.Logger, every_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._every_s = every_s
        self._clock = clock
        self._logged: dict[str, tuple[float, int]] = {}
        """By kind: when it was last logged, and how many were left out since."""

    def warning(self, kind: str, message: str, *args: object, error: BaseException | None = None) -> None:
        """Log or count it. `kind` is one of a few fixed words; an error is logged with its traceback."""
        now_s = self._clock()
        logged_s, left_out = self._logged.get(kind, (float("-inf"), 0))
        if now_s - logged_s < self._every_s:
            self._logged[kind] = logged_s, left_out + 1
            return
        self._logged[kind] = now_s, 0
        suffix = f" (and {left_out} more like it)" if left_out else ""
        self._logger.warning(message + suffix, *args, exc_info=error)
