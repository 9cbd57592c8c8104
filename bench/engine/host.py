"""One real engine that answers batches of requests from standard input: the process behind `engines.py`.

    python -m bench.engine CONFIG

Each line of standard input has a JSON list of requests, `asks`, of which `at_once` are under way at any time; with
`one_step` the engine begins when it has them all. It may have an `order`: the drafts to switch to as soon as one
request has ORDER_AFTER tokens. Or it has a list of `calls` of the OpenAI routes, or says `kill`. Each line of standard
output answers one such line. vLLM's own output goes to standard error instead.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncGenerator, Hashable, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

from prometheus_client import REGISTRY
from vllm.v1.engine import EngineCoreOutput

from bench.engine.engines import CLIENT_ID, BatchEnergy
from cluster.pool.messages import REPORT_EVERY_S
from router.difficulty.classify import classify_prompt
from router.registry import ChainEntry, Tier
from router.request import Message
from router.spec_params import SpecParams
from serve_app.api.errors import Failure
from serve_app.engine.energy.card_file import shared_folder
from serve_app.engine.energy.meter import EnergyMeter, Share
from serve_app.engine.engine_watch import Silence
from serve_app.engine.interface import EngineError, EngineItem, Finished, GenerationRequest, TokenStep
from serve_app.engine.stream_items import http_items
from serve_app.engine.vllm.engine import VllmEngine, start_vllm
from serve_app.engine.vllm.nvml import NvmlCounters
from serve_app.engine.vllm.scheduler import ORDER_PREFIX
from serve_app.engine.vllm.step_record import RequestRecord, SpecRecords
from serve_app.fairness.claims import Claim, claiming
from serve_app.speculation.settings import SpeculationSettings
from serve_app.transport.asgi_call import HttpCall, ResponseStart

Json = dict[str, Any]
ORDER_AFTER = 8
"""Tokens."""
_LOOK_S = 0.01
"""How often a slow client looks for new steps, s."""


class Witness:
    """Keeps for each request our own record of its steps and that of vLLM's engine core."""

    def __init__(self, engine: VllmEngine) -> None:
        self.ours: dict[str, RequestRecord] = {}
        self.core: dict[str, Any] = {}
        self._keep_ours(engine._records)
        self._keep_core(engine._engine.output_processor)

    def _keep_ours(self, records: SpecRecords) -> None:
        of = records.of

        def keep(collector: Hashable) -> RequestRecord:
            record = of(collector)
            self.ours[_client_id(collector.request_id)] = record  # type: ignore[attr-defined]
            return record

        records.of = keep  # type: ignore[method-assign]

    def _keep_core(self, processor: Any) -> None:
        process = processor.process_outputs

        def keep(outputs: list[EngineCoreOutput], *args: Any, **kwargs: Any) -> Any:
            for output in outputs:
                if output.spec_decode_metrics is not None:
                    self.core[_client_id(output.request_id)] = output.spec_decode_metrics
            return process(outputs, *args, **kwargs)

        processor.process_outputs = keep

    async def steps_later(self, request_id: str, steps: int) -> None:
        """Wait until the engine has taken that many more steps for the request, or has ended it."""
        record = self.ours[request_id]
        enough = len(record.steps) + steps
        # vLLM fills both; it tells nobody.
        while len(record.steps) < enough and request_id not in self.core:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)

    def take(self, request_id: str) -> Json:
        """Return both records of a request that has ended; the core's is None if the core did not end the answer."""
        ours, core = self.ours.pop(request_id), self.core.pop(request_id, None)
        return {
            "steps": [(step.drafted, step.accepted, step.reason, step.drafts) for step in ours.steps],
            "core_steps": core and list(zip(core.per_step_drafted, core.per_step_accepted, strict=True)),
        }


def _client_id(internal_id: str) -> str:
    """Return the id that the client gave: the engine adds a prefix, and vLLM random characters at the end."""
    return internal_id.removeprefix("inference-").rsplit("-", 1)[0]


@dataclass
class Round:
    """Requests that are sent together.

    Args:
        engine: answers them.
        entry: the chain entry that it runs.
        witness: keeps the records.
        slots: a request holds one while it is under way.
        to_take: requests that the engine has neither taken nor refused.
    """

    engine: VllmEngine
    entry: ChainEntry
    witness: Witness
    slots: asyncio.Semaphore
    to_take: set[str]
    under_way: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request has ORDER_AFTER tokens."""
    all_taken: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when `to_take` is empty."""
    began_s: float = field(default_factory=time.monotonic)

    async def answer(self, request_id: str, ask: Json) -> Json:
        """Answer one request, with times; or with its refusal."""
        async with self.slots:
            try:
                return await self._answer(request_id, ask)
            except EngineError as error:
                return {"refused": [error.code, error.status, error.retryable, error.message]}
            finally:
                self._taken(request_id)

    async def _answer(self, request_id: str, ask: Json) -> Json:
        request = GenerationRequest(
            request_id=request_id,
            messages=messages_of(ask),
            max_tokens=ask["max_tokens"],
            max_tokens_is_explicit=True,
            temperature=ask["temperature"],
            top_p=1.0,
            seed=ask["seed"],
            stop=tuple(ask["stop"]),
            logprobs=False,
            spec=SpecParams(k=ask["k"], tau=ask["tau"], drafts=ask["drafts"]).resolve(self.entry.speculation)[0],
            category=ask["category"] or classify_prompt(ask["prompt"]).category,
            begun=ask["begun"],
            watch=ask["watch"],
            claim=Claim(*ask["claim"]),
        )
        if ask["late"]:
            await self.under_way.wait()
        began_s = time.monotonic()
        reply: Json = {"token_ids": [], "accepted": [], "text": "", "arrivals": [], "signs": None}
        reply["began_s"] = began_s - self.began_s
        async with aclosing(self.engine.generate(request)) as items:
            with claiming(request.claim):  # as the replica's deployment does
                await self._take(items, request_id, ask, reply, began_s)
        return reply | self.witness.take(request_id)

    async def _take(
        self, items: AsyncGenerator[EngineItem, None], request_id: str, ask: Json, reply: Json, began_s: float
    ) -> None:
        async for item in items:
            self._taken(request_id)
            reply.setdefault("taken_s", time.monotonic() - began_s)
            if isinstance(item, TokenStep):
                reply["arrivals"].append((time.monotonic() - began_s, len(item.tokens)))
                reply["token_ids"] += [token.token_id for token in item.tokens]
                reply["accepted"] += [token.spec_accepted for token in item.tokens]
                reply["text"] += "".join(token.text for token in item.tokens)
                reply["signs"] = item.signs
                if len(reply["token_ids"]) >= ORDER_AFTER:
                    self.under_way.set()
                if ask["leave_after"] is not None and len(reply["token_ids"]) >= ask["leave_after"]:
                    record = self.witness.ours[request_id]
                    reply |= _end(Finished("left", 0, len(reply["token_ids"]), 0.0, record.stats(), record.busy_s))
                    return
            elif isinstance(item, Finished):
                reply |= _end(item)
            if ask["pause_steps"]:
                await self.witness.steps_later(request_id, ask["pause_steps"])

    def _taken(self, request_id: str) -> None:
        self.to_take.discard(request_id)
        if not self.to_take:
            self.all_taken.set()


COUNTERS: Final = {"preemptions": "vllm:num_preemptions_total", "cached_tokens": "vllm:prefix_cache_hits_total"}
"""What is counted of a batch, and vLLM's name of it."""


def _end(finished: Finished) -> Json:
    spec = finished.spec
    return {
        "finish_reason": finished.finish_reason,
        "prompt_tokens": finished.prompt_tokens,
        "draft_tokens": spec.draft_tokens,
        "accepted_tokens": spec.accepted_tokens,
        "reasons": spec.reasons,
        "stopped_by_tau": spec.stopped_by_tau,
        "spec_drafts": {key: (made.drafted, made.accepted) for key, made in spec.drafts.items()},
        "spec_tau": spec.tau,
        "busy_s": finished.busy_s,
        "busy_j": finished.energy.busy_j,
    }


def messages_of(ask: Json) -> tuple[Message, ...]:
    """Return the conversation of a request."""
    user = Message(role="user", content=ask["prompt"])
    return (user,) if ask["system"] is None else (Message(role="system", content=ask["system"]), user)


@dataclass
class LoopWatch:
    """Measures how long the event loop works without a pause, in its thread's CPU time, which a busy machine does not
    change; and for how long the engine says nothing."""

    engine: VllmEngine
    longest_s: float = 0.0
    silence: Silence = field(default_factory=Silence)
    silent_s: float = 0.0

    async def run(self) -> None:
        """Measure until it is cancelled."""
        before_s = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now_s = time.thread_time()
            self.longest_s, before_s = max(self.longest_s, now_s - before_s), now_s
            working = self.engine.load().working
            silent_s = self.silence.look(time.monotonic(), self.engine.last_step_s(), working=working)
            self.silent_s = max(self.silent_s, silent_s)
            await asyncio.sleep(0.002)


class EnergyWatch:
    """Measures an engine's energy as its replica does, and reads the counters beside that.

    Args:
        engine: bills its answers by it.
        tier: its hardware.
    """

    def __init__(self, engine: VllmEngine, tier: Tier) -> None:
        self._engine = engine
        self._cards = max(1.0, tier.gpus)
        share = Share(f"bench/{os.getpid()}", min(1.0, self._cards), tier.idle_watts / self._cards)
        self._meter = EnergyMeter(share, self._open, shared_folder())
        self._reading = asyncio.Lock()
        engine.use_meter(self._meter)

    def _open(self) -> NvmlCounters:
        return NvmlCounters(self._cards)

    async def run(self) -> None:
        """Read once a second, until it is cancelled."""
        while True:
            await self.read()
            await asyncio.sleep(REPORT_EVERY_S)

    async def read(self) -> None:
        """Read now."""
        async with self._reading:
            totals = self._engine.totals()
            await self._meter.round(self._engine.busy_now_s(), totals.left_s + totals.late_s)

    async def sums(self) -> BatchEnergy:
        """Read now, and return what was measured so far."""
        await self.read()
        ledger, joules = self._meter.ledger, self._meter.joules
        if joules is None:
            return BatchEnergy(self._meter.reason)
        counter_j = sum(reading.counter_j for reading in self._open().read())
        return BatchEnergy(
            None, counter_j, joules["busy"], joules["idle"], ledger.billed_j, ledger.aside_j, ledger.owed_j
        )

    def close(self) -> None:
        """Leave the cards to others."""
        self._meter.leave()


def _grown(before: BatchEnergy | None, after: BatchEnergy | None) -> Json | None:
    """Return what was measured between two sums; None: nothing was to be."""
    if before is None or after is None:
        return None
    if before.reason or after.reason:
        return {"reason": after.reason or before.reason}
    first, last = asdict(before), asdict(after)
    return {"reason": None} | {name: last[name] - first[name] for name in last if name != "reason"}


async def call_route(engine: VllmEngine, call: Json) -> Json:
    """Return the answer of one OpenAI route, as a replica sends it."""
    raw = json.dumps(call["body"]).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(raw)).encode())]
    answer: Json = {"status": 0, "body": "", "failure": None}
    async for item in http_items(engine, await engine.http_app(), HttpCall("POST", call["path"], headers, raw)):
        if isinstance(item, ResponseStart):
            answer["status"] = item.status
        elif isinstance(item, bytes):
            answer["body"] += item.decode()
        elif isinstance(item, Failure):
            answer["failure"] = [item.code, item.status, item.retryable, item.message]
    return answer


def counted(name: str) -> int:
    """Return one of vLLM's own counters."""
    samples = [sample for metric in REGISTRY.collect() for sample in metric.samples]
    return int(sum(sample.value for sample in samples if sample.name == name))


def write_reply(replies: TextIO, data: Any) -> None:
    """Answer one line."""
    replies.write(json.dumps(data) + "\n")
    replies.flush()


async def serve(config: Mapping[str, Any], replies: TextIO) -> None:
    """Answer until standard input ends."""
    assert f"{ORDER_PREFIX}ngram" == CLIENT_ID
    tier, entry = Tier.model_validate(config["tier"]), ChainEntry.model_validate(config["entry"])
    settings = SpeculationSettings.model_validate(config["settings"])
    paths = {name: Path(path) for name, path in config["models"].items()}
    engine = await asyncio.to_thread(start_vllm, "eco", tier, entry, settings, paths.__getitem__)
    witness = Witness(engine)
    energy = EnergyWatch(engine, tier) if config["measures_energy"] else None
    measuring = asyncio.ensure_future(energy.run()) if energy else None
    count = 0
    try:
        while line := await asyncio.to_thread(sys.stdin.readline):
            batch = json.loads(line)
            if "kill" in batch:
                engine.kill()
                await engine.died()
                write_reply(replies, {"dead": engine.dead})
                continue
            if "calls" in batch:
                with claiming(Claim(*batch["claim"])):
                    answers = await asyncio.gather(*(call_route(engine, call) for call in batch["calls"]))
                write_reply(replies, answers)
                continue
            asks, before, busy = batch["asks"], {key: counted(name) for key, name in COUNTERS.items()}, engine.totals()
            drawn = await energy.sums() if energy else None
            ids = [f"{CLIENT_ID}-{count + number}" for number in range(len(asks))]
            if batch["one_step"]:
                await engine._engine.pause_generation(mode="keep", clear_cache=False)
            together = Round(engine, entry, witness, asyncio.Semaphore(batch["at_once"]), set(ids))
            loop = LoopWatch(engine)
            watching = asyncio.ensure_future(loop.run())
            answering = [
                asyncio.ensure_future(together.answer(request_id, ask))
                for request_id, ask in zip(ids, asks, strict=True)
            ]
            if batch["one_step"]:
                await together.all_taken.wait()
                await engine._engine.resume_generation()
            order_s = None
            if batch["order"]:
                if answering:
                    await together.under_way.wait()
                ordered_s = time.monotonic()
                await engine.use_drafts(batch["order"])
                order_s = time.monotonic() - ordered_s
            given = await asyncio.gather(*answering)
            watching.cancel()
            seconds = time.monotonic() - together.began_s
            count += len(asks)
            own = engine.own_drafts()
            counts = {
                **{key: counted(name) - before[key] for key, name in COUNTERS.items()},
                "own_drafts": [own.drafted, own.accepted],
                "loop_s": loop.longest_s,
                "silent_s": loop.silent_s,
                "energy": _grown(drawn, await energy.sums() if energy else None),
                "busy": [now - then for now, then in zip(engine.totals(), busy, strict=True)],
            }
            write_reply(replies, {"replies": given, "seconds": seconds, "order_s": order_s, **counts})
    finally:
        if measuring is not None:
            measuring.cancel()
        if energy is not None:
            energy.close()
        await engine.shutdown()


def main() -> None:
    """Serve the engine that the first argument describes."""
    own_output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    asyncio.run(serve(json.loads(sys.argv[1]), own_output))
