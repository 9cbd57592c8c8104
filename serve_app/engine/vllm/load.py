"""What the engine's outputs say about its load: waits in its queue, and how much of its time it has prompts to read.
Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from serve_app.engine.recent import Recent


@dataclass(slots=True)
class OutputLoad:
    """Waits and prefills of recent requests.

    All times are the engine core's, which is on this machine: `time.monotonic()`, s.
    """

    _waits: Recent = field(default_factory=Recent)
    _prefills: Recent = field(default_factory=Recent)
    _read_until_s: float = 0.0

    def saw(self, queued_s: float | None, scheduled_s: float | None, now_s: float) -> None:
        """Take an output. Only a request's first one counts: others say nothing, or only that it was scheduled again.

        Args:
            queued_s: when the request began to wait, if the output says so.
            scheduled_s: when it was scheduled first since, if the output says so.
            now_s: when the output's tokens were made.
        """
        if queued_s is None or scheduled_s is None:
            return
        self._waits.add(max(0.0, scheduled_s - queued_s), now_s)
        # Time with several prompts counts once.
        self._prefills.add(max(0.0, now_s - max(scheduled_s, self._read_until_s)), now_s)
        self._read_until_s = max(self._read_until_s, now_s)

    def queue_wait_ms(self, now_s: float) -> float:
        """Return the mean time in the engine's waiting queue, ms."""
        return 1000 * self._waits.mean(now_s)

    def prompts(self, now_s: float) -> float:
        """Return the share of the time (0-1) in which the engine had a prompt to read."""
        return min(1.0, self._prefills.share(now_s))
