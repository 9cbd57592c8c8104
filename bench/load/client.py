"""A load client on bare asyncio: many concurrent streams from one loopback server, cheap enough to share its cores."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from bench.load.http1 import HttpError, ResponseDecoder
from bench.load.sse import BodyReader, CountingReader, Dialect, EventReader

HOST: Final = "127.0.0.1"
MAX_STREAMS: Final = 1024

PATHS: Final[dict[Dialect, str]] = {"inference": "/api/inference", "openai": "/v1/chat/completions"}

PROMPTS: Final = (
    "Write a long story about a lighthouse keeper.",
    "Explain how a steam engine works, step by step.",
    "Describe the history of bread in great detail.",
    "List fifty things one can see in a harbour.",
    "Write a long letter to a friend about your garden.",
    "Explain photosynthesis to a curious child, at length.",
    "Describe a walk through an old town, street by street.",
    "Tell the life of a river from its spring to the sea.",
    "Write an essay about the use of patience.",
    "Explain how to build a wooden boat, from keel to mast.",
    "Describe every room of a large country house.",
    "Write a dialogue between the moon and the sea.",
    "Explain the rules of chess to a beginner, in detail.",
    "Write a travel report about a journey by train.",
    "Describe how a violin is made, part by part.",
    "Tell a long tale about a fox that learned to read.",
)
"""Open-ended, so that answers reach `max_tokens`; short, so that no full block of a prefix cache matches."""

ReaderT = TypeVar("ReaderT", bound=BodyReader)


@dataclass(frozen=True, slots=True)
class Request:
    """One streamed request to a loopback server."""

    port: int
    path: str
    body: dict[str, Any]
    timeout_s: float = 300.0
    key: str | None = None
    """API key that is sent; None: none is."""

    def encoded(self) -> bytes:
        """Return the bytes of the request. Each request has its own connection."""
        body = json.dumps(self.body).encode()
        key = "" if self.key is None else f"Authorization: Bearer {self.key}\r\n"
        return (
            f"POST {self.path} HTTP/1.1\r\nHost: {HOST}:{self.port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n{key}Connection: close\r\n\r\n"
        ).encode() + body


@dataclass(frozen=True, slots=True)
class Outcome(Generic[ReaderT]):
    """Result of one request. Times are seconds on the monotonic clock."""

    start_s: float
    end_s: float
    reader: ReaderT
    error: str | None
    """Why the answer is not complete, or None."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Latencies and size of one complete answer."""

    ttft_s: float
    """From request sent to first answer text."""
    gaps_s: tuple[float, ...]
    """Between successive token events (for OpenAI chunks: between chunks with text)."""
    tokens: int
    """Completion tokens, as the server counts them."""
    start_s: float
    end_s: float


class _Exchange(asyncio.Protocol, Generic[ReaderT]):
    """Sends one request and passes the response body to the reader."""

    def __init__(self, payload: bytes, reader: ReaderT, finished: asyncio.Future[str | None], *, to_end: bool) -> None:
        self._payload = payload
        self._reader = reader
        self._to_end = to_end
        self._finished = finished
        self._decoder = ResponseDecoder()
        self._refusal = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._payload)

    def data_received(self, data: bytes) -> None:
        now_s = time.monotonic()
        try:
            body = self._decoder.feed(data)
            if self._decoder.status == 200:
                self._reader.feed(body, now_s)
            else:
                self._refusal += body[:500]
        except (HttpError, ValueError, KeyError, TypeError) as error:
            self._finish(f"unreadable response: {error!r}")
            return
        if self._decoder.done or (self._reader.ended and not self._to_end):
            self._finish(self._verdict())

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish(self._verdict() if exc is None else f"connection lost: {exc}")

    def _verdict(self) -> str | None:
        if self._decoder.status != 200:
            return f"HTTP {self._decoder.status}: {self._refusal[:200].decode(errors='replace')}"
        return self._reader.error or (None if self._reader.ended else "stream ended without a terminal event")

    def _finish(self, error: str | None) -> None:
        if not self._finished.done():
            self._finished.set_result(error)


async def fetch(request: Request, reader: ReaderT, *, to_end: bool = False) -> Outcome[ReaderT]:
    """Send the request and read its stream to the terminal event, the timeout or a failure, which it does not raise.

    Cancellation closes the connection.

    Args:
        request: what is sent.
        reader: takes the response's body.
        to_end: read on after the terminal event, to the end of the response: more may follow by mistake.
    """
    loop = asyncio.get_running_loop()
    finished: asyncio.Future[str | None] = loop.create_future()
    start_s = time.monotonic()
    transport: asyncio.Transport | None = None
    try:
        async with asyncio.timeout(request.timeout_s):
            transport, _ = await loop.create_connection(
                lambda: _Exchange(request.encoded(), reader, finished, to_end=to_end), HOST, request.port
            )
            error = await finished
    except TimeoutError:
        error = f"no end after {request.timeout_s:g} s"
    except OSError as failure:
        error = f"cannot connect: {failure}"
    finally:
        if transport is not None:
            transport.abort()
    return Outcome(start_s=start_s, end_s=time.monotonic(), reader=reader, error=error)


def request_for(dialect: Dialect, port: int, prompt: str, max_tokens: int, **body: Any) -> Request:
    """Return a greedy streamed request for `prompt` in either dialect; `body` adds or overrides fields."""
    common: dict[str, Any] = {"max_tokens": max_tokens, "temperature": 0}
    if dialect == "inference":
        common |= {"prompt": prompt, "reasoning": False}
    else:
        common |= {
            "messages": [{"role": "user", "content": prompt}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    return Request(port=port, path=PATHS[dialect], body=common | body)


async def run_batch(
    dialect: Dialect, port: int, streams: int, requests: int, max_tokens: int, **body: Any
) -> tuple[list[Stream], list[str]]:
    """Send `requests` requests, `streams` at a time; return the complete answers, and the errors of the others."""
    if not 1 <= streams <= MAX_STREAMS:
        raise ValueError(f"streams must be in 1-{MAX_STREAMS}, got {streams}")
    turns = iter(range(requests))
    answers: list[Stream] = []
    errors: list[str] = []

    async def worker() -> None:
        for turn in turns:
            request = request_for(dialect, port, PROMPTS[turn % len(PROMPTS)], max_tokens, **body)
            outcome = await fetch(request, EventReader(dialect))
            answer = stream_of(outcome)
            if isinstance(answer, Stream):
                answers.append(answer)
            else:
                errors.append(answer)

    await asyncio.gather(*(worker() for _ in range(min(streams, requests))))
    return answers, errors


def stream_of(outcome: Outcome[EventReader]) -> Stream | str:
    """Return the answer's figures, or why there are none."""
    reader = outcome.reader
    if outcome.error is not None:
        return outcome.error
    if reader.first_text_s is None:
        return "answer without text"
    if reader.completion_tokens is None:
        return "answer without the server's token count"
    times = reader.token_times_s
    return Stream(
        ttft_s=reader.first_text_s - outcome.start_s,
        gaps_s=tuple(then - first for first, then in itertools.pairwise(times)),
        tokens=reader.completion_tokens,
        start_s=outcome.start_s,
        end_s=outcome.end_s,
    )


@dataclass(frozen=True, slots=True)
class Flood:
    """Constant load for a fixed time: every token's arrival, and the client's CPU time."""

    arrivals: tuple[tuple[tuple[float, int], ...], ...]
    """By answer: (time, tokens) of every read."""
    start_s: float
    end_s: float
    client_cpu_s: float
    errors: tuple[str, ...]


async def run_flood(make_request: Callable[[int], Request], streams: int, warmup_s: float, duration_s: float) -> Flood:
    """Keep `streams` answers in flight for `warmup_s + duration_s`; `start_s` and `end_s` frame the second part.

    Each answer is followed by the next one; those in flight at the end are dropped.
    """
    if not 1 <= streams <= MAX_STREAMS:
        raise ValueError(f"streams must be in 1-{MAX_STREAMS}, got {streams}")
    readers: list[CountingReader] = []
    errors: list[str] = []

    async def worker(index: int) -> None:
        while not errors:
            reader = CountingReader()
            readers.append(reader)
            outcome = await fetch(make_request(index), reader)
            if outcome.error is not None:
                errors.append(outcome.error)

    tasks = [asyncio.create_task(worker(index)) for index in range(streams)]
    await asyncio.sleep(warmup_s)
    start_s, cpu_s = time.monotonic(), time.process_time()
    await asyncio.sleep(duration_s)
    end_s, cpu_s = time.monotonic(), time.process_time() - cpu_s
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):  # a cancellation is no Exception
            raise result
    return Flood(
        arrivals=tuple(tuple(reader.arrivals) for reader in readers),
        start_s=start_s,
        end_s=end_s,
        client_cpu_s=cpu_s,
        errors=tuple(errors),
    )


def total_tokens_per_s(answers: Sequence[Stream]) -> float:
    """Return the tokens of all answers over the time from the first request to the last end."""
    span_s = max(answer.end_s for answer in answers) - min(answer.start_s for answer in answers)
    return sum(answer.tokens for answer in answers) / span_s
