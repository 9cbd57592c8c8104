"""A fake Messages API on loopback, for benchmarks: it streams the same text to each request, in a fixed time.

`GET /` returns how many requests it has answered completely.

python -m bench.load.claude_api PORT [--first S] [--deltas N] [--gap S]
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from bench.load.client import HOST

Block = Mapping[str, Any]
"""A content block of a message in the API's form: `text` or `tool_use`."""
_WORD: Final = "because "


def stream_event(kind: str, data: Mapping[str, Any]) -> bytes:
    """Return one event of the API's stream."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()


def message_events(
    model: str, blocks: Sequence[Block], stop_reason: str | None, usage: Mapping[str, int], piece: int = 24
) -> Iterator[bytes]:
    """Yield the events of one message.

    Args:
        model: its name.
        blocks: its content; texts and the JSON of tool arguments are split into pieces.
        stop_reason: why it ends.
        usage: `input_tokens` and `output_tokens`, and those of the cache if any.
        piece: characters per piece.
    """
    start: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**usage, "output_tokens": 1},
    }
    yield stream_event("message_start", {"message": start})
    yield stream_event("ping", {})
    for index, block in enumerate(blocks):
        if block["type"] == "text":
            opened, text, delta = {**block, "text": ""}, block["text"], ("text_delta", "text")
        else:
            text = block["input"] if isinstance(block["input"], str) else json.dumps(block["input"])
            opened, delta = {**block, "input": {}}, ("input_json_delta", "partial_json")
        yield stream_event("content_block_start", {"index": index, "content_block": opened})
        for begin in range(0, len(text), piece):
            part = {"type": delta[0], delta[1]: text[begin : begin + piece]}
            yield stream_event("content_block_delta", {"index": index, "delta": part})
        yield stream_event("content_block_stop", {"index": index})
    ending = {"stop_reason": stop_reason, "stop_sequence": None}
    yield stream_event("message_delta", {"delta": ending, "usage": {"output_tokens": usage["output_tokens"]}})
    yield stream_event("message_stop", {})


def serve(port: int, first_s: float, deltas: int, gap_s: float) -> None:
    """Answer until the process ends."""
    text = _WORD * deltas
    usage = {"input_tokens": 900, "output_tokens": deltas}

    total = [0]
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._head("application/json")
            self.wfile.write(json.dumps({"answered": total[0]}).encode())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self._head("text/event-stream")
            time.sleep(first_s)
            for event in message_events("bench", [{"type": "text", "text": text}], "end_turn", usage, len(_WORD)):
                self.wfile.write(event)
                time.sleep(gap_s)
            with lock:
                total[0] += 1

        def _head(self, kind: str) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: the benchmark's own lines are enough."""

    ThreadingHTTPServer((HOST, port), Handler).serve_forever()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.load.claude_api",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("port", type=int)
    parser.add_argument("--first", type=float, default=0.5, help="time to the first event, s")
    parser.add_argument("--deltas", type=int, default=60, help="words of the answer")
    parser.add_argument("--gap", type=float, default=0.005, help="time between events, s")
    args = parser.parse_args(argv)
    serve(args.port, args.first, args.deltas, args.gap)
    return 0


if __name__ == "__main__":
    sys.exit(main())
