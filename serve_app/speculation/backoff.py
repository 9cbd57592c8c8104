"""When to look again: intervals that double with every failure, up to a bound."""

from __future__ import annotations

from typing import NamedTuple


class Backoff(NamedTuple):
    """Steps between looks. Whatever the outcomes, two looks are at least the first interval apart."""

    first: int
    most: int
    interval: int
    """Current interval, steps."""
    due: int
    """Step from which on the next look may be taken."""

    @classmethod
    def starting(cls, step: int, first: int, most: int) -> Backoff:
        """From this step on, with the first interval."""
        return cls(first, max(first, most), first, step + first)

    def looked(self, step: int) -> Backoff:
        """A look was taken; what it shows is not known yet, and may never be (no draft was found)."""
        return self._replace(due=step + self.interval)

    def failed(self, step: int) -> Backoff:
        """It showed nothing good: wait twice as long."""
        interval = min(self.most, 2 * self.interval)
        return self._replace(interval=interval, due=step + interval)

    def succeeded(self, step: int) -> Backoff:
        """It showed something good: start over."""
        return self._replace(interval=self.first, due=step + self.first)
