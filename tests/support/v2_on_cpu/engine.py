"""The client: what to start, what to ask, what came of it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.support.v2_on_cpu.host import serve

ANSWER_S = 1500.0
"""Longest wait for an answer, s."""


@dataclass(frozen=True)
class EngineSpec:
    """An engine: arguments of vLLM, and our scheduler and worker if it speculates."""

    models: Path
    """Folder with `target`, `draft` and `eagle3`."""
    method: Literal["ngram", "ngram_gpu", "draft_model", "eagle3"] | None = None
    draft: str | None = None
    """Folder of the draft below `models`."""
    asynchronous: bool = False
    ours: bool = True
    """False: vLLM's own scheduler and worker."""
    composite: bool = False
    """Whether the entry can also draft by n-gram lookup."""
    k_max: int = 3
    max_model_len: int = 256
    max_num_batched_tokens: int = 128
    max_num_seqs: int = 4
    kv_blocks: int = 64
    """Of the KV cache, 32 tokens each."""


@dataclass(frozen=True)
class Ask:
    """One request."""

    prompt: str
    k: int | Literal["auto"] | None = None
    max_tokens: int = 16
    temperature: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    regex: str | None = None
    """Structured output: the answer matches it."""
    depths: tuple[int, ...] = ()
    """Drafts that the controller decides on in each step from the one that ends the prefill; the last one stays. Empty:
    it decides by itself."""
    abort_after: int | None = None
    """Tokens after which the client leaves."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Further extra arguments of the sampling parameters."""


@dataclass(frozen=True)
class Step:
    """An engine step as vLLM's runner saw it."""

    k: int
    """Most draft tokens that its drafting was asked for."""
    scheduled: dict[int, int]
    """Tokens of each request, by its place in the asks."""
    drafts: dict[int, int]
    """Draft tokens of each request among them."""
    verified: dict[int, tuple[int, int]]
    """Of each request that got tokens: (draft tokens verified, how many of them were accepted)."""
    draft_forwards: tuple[int, ...]
    """Tokens of each forward pass of the draft model or head."""
    proposed: dict[int, list[int]]
    """Draft tokens made for each request at the end of the step."""
    times: dict[str, Any] | None
    """What the worker measured, as it came to the scheduler."""


@dataclass(frozen=True)
class Reply:
    """The answer to one request."""

    token_ids: list[int]
    text: str
    finish_reason: str | None
    """None: aborted."""
    records: list[dict[str, Any]]
    """Our `StepRecord`s, in the order of the engine's outputs."""


@dataclass(frozen=True)
class Batch:
    """The answers to requests that ran together, and the engine steps that it took."""

    replies: list[Reply]
    steps: list[Step]
    preemptions: int

    def verified(self, ask: int) -> list[tuple[int, int]]:
        """Return (verified, accepted) of each step in which the request got tokens, counted in vLLM's runner."""
        return [step.verified[ask] for step in self.steps if ask in step.verified]


class V2Engine:
    """A running engine."""

    def __init__(self, host: Host, info: dict[str, Any]) -> None:
        self._host = host
        self.info = info
        """`runner`, `speculator`, `scheduler` and `worker` as classes, `asynchronous`, and where the `texts` are."""

    def run(self, asks: Sequence[Ask]) -> Batch:
        """Return what comes of requests that arrive together."""
        batch: Batch = self._host.call("run", list(asks))
        return batch

    def warm_up(self) -> bool:
        """See `ObservedEngine`."""
        ran: bool = self._host.call("warm_up")
        return ran


class Host:
    """The process that runs engines, one after another."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe

    @contextmanager
    def engine(self, spec: EngineSpec) -> Iterator[V2Engine]:
        """Run an engine."""
        info = self.call("start", spec)
        try:
            yield V2Engine(self, info)
        finally:
            self.call("stop")

    def sample_with_drafts(
        self, logits: list[list[float]], drafts: list[int], requests: int, temperature: float
    ) -> list[list[int]]:
        """See `sampler.py`; needs no engine."""
        tokens: list[list[int]] = self.call("sample_with_drafts", logits, drafts, requests, temperature)
        return tokens

    def call(self, *call: Any) -> Any:
        """Return the answer of a function of `ObservedEngine`."""
        self._pipe.send(call)
        if not self._pipe.poll(ANSWER_S):
            raise TimeoutError(f"no answer to {call[0]} for {ANSWER_S:.0f} s")
        error, answer = self._pipe.recv()
        if error:
            raise RuntimeError(error)
        return answer


@contextmanager
def v2_host(*, v2: bool = True) -> Iterator[Host]:
    """Run the process: the shim must come before any import of vLLM. Its start takes most of an engine's."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), kwargs={"v2": v2}, daemon=True)
    process.start()
    theirs.close()
    try:
        yield Host(ours)
    finally:
        ours.close()
        process.join(20)
        if process.is_alive():
            process.kill()
            process.join()
