"""Real engines in processes of their own, without a server: the replica's `VllmEngine`, for benchmarks and tests.

    with engine_process(entry, tier, models, log) as engine:
        batch = engine.ask([Ask("What is the capital of France?", k=2)])

vLLM's CPU build needs a library that is loaded when a process starts (`LD_PRELOAD`), so an engine cannot run in the
client's process. The other end is `bench/engine/host.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from threading import Timer
from types import MappingProxyType
from typing import Any, Literal

from bench.load.processes import stop_tree
from bench.reporting.report import REPOSITORY
from cluster.cpu_environment import cpu_environment
from cluster.gpu_environment import gpu_environment
from cluster.weights import models_dir
from router.registry import ChainEntry, Drafts, DraftsChoice, Tau, Tier
from serve_app.fairness.claims import ANYBODY, Claim
from serve_app.speculation.settings import SpeculationSettings
from sustainability.shares import NOTHING, Totals

CLIENT_ID = "power-lever-drafts:ngram"
"""Prefix of the request ids. Clients may choose any ids; these look like orders to switch drafts, and are none."""


class EngineGoneError(RuntimeError):
    """An engine has ended; the message has the end of its log."""


class RefusedError(RuntimeError):
    """An engine has refused a request; the fields are those of `EngineError`."""

    def __init__(self, code: str, status: int, retryable: bool, message: str) -> None:
        super().__init__(message)
        self.code, self.status, self.retryable, self.message = code, status, retryable, message


@dataclass(frozen=True)
class CallReply:
    """The answer of one call of an OpenAI route."""

    status: int
    body: str
    failure: tuple[str, int, bool, str] | None
    """(code, status, retryable, message) where the replica reports a failure."""

    @property
    def error(self) -> dict[str, Any]:
        """The error in the body."""
        error: dict[str, Any] = json.loads(self.body)["error"]
        return error


@dataclass(frozen=True)
class Ask:
    """One request."""

    prompt: str
    k: int | Literal["auto"] = "auto"
    tau: Tau = 0.0
    max_tokens: int = 32
    temperature: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    category: str | None = None
    """The prompt's category; None: as the router classifies it."""
    pause_steps: int = 0
    """Engine steps that a slow client lets pass after each item of the stream, so that vLLM merges them."""
    system: str | None = None
    """System message before the prompt; None: there is none."""
    drafts: DraftsChoice | None = None
    """Who drafts; None: as the engine does for all."""
    leave_after: int | None = None
    """Tokens after which the client leaves, which aborts the request; None: it stays."""
    begun: str = ""
    """The answer so far, which this one continues."""
    watch: bool = False
    """Whether to tell how the answer goes."""
    late: bool = False
    """Sent only when another one has its first tokens."""
    claim: Claim = ANYBODY
    """In whose name it asks."""


@dataclass(frozen=True)
class StepTaken:
    """One engine step of a request, from our own record."""

    drafted: int
    accepted: int
    reason: str
    drafts: Drafts
    """Who made the drafts."""


@dataclass(frozen=True)
class Reply:
    """The answer to one request."""

    token_ids: list[int]
    accepted: list[bool]
    """`spec_accepted` of each token."""
    text: str
    began_s: float
    """When the request began, s after the first of its batch."""
    arrivals: list[tuple[float, int]]
    """(time since the request, s; tokens) of each item; fewer items than steps where the client was slow."""
    finish_reason: str
    prompt_tokens: int
    draft_tokens: int
    accepted_tokens: int
    reasons: dict[str, int]
    stopped_by_tau: bool
    steps: list[StepTaken]
    core_steps: list[tuple[int, int]] | None
    """(drafted, accepted) of each verification from vLLM's engine core; None: the core did not end the answer."""
    spec_drafts: dict[Drafts, tuple[int, int]] = field(default_factory=dict)
    """(drafted, accepted) by who drafted."""
    spec_tau: float | None = None
    """Acceptance rate below which it would have stopped drafting at its end."""
    busy_s: float = 0.0
    """Its share of the engine's busy time, s; of a client that left, until its last item."""
    busy_j: float | None = None
    """What it was billed by measurement, J; None: by the model."""
    signs: tuple[float, ...] | None = None
    """How it went: the fields of `Signs`; None: it had no token."""
    taken_s: float = 0.0
    """Time until the engine had taken it, s."""

    @property
    def ended_s(self) -> float:
        """When the last token came, s after the first request of the batch began."""
        return self.began_s + self.arrivals[-1][0]

    @property
    def ttft_s(self) -> float:
        """Time to first token, s."""
        return self.arrivals[0][0]

    @property
    def itl_s(self) -> list[float]:
        """Inter-token latencies, s; the tokens of one item share the wait for it equally."""
        return [gap_s / count for gap_s, count in self.gaps for _ in range(count)]

    @property
    def gaps(self) -> list[tuple[float, int]]:
        """(time since the item before, s; tokens) of each item after the first."""
        return [(after_s - before_s, count) for (before_s, _), (after_s, count) in pairwise(self.arrivals)]

    @property
    def verifications(self) -> list[tuple[int, int]]:
        """`core_steps` from our own record."""
        return [(step.drafted, step.accepted) for step in self.steps if step.drafted]

    @property
    def depths(self) -> set[int]:
        """Draft tokens verified in a step."""
        return {step.drafted for step in self.steps}

    @property
    def flags_of_steps(self) -> list[bool]:
        """What `accepted` must be: for each step its accepted drafts, then the target's own token, cut at the end."""
        flags = [position < step.accepted for step in self.steps for position in range(step.accepted + 1)]
        return flags[: len(self.token_ids)]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Reply:
        """Return the reply that `host.py` wrote."""
        core = data["core_steps"]
        parsed = {
            "arrivals": [(at_s, tokens) for at_s, tokens in data["arrivals"]],
            "steps": [StepTaken(*step) for step in data["steps"]],
            "core_steps": None if core is None else [(drafted, accepted) for drafted, accepted in core],
            "spec_drafts": {drafts: (made[0], made[1]) for drafts, made in data["spec_drafts"].items()},
            "signs": None if data["signs"] is None else tuple(data["signs"]),
        }
        return cls(**{each.name: {**data, **parsed}[each.name] for each in fields(cls)})


@dataclass(frozen=True)
class BatchEnergy:
    """What the cards' counters showed while a batch was under way, and what became of it, J."""

    reason: str | None
    """Why nothing was measured; None: it was, and the rest holds."""
    counter_j: float = 0.0
    """Growth of the counters."""
    busy_j: float = 0.0
    idle_j: float = 0.0
    """The parts of it in which the engine worked, and did not."""
    billed_j: float = 0.0
    """What answers were billed by measurement."""
    aside_j: float = 0.0
    """What no answer was billed by measurement."""
    owed_j: float = 0.0
    """What was not billed yet, more than before."""


@dataclass(frozen=True)
class Batch:
    """The answers to requests that were sent together, in the order of the requests."""

    replies: list[Reply]
    seconds: float
    """From the first request to the last token."""
    preemptions: int
    """Preemptions while this batch was under way."""
    order_s: float | None
    """How long the order to switch drafts took, s; None: there was none."""
    own_drafts: tuple[int, int]
    """(drafted, accepted) by the entry's own draft since the start."""
    loop_s: float = 0.0
    """Longest time that the engine's event loop worked without a pause, s of CPU."""
    energy: BatchEnergy | None = None
    """None: it was not to be measured."""
    busy: Totals = NOTHING
    """Where the engine's busy time went, while this batch was under way, as of the last end of an answer."""
    refused: list[RefusedError] = field(default_factory=list)
    """Requests that the engine refused, where that was allowed; `replies` has the others."""
    cached_tokens: int = 0
    """Prompt tokens of this batch that the engine had in its cache."""
    silent_s: float = 0.0
    """Longest time in which the engine had requests and finished no step, s."""

    @property
    def full(self) -> tuple[float, float]:
        """When all places were decoding, s after the first request.

        From the last first token of the requests that began together to the first end after the last one began. The
        whole time if answers are too short for that.
        """
        first_end_s = min(reply.ended_s for reply in self.replies)
        last_begin_s = max(reply.began_s for reply in self.replies)
        began_s = max(reply.began_s + reply.ttft_s for reply in self.replies if reply.began_s < first_end_s)
        ended_s = min(reply.ended_s for reply in self.replies if reply.ended_s > last_begin_s)
        return (began_s, ended_s) if began_s < ended_s else (0.0, max(reply.ended_s for reply in self.replies))

    @property
    def full_s(self) -> float:
        """Length of that time, s."""
        began_s, ended_s = self.full
        return ended_s - began_s

    @property
    def full_tokens(self) -> int:
        """Completion tokens in that time."""
        began_s, ended_s = self.full
        return sum(
            tokens
            for reply in self.replies
            for at_s, tokens in reply.arrivals
            if began_s < reply.began_s + at_s <= ended_s
        )

    @property
    def tokens_per_s(self) -> float:
        """Output speed while all places were decoding, without the prefill of all at once and without the end, when
        only a few requests are left."""
        return self.full_tokens / self.full_s

    @property
    def tokens(self) -> int:
        """Completion tokens of all answers."""
        return sum(len(reply.token_ids) for reply in self.replies)

    @property
    def token_ids(self) -> list[list[int]]:
        """Token ids of each answer."""
        return [reply.token_ids for reply in self.replies]


class EngineProcess:
    """A started engine."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    def ask(
        self,
        asks: Sequence[Ask],
        timeout_s: float = 600,
        order: DraftsChoice | None = None,
        at_once: int | None = None,
        refusals: bool = False,
        one_step: bool = False,
    ) -> Batch:
        """Send all requests and return their answers.

        Args:
            asks: the requests.
            timeout_s: longest wait for all answers.
            order: drafts to switch to while the requests are under way.
            at_once: how many are under way at a time (the next begins when one ends); None: all.
            refusals: whether the engine may refuse some.
            one_step: whether the engine may begin only when it has them all, so that one step begins them all. Not with
                `at_once`, nor with a `late` one: those would wait for answers.

        Raises:
            EngineGoneError: the process has ended, or was ended after `timeout_s`.
            RefusedError: the engine refused one.
        """
        data = self._exchange(
            {
                "asks": [asdict(ask) for ask in asks],
                "order": order,
                "at_once": at_once or len(asks),
                "one_step": one_step,
            },
            timeout_s,
        )
        refused = [RefusedError(*reply["refused"]) for reply in data["replies"] if "refused" in reply]
        if refused and not refusals:
            raise refused[0]
        return Batch(
            [Reply.from_json(reply) for reply in data["replies"] if "refused" not in reply],
            data["seconds"],
            data["preemptions"],
            data["order_s"],
            tuple(data["own_drafts"]),
            data["loop_s"],
            BatchEnergy(**data["energy"]) if data["energy"] else None,
            Totals(*data["busy"]),
            refused,
            data["cached_tokens"],
            data["silent_s"],
        )

    @property
    def pid(self) -> int:
        """Of the process whose child is the engine's core."""
        return self._process.pid

    def call(
        self, calls: Sequence[tuple[str, Mapping[str, Any]]], timeout_s: float = 600, claim: Claim = ANYBODY
    ) -> list[CallReply]:
        """Call OpenAI routes, all at once, and return their answers.

        Args:
            calls: (path, body) of each.
            timeout_s: as for `ask`.
            claim: in whose name they are.

        Raises:
            EngineGoneError: as `ask`.
        """
        asked = {"calls": [{"path": path, "body": body} for path, body in calls], "claim": claim}
        answers = self._exchange(asked, timeout_s)
        return [
            CallReply(answer["status"], answer["body"], answer["failure"] and tuple(answer["failure"]))
            for answer in answers
        ]

    def kill(self) -> bool:
        """Kill the engine as its replica does when it stalls; return whether it is known to be dead then."""
        return bool(self._exchange({"kill": True}, 60)["dead"])

    def _exchange(self, line: Mapping[str, Any], timeout_s: float) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # With its processes: those of vLLM would keep the GPU's memory.
        limit = Timer(timeout_s, stop_tree, (self._process.pid, 0.0))
        limit.start()
        try:
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            limit.cancel()
        if not answer:
            raise EngineGoneError(f"the engine is gone:\n{self._log.read_text('utf-8', 'replace')[-6000:]}")
        return json.loads(answer)

    def ask_alone(self, asks: Sequence[Ask]) -> Batch:
        """Send the requests one after the other."""
        batches = [self.ask([ask]) for ask in asks]
        return Batch(
            [batch.replies[0] for batch in batches],
            sum(batch.seconds for batch in batches),
            sum(batch.preemptions for batch in batches),
            None,
            batches[-1].own_drafts,
            max(batch.loop_s for batch in batches),
        )


@contextmanager
def engine_process(
    entry: ChainEntry,
    tier: Tier,
    models: Mapping[str, Path],
    log: Path,
    settings: SpeculationSettings | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
    measures_energy: bool = False,
) -> Iterator[EngineProcess]:
    """Start the engine of an entry. It is up when it has answered the first batch, and ends with the block.

    Args:
        entry: the chain entry.
        tier: its hardware.
        models: folder of each model that the entry names.
        log: file for its output.
        settings: those of the speculation controller.
        environment: variables for its processes beside those of a replica.
        measures_energy: whether it reads its cards' counters, as a replica on GPUs does; of an engine on a CPU those of
            the first card, for rehearsals.
    """
    config = {
        "tier": tier.model_dump(mode="json"),
        "entry": entry.model_dump(mode="json"),
        "settings": (settings or SpeculationSettings()).model_dump(mode="json"),
        "models": {name: str(path) for name, path in models.items()},
        "measures_energy": measures_energy,
    }
    of_replica = cpu_environment(Path(sys.prefix)) if tier.gpu is None else gpu_environment(models_dir(os.environ))
    command = [sys.executable, "-m", "bench.engine", json.dumps(config)]
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            cwd=REPOSITORY,
            env={**os.environ, **of_replica, **environment},
        )
    engine = EngineProcess(process, log)
    try:
        yield engine
    finally:
        stop_tree(process.pid, grace_s=0)  # nothing is to be saved, and vLLM's own shutdown takes seconds
        process.wait()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
