"""How long calls are made again of which no replica is known to have taken one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

MOST_REPEATS: Final = 2
"""A prompt that ends engines must not end them all."""
PAUSE_S: Final = 0.25
"""Between two calls, s."""
_AT_ONCE_S: Final = 1.0
"""A call that is lost later than that, s, has waited for a replica, or had one."""
_GIVE_UP_AFTER_S: Final = 15.0
"""Calls that are lost at once are made again for so long, s: Serve may not know yet that a replica is gone."""


@dataclass(slots=True)
class Patience:
    """Of one request: calls that are lost at once, for a while; those that are lost later, a few times.

    A call may wait minutes for a replica that starts: that is no reason to be impatient with the next one.

    Args:
        clock: monotonic, s.
    """

    clock: Callable[[], float]
    _called_s: float = field(init=False)
    _since_s: float | None = field(default=None, init=False)
    """Since when calls are lost at once; None: the last one was not lost."""
    _later: int = field(default=0, init=False)
    """Calls that were lost later."""

    def __post_init__(self) -> None:
        self._called_s = self.clock()

    @property
    def tried(self) -> bool:
        """Whether the last call was lost."""
        return self._since_s is not None

    def called(self) -> None:
        """Note a call."""
        self._called_s = self.clock()

    def taken(self) -> None:
        """Note that a replica has taken the last call."""
        self._since_s = None

    def is_over(self) -> bool:
        """Note that the last call was lost; return whether it is useless to make it again."""
        now_s = self.clock()
        if now_s - self._called_s > _AT_ONCE_S:
            self._later += 1
            self._since_s = now_s
        elif self._since_s is None:
            self._since_s = now_s
        return self._later > MOST_REPEATS or now_s - self._since_s > _GIVE_UP_AFTER_S
