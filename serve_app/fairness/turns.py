"""Whose turn it is where requests wait for places: of the key that holds the fewest, and batch requests last."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from serve_app.fairness.claims import Claim
from serve_app.fairness.places import Holders

Waiter = TypeVar("Waiter")


class Turns(Generic[Waiter]):
    """The requests that hold places, and those that wait for one, each key's in the order in which they came."""

    def __init__(self) -> None:
        self.holders = Holders()
        self._waiting: dict[Claim, deque[tuple[int, Waiter]]] = {}
        self._came = 0

    def __len__(self) -> int:
        """Requests that wait."""
        return sum(len(queue) for queue in self._waiting.values())

    def wait(self, claim: Claim, waiter: Waiter) -> None:
        """Add a request that waits."""
        self._came += 1
        self._waiting.setdefault(claim, deque()).append((self._came, waiter))

    def leave(self, claim: Claim, waiter: Waiter) -> None:
        """Take out a request that waits no longer, if it is there."""
        queue = self._waiting.get(claim, deque())
        left = [pair for pair in queue if pair[1] != waiter]
        self._keep(claim, deque(left))

    def next(self, places: int) -> Waiter | None:
        """Return who may take a place now, which it then holds; None: nobody may, or nobody waits.

        Args:
            places: that there are.
        """
        ranked = sorted(self._waiting, key=lambda claim: (claim.batch, self.holders.of(claim), self._since(claim)))
        for claim in ranked:
            if self.holders.may_take(claim, places):
                queue = self._waiting[claim]
                _, waiter = queue.popleft()
                self._keep(claim, queue)
                self.holders.take(claim)
                return waiter
        return None

    def _since(self, claim: Claim) -> int:
        return self._waiting[claim][0][0]

    def _keep(self, claim: Claim, queue: deque[tuple[int, Waiter]]) -> None:
        if queue:
            self._waiting[claim] = queue
        else:
            self._waiting.pop(claim, None)
