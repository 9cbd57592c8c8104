"""The stub engine: no model, deterministic text, drafts and rejections by pattern. No claim rests on it.

It drafts in both ways where its entry does: `auto` takes turns. Drafts are accepted by turns too, about half of them; a
`tau` above that stops them, and `auto` as a tau is `LEARNED_TAU`.

It serves front-end development (`mock: true`), integration tests and relay benchmarks. In an engine replica of an
application with `inference_mode: mock`, words of the form `stub:NAME=VALUE` in the last message are directives:

    stub:tokens=N      the answer ends by itself after N tokens (finish_reason `stop`)
    stub:rate=R        R tokens/s for this stream instead of the configured speed (0: unlimited), until another tier
                       goes on with it
    stub:fail=N        the engine fails this request after N tokens, retryable
    stub:die=N         the replica's process exits after N tokens, without notice
    stub:first=S       S seconds pass before the first token
    stub:unsure=N      from its N-th token on the log-probabilities are low, as of a model that does not know
    stub:loop=N        from its N-th token on it says the same again and again
    stub:until=PATH    the answer ends by itself when that file exists (finish_reason `stop`); PATH must lie in the
                       system's folder for temporary files

Anywhere else they are plain text, so a prompt cannot end a process that others share.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
import time
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from starlette.types import ASGIApp

from router.observation import Learned
from router.registry import ChainEntry, DraftsChoice
from router.signs import NO_SIGNS, SignReader, Signs
from router.spec_params import SpecParams
from serve_app.engine.energy.meter import EnergyBilling
from serve_app.engine.interface import (
    ID_BYTES,
    Admitted,
    DraftCount,
    EngineError,
    EngineItem,
    EngineLoad,
    Finished,
    GenerationRequest,
    Token,
    TokenStep,
    pack_ids,
)
from serve_app.engine.stub_http import stub_app
from serve_app.engine.vllm.step_record import RequestRecord, StepRecord
from serve_app.speculation.batch import Reason
from sustainability.measured import NO_METER
from sustainability.shares import IdleLedger, Totals

# Whole words, a word in two tokens, an emoji, characters of two and three bytes: a front end must get them right.
_PIECES = (
    " The",
    " dial",
    " turns",
    " gen",
    "erously",
    " towards",
    " é",
    "cono",
    "my",
    ",",
    " 電",
    "力",
    " ⚡",
    " and",
)
_UNLIMITED_STEPS_PER_ITEM = 64
_SURE: Final = -0.5
_UNSURE: Final = -5.0
"""Log-probabilities of its tokens."""
LEARNED_TAU: Final = 0.25
"""Acceptance rate (0-1) that the stub claims to have learned for `tau: auto`."""
_JUDGED_STEPS: Final = 4
"""Steps with drafts after which a tau may stop them."""
_COUNT: Final = (int, re.compile(r"[0-9]+"))
_DECIMAL: Final = (float, re.compile(r"[0-9]+(\.[0-9]+)?"))
_PATH: Final = (Path, re.compile(r"/.+"))
_VALUES: Final = {
    **{"tokens": _COUNT, "rate": _DECIMAL, "fail": _COUNT, "die": _COUNT, "first": _DECIMAL, "until": _PATH},
    **{"unsure": _COUNT, "loop": _COUNT},
}
"""What each directive takes: how to read it, and its form."""


@dataclass(frozen=True, slots=True)
class _Directives:
    tokens: int | None = None
    rate: float | None = None
    fail: int | None = None
    die: int | None = None
    first: float = 0.0
    until: Path | None = None
    unsure: int | None = None
    loop: int | None = None

    @classmethod
    def of(cls, text: str) -> _Directives:
        given: dict[str, Any] = {}
        for word in text.split():
            if word.startswith("stub:"):
                name, _, value = word.removeprefix("stub:").partition("=")
                read, form = _VALUES.get(name, (None, None))
                if read is None or form is None or not form.fullmatch(value):
                    allowed = ", ".join(f"stub:{known}={reads.__name__}" for known, (reads, _) in _VALUES.items())
                    message = f"got {word!r}, allowed are {allowed}"
                    raise EngineError("bad_stub_directive", message, status=400, retryable=False)
                given[name] = read(value)
                if name == "until" and not _is_temporary(given[name]):
                    message = f"got {word!r}, the path must lie under {tempfile.gettempdir()}"
                    raise EngineError("bad_stub_directive", message, status=400, retryable=False)
        return cls(**given)


def _is_temporary(path: Path) -> bool:
    """Return whether a path lies in the folder for temporary files: no client may learn which other files exist."""
    return ".." not in path.parts and path.is_relative_to(tempfile.gettempdir())


@dataclass(slots=True)
class _EqualShares:
    """Time in which there are requests, divided equally among them at every moment."""

    busy_s: float = 0.0
    share_s: float = 0.0
    """What a request would owe that was there all the time."""
    _requests: int = 0
    _changed_s: float = 0.0

    def change(self, by: int, now_s: float) -> float:
        """Change the number of requests, and return `share_s`."""
        if self._requests:
            self.busy_s += now_s - self._changed_s
            self.share_s += (now_s - self._changed_s) / self._requests
        self._requests += by
        self._changed_s = now_s
        return self.share_s


class _StubSigns:
    """The signs of a stub's answer: fine, unless directives say otherwise."""

    def __init__(self, todo: _Directives, before: int) -> None:
        self._todo = todo
        self._made = before
        self._reader = SignReader()

    def after(self, tokens: Sequence[Token]) -> Signs:
        """Return the signs after the next tokens."""
        for token in tokens:
            unsure = self._todo.unsure is not None and self._made >= self._todo.unsure
            loops = self._todo.loop is not None and self._made >= self._todo.loop
            # Its few pieces come again and again, but only a stub that is to be in a loop shall look like one.
            token_id = 0 if loops else self._made + 1
            self._reader.add(token_id, _UNSURE if unsure else _SURE, token.spec_accepted, token.spec_k)
            self._made += 1
        return self._reader.signs


class _Step(NamedTuple):
    """One engine step."""

    tokens: list[Token]
    record: StepRecord


@dataclass(slots=True)
class StubEngine:
    """A stub with the interface of an engine.

    Args:
        entry: the chain entry that it pretends to run.
        tokens_per_s: output speed of one stream, tokens/s; 0: as fast as the consumer takes them.
        obeys_directives: whether `stub:` words steer it; only in an engine replica of its own.
        clock: monotonic, s.
    """

    entry: ChainEntry
    tokens_per_s: float
    obeys_directives: bool = False
    clock: Callable[[], float] = time.monotonic
    _running: set[str] = field(default_factory=set)
    _categories: dict[str, DraftCount] = field(default_factory=dict)
    _drafts: DraftsChoice | None = None
    """As ordered last; None: as the entry says."""
    _own: DraftCount = field(default_factory=DraftCount)
    _shares: _EqualShares = field(default_factory=_EqualShares)
    _idle: IdleLedger = field(default_factory=IdleLedger)
    _meter: EnergyBilling | None = None
    _ready_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._ready_s = self.clock()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EngineItem, None]:
        """See `Engine.generate`."""
        text = request.messages[-1].content
        todo = _Directives.of(text) if self.obeys_directives else _Directives()
        prompt_tokens = sum(len(message.content.split()) + 2 for message in request.messages)
        room = self.entry.max_model_len - prompt_tokens
        if room < 1 or (request.max_tokens_is_explicit and request.max_tokens > room):
            raise EngineError(
                "prompt_too_long",
                f"{prompt_tokens} prompt tokens and max_tokens {request.max_tokens} do not fit max_model_len "
                f"{self.entry.max_model_len}",
                status=400,
                retryable=False,
            )
        limit = min(request.max_tokens, room)
        total = limit if todo.tokens is None else min(limit, todo.tokens)
        prompt_ids = pack_ids([zlib.crc32((text + request.begun).encode())] * prompt_tokens)
        before = 0
        if request.resume is not None:
            request.resume.check(self.entry.name, prompt_ids)
            before = len(request.resume.delivered_ids) // ID_BYTES
            todo = replace(todo, first=0.0, fail=None, die=None)  # its faults happened
        if request.begun:
            todo = replace(todo, rate=None)  # of the tier that began it
        yield Admitted(self.entry.name, prompt_ids)

        self._running.add(request.request_id)
        began_s = self.clock()
        before_s = self._shares.change(1, began_s)
        try:
            await asyncio.sleep(todo.first)
            record = RequestRecord()
            signs = _StubSigns(todo, before) if request.watch else None
            until = min(at for at in (total, todo.fail, todo.die) if at is not None)
            made, ended = 0, False
            async for steps in self._paced(request, text, until, todo, before):
                for step in steps:
                    self._count(request.category, step.record)
                    record.add(step.record, len(step.tokens))
                    made += len(step.tokens)
                tokens = [token for step in steps for token in step.tokens]
                busy_s = self._shares.change(0, self.clock()) - before_s
                seen = NO_SIGNS if signs is None else signs.after(tokens)
                yield TokenStep(tokens, [token.token_id for token in tokens], busy_s, seen)
                if ended := todo.until is not None and todo.until.exists():
                    break
            else:
                if until == todo.fail:
                    raise EngineError("engine_failed", "a stub directive made it fail", status=500, retryable=True)
                if until == todo.die:
                    os._exit(17)
            ended = ended or (todo.tokens is not None and total == todo.tokens)
            ended_s = self.clock()
            busy_s = self._shares.change(0, ended_s) - before_s
            idle_s = self._idle.bill(busy_s, self._shares.busy_s, self.up_s())
            reason = "stop" if ended else "length"
            energy = self._meter.bill(busy_s, idle_s, self._shares.busy_s) if self._meter else NO_METER
            yield Finished(reason, prompt_tokens, made, 0.0, record.stats(), busy_s, idle_s, ended_s - began_s, energy)
        finally:
            self._shares.change(-1, self.clock())
            self._running.discard(request.request_id)

    def _count(self, category: str, step: StepRecord) -> None:
        counts = [self._categories.setdefault(category, DraftCount())]
        if step.drafts == "own":
            counts.append(self._own)
        for count in counts:
            count.add(step.drafted, step.accepted)

    def _spec(self, spec: SpecParams) -> SpecParams:
        """Return the parameters with the choice of drafts filled in."""
        speculation = self.entry.speculation
        default = self._drafts or (speculation.default_drafts if speculation else "own")
        return spec.model_copy(update={"drafts": spec.drafts or default})

    async def _paced(
        self, request: GenerationRequest, text: str, total: int, todo: _Directives, before: int
    ) -> AsyncIterator[list[_Step]]:
        """Yield engine steps when they are due; several in one item when the consumer lags, as vLLM merges them.

        Args:
            request: what is asked.
            text: what the answer depends on.
            total: tokens of the whole answer.
            todo: what steers it.
            before: tokens of the answer that another replica gave.
        """
        rate = self.tokens_per_s if todo.rate is None else todo.rate
        loop = asyncio.get_running_loop()
        start, sent = loop.time() - (before / rate if rate else 0.0), before
        k = request.spec.most_drafts(self.entry.speculation)
        steps = _steps(text, total, self._spec(request.spec), k, request, before)
        pending: list[_Step] = []
        for step in steps:
            pending.append(step)
            sent += len(step.tokens)
            if rate:
                wait = start + sent / rate - loop.time()
                if wait <= 0 and sent < total:
                    continue
                await asyncio.sleep(max(0.0, wait))
            elif len(pending) < _UNLIMITED_STEPS_PER_ITEM and sent < total:
                continue
            yield pending
            pending = []
            await asyncio.sleep(0)

    async def http_app(self) -> ASGIApp:
        """See `Engine.http_app`."""
        return stub_app(self, self.entry)

    async def check_health(self) -> None:
        """A stub is always healthy."""

    @property
    def dead(self) -> bool:
        """See `Engine.dead`."""
        return False

    async def died(self) -> None:
        """See `Engine.died`. Never returns: a stub ends only with its process."""
        await asyncio.Event().wait()

    def last_step_s(self) -> float:
        """See `Engine.last_step_s`. A stub never stalls."""
        return time.monotonic()

    def kill(self) -> None:
        """See `Engine.kill`. A stub has no process of its own."""

    def load(self) -> EngineLoad:
        """Return the streams under way; a stub queues nothing."""
        return EngineLoad(running=len(self._running), waiting=0)

    def categories(self) -> Mapping[str, DraftCount]:
        """See `Engine.categories`."""
        return self._categories

    def own_drafts(self) -> DraftCount:
        """See `Engine.own_drafts`."""
        return self._own

    def totals(self) -> Totals:
        """See `Engine.totals`."""
        return Totals(self._shares.busy_s)

    def busy_now_s(self) -> float:
        """See `Engine.busy_now_s`."""
        self._shares.change(0, self.clock())
        return self._shares.busy_s

    def use_meter(self, meter: EnergyBilling) -> None:
        """See `Engine.use_meter`."""
        self._meter = meter

    def up_s(self) -> float:
        """See `Engine.up_s`."""
        return self.clock() - self._ready_s

    def learned(self) -> Learned:
        """See `Engine.learned`: the same tau for every category with drafts, and no advice."""
        return Learned({category: LEARNED_TAU for category, count in self._categories.items() if count.drafted})

    def metrics(self) -> tuple[()]:
        """See `Engine.metrics`: it has none."""
        return ()

    async def use_drafts(self, drafts: DraftsChoice) -> None:
        """See `Engine.use_drafts`."""
        self._drafts = drafts

    async def shutdown(self) -> None:
        """Nothing to stop."""


def _steps(text: str, total: int, spec: SpecParams, k: int, request: GenerationRequest, before: int) -> list[_Step]:
    """Return engine steps. Step i accepts (seed + i) mod (k + 1) of k drafts, until tau stops them."""
    seed = zlib.crc32(text.encode())
    tau = LEARNED_TAU if spec.tau == "auto" else spec.tau or None
    steps: list[_Step] = []
    made, drafted_before, accepted_before = before, 0, 0
    while made < total:
        judged = len(steps) >= _JUDGED_STEPS and drafted_before
        stopped = tau is not None and judged and accepted_before / drafted_before < tau
        drafted = 0 if stopped else k
        accepted = min((seed + len(steps)) % (drafted + 1), total - made - 1)
        tokens = []
        for position in range(accepted + 1):
            index = (seed + made + position) % len(_PIECES)
            tokens.append(
                Token(_PIECES[index], index, _SURE if request.logprobs else None, position < accepted, drafted)
            )
        reason = "" if not k else Reason.TAU_STOPPED if stopped else Reason.AUTO if spec.k == "auto" else Reason.ASKED
        drafts = (("own", "ngram")[len(steps) % 2] if spec.drafts == "auto" else spec.drafts) or "own"
        steps.append(_Step(tokens, StepRecord(drafted, accepted, str(reason), request.category, drafts, tau)))
        made, drafted_before, accepted_before = made + len(tokens), drafted_before + drafted, accepted_before + accepted
    return steps
