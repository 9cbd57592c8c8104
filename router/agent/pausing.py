"""Stops asking an API that keeps failing, for a while: each request would wait for the same failure again."""

from __future__ import annotations

from router.agent.report import API_FAILURES, Fallback


class Pausing:
    """Counts failures in a row.

    Args:
        after: so many of them begin a pause; the first failure after a pause begins the next.
        pause_s: how long it lasts, s.
    """

    def __init__(self, after: int, pause_s: float) -> None:
        self._after = after
        self._pause_s = pause_s
        self._failures = 0
        self._until_s = float("-inf")

    def left_s(self, now_s: float) -> float:
        """What is left of a pause, s; 0: the API may be asked."""
        return max(0.0, self._until_s - now_s)

    def note(self, ending: Fallback | None, now_s: float) -> None:
        """How a request ended that asked the API."""
        if ending is None or ending.code not in API_FAILURES:
            self._failures = 0
            return
        self._failures += 1
        if self._failures >= self._after:
            self._until_s = now_s + self._pause_s
