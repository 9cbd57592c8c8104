"""The Messages API on loopback, over real HTTP, with the answers and faults that a test scripts.

    with MessagesApi() as api:
        api.script(Message("Hello."), Failure(429, "rate_limit_error"))   # one for each request, in this order
        ...Anthropic(base_url=api.url)...
        api.seen[0].body                                                  # what was asked

What is scripted may also be a function of the request's body: a model that obeys what it reads, say. Requests beyond
the script get the last answer again. `Message(...)` streams as the API does (`bench/load/claude_api.py` has its
events); a request that does not ask for a stream gets the same message whole, as the Agent SDK's program may ask for
it.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from bench.load.claude_api import message_events, stream_event

Json = dict[str, Any]


@dataclass(frozen=True)
class ToolUse:
    """A tool that the model calls. Arguments that are a string are sent as they are: broken JSON, say."""

    name: str
    arguments: Json | str
    id: str | None = None


@dataclass(frozen=True)
class Message:
    """A message of the model."""

    text: str = ""
    tools: tuple[ToolUse, ...] = ()
    stop_reason: str | None = None  # by default what the content says
    input_tokens: int = 1000
    output_tokens: int = 50
    cache_read: int = 0
    cache_write: int = 0
    before_s: float = 0.0  # silence before the first event
    between_s: float = 0.0  # silence between events
    hang_up_after: int | None = None  # events; the connection is then cut
    politely: bool = False  # the cut ends the body properly, as a proxy may do
    error_after: tuple[int, str] | None = None  # after so many events an `error` event of that type

    def blocks(self, turn: int) -> list[Json]:
        text = [{"type": "text", "text": self.text}] if self.text else []
        return text + [
            {"type": "tool_use", "id": tool.id or f"toolu_{turn}_{index}", "name": tool.name, "input": tool.arguments}
            for index, tool in enumerate(self.tools)
        ]

    def ending(self) -> str:
        return self.stop_reason or ("tool_use" if self.tools else "end_turn")

    def usage(self) -> dict[str, int]:
        return {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cache_read_input_tokens": self.cache_read,
            "cache_creation_input_tokens": self.cache_write,
        }


@dataclass(frozen=True)
class Failure:
    """An HTTP error as the API gives it; without a type, a body that is not JSON."""

    status: int
    type: str | None = None
    message: str = "no"
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Raw:
    """A body that is sent as it is, with status 200."""

    body: bytes


Answer = Message | Failure | Raw
Scripted = Answer | Callable[[Json], Answer]


@dataclass(frozen=True)
class Seen:
    """One request."""

    path: str
    headers: dict[str, str]
    body: Json


def submits(tier: str, reason: str = "Because.", **more: Any) -> Message:
    """The model submits a plan."""
    return Message(tools=(ToolUse("submit_plan", {"tier": tier, "reason": reason, **more}),))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Says nothing of clients that hang up: tests cancel some. Other errors are bugs of this file, and shown."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


@dataclass
class MessagesApi:
    """The server; use it as a context manager. What it answers may change while it runs."""

    seen: list[Seen] = field(default_factory=list)
    hung_up: threading.Event = field(default_factory=threading.Event)  # set when a client left an answer
    _script: list[Scripted] = field(default_factory=lambda: [Message("Because.")])
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closing: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> MessagesApi:
        self._server = _Server(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def script(self, *answers: Scripted) -> None:
        """What the next requests get; the last of them gets all that follow."""
        with self._lock:
            self._script = list(answers)

    def _next(self, body: Json) -> tuple[Answer, int]:
        with self._lock:
            scripted = self._script.pop(0) if len(self._script) > 1 else self._script[0]
            turn = len(self.seen)
        return (scripted(body) if callable(scripted) else scripted), turn

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # The head and the first event are two small writes: Nagle's algorithm would hold the second for 40 ms.
            disable_nagle_algorithm = True

            def do_HEAD(self) -> None:
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            do_GET = do_HEAD

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with api._lock:
                    api.seen.append(Seen(self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                answer, turn = api._next(body)
                try:
                    self._answer(answer, body, turn)
                except ConnectionError:
                    api.hung_up.set()
                    raise

            def _answer(self, answer: Answer, body: Json, turn: int) -> None:
                if isinstance(answer, Failure):
                    error = {"type": "error", "error": {"type": answer.type, "message": answer.message}}
                    content = json.dumps(error).encode() if answer.type else b"<html>no</html>"
                    self._whole(answer.status, content, answer.headers)
                elif isinstance(answer, Raw):
                    self._stream(iter((answer.body,)), 0, 0)
                elif body.get("stream"):
                    events = self._events(answer, body, turn)
                    self._stream(events, answer.before_s, answer.between_s, answer.hang_up_after, answer.politely)
                else:
                    api._closing.wait(answer.before_s)
                    self._whole(200, json.dumps(whole_message(answer, body, turn)).encode(), ())

            def _events(self, answer: Message, body: Json, turn: int) -> Iterator[bytes]:
                events = message_events(body["model"], answer.blocks(turn), answer.ending(), answer.usage())
                for index, event in enumerate(events):
                    if answer.error_after is not None and index == answer.error_after[0]:
                        yield stream_event("error", {"error": {"type": answer.error_after[1], "message": "no"}})
                        return
                    yield event

            def _whole(self, status: int, content: bytes, headers: tuple[tuple[str, str], ...]) -> None:
                self.send_response(status)
                for name, value in (("content-type", "application/json"), *headers):
                    self.send_header(name, value)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def _stream(
                self,
                events: Iterator[bytes],
                before_s: float,
                between_s: float,
                hang_up_after: int | None = None,
                politely: bool = False,
            ) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                # Waits end with the server, so that no test waits for a silence that it scripted.
                api._closing.wait(before_s)
                for index, event in enumerate(events):
                    if index == hang_up_after and not politely:
                        self.close_connection = True
                        return
                    if index == hang_up_after:
                        break
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
                    self.wfile.flush()
                    api._closing.wait(between_s)
                self.wfile.write(b"0\r\n\r\n")

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


def whole_message(answer: Message, body: Json, turn: int) -> Json:
    """The message as a request gets it that asked for no stream."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": answer.blocks(turn),
        "stop_reason": answer.ending(),
        "stop_sequence": None,
        "usage": answer.usage(),
    }
