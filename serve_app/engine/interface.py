"""The interface of an engine: the request that it takes and the items that it streams back.

A stream is `Admitted`, then token steps, then exactly one of `Finished` and (raised) `EngineError`. A request that
resumes an answer streams only what follows; its `Finished` counts only that, but the whole prompt.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from prometheus_client.metrics_core import Metric
from starlette.types import ASGIApp

from router.observation import Learned
from router.registry import Drafts, DraftsChoice, TierName
from router.request import Message
from router.signs import NO_SIGNS, Signs
from router.spec_params import DEFAULT_CATEGORY, NO_DRAFTS, SpecParams
from serve_app.engine.energy.meter import EnergyBilling
from serve_app.fairness.claims import ANYBODY, Claim
from sustainability.measured import NO_METER, Energy
from sustainability.shares import Totals


class Token(NamedTuple):
    """One output token. The texts of a stream's tokens concatenate to the answer."""

    text: str
    token_id: int
    logprob: float | None
    spec_accepted: bool
    """True only for a token that a draft proposed and the target accepted."""
    spec_k: int = 0
    """Draft tokens that the engine step of this token verified; 0: none."""


NOT_RESUMABLE: Final = "not_resumable"
"""Code of the `EngineError` of an engine that would not give the answer which it is to resume. No client sees it."""
ID_BYTES: Final = 4
"""Bytes of a packed token id."""


def pack_ids(ids: Iterable[int]) -> bytes:
    """Return token ids as bytes, which travel and rest in less room."""
    return array("I", ids).tobytes()


def unpack_ids(packed: bytes | bytearray) -> list[int]:
    """Return the token ids of `pack_ids`."""
    return array("I", bytes(packed)).tolist()


class TokenBatch(NamedTuple):
    """What a replica streams of an answer at once."""

    ids: bytes
    """The token ids, packed: also of a thinking model's thoughts, which have no event."""
    busy_s: float
    """The request's share of the engine's busy time so far, s."""
    events: bytes
    """Whole `token` events; may be empty."""
    signs: Signs = NO_SIGNS
    """How the answer goes, if it is watched."""


class TokenStep(NamedTuple):
    """What an engine streams of an answer at once."""

    tokens: list[Token]
    """Of the answer."""
    ids: list[int]
    """Of all tokens, also of thoughts."""
    busy_s: float
    """The request's share of the engine's busy time so far, s."""
    signs: Signs = NO_SIGNS
    """How the answer goes, if it is watched."""


class Resume(NamedTuple):
    """Where an answer goes on that another replica began."""

    entry: str
    """Name of the chain entry that it served. Another model would give another answer."""
    prompt_ids: bytes
    """Tokens of the prompt, packed."""
    delivered_ids: bytes
    """Tokens that were given out, packed; not empty. The last one ends a character."""
    attempt: int
    """Counts from 1."""

    def check(self, entry: str, prompt_ids: bytes) -> None:
        """Check that an engine would have given the answer that it is to resume.

        Args:
            entry: name of the chain entry that it serves.
            prompt_ids: as it reads the prompt, packed.

        Raises:
            EngineError: it would not.
        """
        if (self.entry, self.prompt_ids) != (entry, prompt_ids):
            message = f"another replica of its tier serves {entry}, not {self.entry}"
            raise EngineError(NOT_RESUMABLE, message, status=503, retryable=True)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request from the ingress to a tier's engine."""

    request_id: str
    messages: tuple[Message, ...]
    max_tokens: int
    """Most completion tokens."""
    max_tokens_is_explicit: bool
    """True when the client set it: if it does not fit the context, that is an error; otherwise it is cut."""
    temperature: float
    top_p: float
    seed: int | None
    stop: tuple[str, ...]
    logprobs: bool
    spec: SpecParams
    """Resolved."""
    category: str = DEFAULT_CATEGORY
    """The prompt's category: requests of one category are expected to be drafted alike."""
    resume: Resume | None = None
    """Where to go on; None: at the beginning."""
    begun: str = ""
    """The answer so far, which another tier wrote and this one continues; "": it begins here."""
    watch: bool = False
    """Whether to tell how the answer goes."""
    claim: Claim = ANYBODY
    """In whose name it asks for room."""


def plain_request(request_id: str, messages: tuple[Message, ...], max_tokens: int) -> GenerationRequest:
    """Return a greedy request with no drafts and no other options."""
    return GenerationRequest(
        request_id=request_id,
        messages=messages,
        max_tokens=max_tokens,
        max_tokens_is_explicit=False,
        temperature=0.0,
        top_p=1.0,
        seed=None,
        stop=(),
        logprobs=False,
        spec=NO_DRAFTS,
    )


@dataclass(frozen=True, slots=True)
class Admitted:
    """The engine has checked the request and takes it."""

    entry: str = ""
    """Name of the chain entry that it serves."""
    prompt_ids: bytes = b""
    """Tokens of the prompt, packed."""


@dataclass(slots=True)
class DraftCount:
    """Draft tokens, of one category or of one proposer."""

    drafted: int = 0
    accepted: int = 0

    def add(self, drafted: int, accepted: int) -> None:
        """Add a step's."""
        self.drafted += drafted
        self.accepted += accepted


@dataclass(frozen=True, slots=True)
class SpecStats:
    """Speculation of one request, counted by the engine."""

    steps: int = 0
    """Verification steps that had drafts."""
    draft_tokens: int = 0
    """Draft tokens verified."""
    accepted_tokens: int = 0
    """Accepted drafts, including those that the end of the answer cut off."""
    reasons: dict[str, int] = field(default_factory=dict)
    """Engine steps by why they had that many drafts (`speculation.batch.Reason`); empty without speculation."""
    stopped_by_tau: bool = False
    """Whether acceptance fell under the request's tau at any step."""
    drafts: dict[Drafts, DraftCount] = field(default_factory=dict)
    """Draft tokens by who made them; who made none is missing."""
    tau: float | None = None
    """Acceptance rate (0-1) below which it would have stopped drafting at its end: the requested one, or for `auto` the
    learned one. None: there is none."""
    last_reason: str = ""
    """Why its last step had that many drafts; "" for a step that ends the prefill."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The engine is done with the request."""

    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    queue_ms: float
    """Time in the engine's waiting queue, ms."""
    spec: SpecStats
    busy_s: float
    """Its share of the engine's busy time (`sustainability/shares.py`), s."""
    idle_s: float = 0.0
    """The part of the replica's idle time that falls to it, s."""
    engine_s: float | None = None
    """From its first scheduling to its last token, by the engine's clock, s; None: the engine does not say."""
    energy: Energy = NO_METER
    """What was measured of it."""


class Leg(NamedTuple):
    """The part of an answer that one replica gave."""

    tier: TierName
    entry: str
    """The chain entry that the replica served."""
    completion_tokens: int
    busy_s: float
    """Its share of the engine's busy time, s; of a lost replica as of its last token."""
    ended_by: str
    """`done`; `handed_over`, as another tier went on; or the code of the error that ended it."""


@dataclass(frozen=True, slots=True)
class HttpRun:
    """What the engine did for one HTTP request whose answer is complete."""

    finished: Finished
    """Of several answers: the tokens of the longest, as they are made side by side; drafts of all."""
    since_admitted_s: float
    """Time since the engine took the request, s."""
    since_first_token_s: float | None
    """Time since its first token, s; None: it had none."""
    completion_tokens: int
    """Of all its answers."""


class HttpProgress(NamedTuple):
    """What the engine has done so far for one HTTP request, whether or not its answer will be complete."""

    prompt_tokens: int
    """Of all its prompts that the engine has taken, each once."""
    completion_tokens: int
    """Of all its answers."""
    busy_s: float = 0.0
    """Its share of the engine's busy time as of its last token, s."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The engine's own counts."""

    running: int
    waiting: int
    kv_usage: float = 0.0
    """Share of the KV cache in use (0-1)."""
    queue_wait_ms: float = 0.0
    """Mean time in the engine's waiting queue of recently scheduled requests, ms."""
    prompts: float = 0.0
    """Share of the recent time (0-1) in which the engine had a prompt to read, with no first token yet."""

    @property
    def working(self) -> bool:
        """Whether it has requests."""
        return self.running + self.waiting > 0


class EngineError(Exception):
    """A request failed; `status` is the HTTP status it deserves if no response has begun."""

    def __init__(self, code: str, message: str, *, status: int, retryable: bool) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.retryable = retryable


class EngineStartError(Exception):
    """The engine of one chain entry could not be started; the message is the reason."""


EngineItem = Admitted | TokenStep | Finished


class Engine(Protocol):
    """A started engine."""

    def generate(self, request: GenerationRequest) -> AsyncGenerator[EngineItem, None]:
        """Stream one request. Closing the generator aborts it in the engine.

        Raises:
            EngineError: the request cannot be served, or the engine failed.
        """
        ...

    async def http_app(self) -> ASGIApp:
        """Return the HTTP application of OpenAI's and Anthropic's routes on this engine.

        It tells `http_runs.current_run()` what it does for a request.
        """
        ...

    async def check_health(self) -> None:
        """Raise when the engine cannot serve anymore."""
        ...

    @property
    def dead(self) -> bool:
        """Whether it cannot serve anymore."""
        ...

    async def died(self) -> None:
        """Return when the engine cannot serve anymore. Only for an engine that has answered before."""
        ...

    def last_step_s(self) -> float:
        """Return when its last step ended, by any clock, s; 0: it has taken none."""
        ...

    def kill(self) -> None:
        """End its processes at once: it has died then."""
        ...

    def load(self) -> EngineLoad:
        """Return how many requests are running and waiting in the engine."""
        ...

    def categories(self) -> Mapping[str, DraftCount]:
        """Return the draft tokens since the start, by category."""
        ...

    def own_drafts(self) -> DraftCount:
        """Return the draft tokens of the entry's own draft model or head since the start."""
        ...

    def totals(self) -> Totals:
        """Return where the engine's busy time since it was ready went, as of its last report."""
        ...

    def busy_now_s(self) -> float:
        """Return how long it has been busy since it was ready, up to now, s; it never falls."""
        ...

    def use_meter(self, meter: EnergyBilling) -> None:
        """Bill the energy of answers by measurement from now on."""
        ...

    def up_s(self) -> float:
        """Return the time since it was ready, s."""
        ...

    def learned(self) -> Learned:
        """Return what the engine's speculation controller has learned."""
        ...

    def metrics(self) -> Iterable[Metric]:
        """Return the engine's own metrics, of `prometheus_client`."""
        ...

    async def use_drafts(self, drafts: DraftsChoice) -> None:
        """Draft so for all requests that do not choose, within a few steps; those under way go on.

        Only for an entry that drafts in both ways.

        Raises:
            EngineError: the engine failed.
        """
        ...

    async def shutdown(self) -> None:
        """Stop the engine and its processes."""
        ...
