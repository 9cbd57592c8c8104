"""Real engines without Serve, each in a process of its own (`bench/engine_host.py`), and what they answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from bench.processes import stop_tree
from bench.report import REPOSITORY
from cluster.cpu_engine import cpu_environment
from router.tiers import Step, Tier

K = int | Literal["auto"]
_LOG_TAIL_BYTES = 4000


class EngineGoneError(RuntimeError):
    """An engine has ended; the message is the end of its log."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request."""

    arrivals: tuple[tuple[float, int], ...]
    """(time since the request, s; tokens) of each item of its stream, in order."""
    steps: int
    """Verification steps that had drafts."""
    draft_tokens: int
    accepted_tokens: int
    reasons: dict[str, int]
    """Engine steps by why they had so many drafts."""

    @property
    def tokens(self) -> int:
        """Completion tokens."""
        return sum(count for _, count in self.arrivals)

    @property
    def itl_s(self) -> list[float]:
        """Inter-token latencies, s; the tokens of one item share the wait for it equally."""
        gaps: list[float] = []
        for (before_s, _), (after_s, count) in zip(self.arrivals, self.arrivals[1:], strict=False):
            gaps += [(after_s - before_s) / count] * count
        return gaps


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that were asked at the same time."""

    seconds: float
    """From the first request to the last token."""
    answers: tuple[Answer, ...]

    @property
    def tokens(self) -> int:
        """Completion tokens of all answers."""
        return sum(answer.tokens for answer in self.answers)


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """A started engine."""

    name: str
    _process: subprocess.Popen[str]
    _log: IO[bytes]

    def ask(self, prompts: Sequence[str], k: K, max_tokens: int) -> Batch:
        """Ask all prompts at once, greedily, each to be drafted for with that depth.

        Raises:
            EngineGoneError: the engine has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asks = [{"prompt": prompt, "k": k, "max_tokens": max_tokens} for prompt in prompts]
        try:
            self._process.stdin.write(json.dumps(asks) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            raise EngineGoneError(f"engine {self.name} has ended:\n{self._log.read().decode(errors='replace')}")
        return batch_from(json.loads(line))


def batch_from(data: dict[str, Any]) -> Batch:
    """A batch as the host process writes it."""
    answers = [
        Answer(**{**answer, "arrivals": tuple((at_s, count) for at_s, count in answer["arrivals"])})
        for answer in data["answers"]
    ]
    return Batch(data["seconds"], tuple(answers))


@contextmanager
def running_engine(name: str, tier: Tier, step: Step, models_dir: Path) -> Iterator[RunningEngine]:
    """Start the engine of a step; it has started when it answers, and ends with the block."""
    config = {
        "tier": tier.model_dump(mode="json"),
        "step": step.model_dump(mode="json"),
        "models_dir": str(models_dir),
    }
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.engine_host", json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=REPOSITORY,
            env=os.environ | (cpu_environment(Path(sys.prefix)) if tier.gpu is None else {}),
        )
        try:
            yield RunningEngine(name, process, log)
        finally:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                stop_tree(process.pid)
                process.wait()
            process.stdout.close()
