"""Many `/api/inference` streams at once, each read to its end by a thread of its own."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tests.support.api import Answer, Api


@dataclass
class Streams:
    """Streams under way; `answers` waits for them."""

    url: str
    bodies: list[dict[str, Any]] = field(default_factory=list)
    futures: list[Future[Answer]] = field(default_factory=list)

    def start(self, bodies: Sequence[dict[str, Any]]) -> None:
        """More of them."""
        pool = ThreadPoolExecutor(len(bodies))
        self.bodies += bodies
        self.futures += [pool.submit(self._infer, body) for body in bodies]
        pool.shutdown(wait=False)

    def answers(self, timeout_s: float) -> list[Answer]:
        """All of them, whole."""
        return [future.result(timeout_s) for future in self.futures]

    @property
    def under_way(self) -> int:
        """How many have not ended."""
        return sum(not future.done() for future in self.futures)

    def _infer(self, body: dict[str, Any]) -> Answer:
        with Api(self.url) as api:
            return api.infer(**body)
