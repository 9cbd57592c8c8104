"""One fuzzed request: the bytes, how they are sent, and what the client does afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["valid", "nearly valid", "not JSON", "odd request", "broken HTTP", "client leaves"]
KINDS: Final[tuple[Kind, ...]] = ("valid", "nearly valid", "not JSON", "odd request", "broken HTTP", "client leaves")


@dataclass(frozen=True, slots=True)
class Case:
    """One fuzzed request."""

    kind: Kind
    pieces: tuple[bytes, ...]
    """What the client sends, with `pause_s` between two pieces."""
    path: str = ""
    """Of the route, if the request is one for a route; its answers are judged by it."""
    method: str = "POST"
    pause_s: float = 0.0
    answers: int = 1
    """Most answers that may come: more would be to a request that a client smuggled in."""
    must_answer: bool = True
    """Whether a connection that is closed without an answer is a fault. Broken HTTP may be cut off."""
    must_serve: bool = False
    """Whether an answer of 400 or more, but for a documented 503, is a fault."""
    must_refuse: bool = False
    """Whether an answer below 400 is a fault."""
    other_protocol: bool = False
    """Whether it speaks another protocol than HTTP/1, so that the answer may be in that one."""
    half_closes: bool = False
    """Whether the client closes its side of the connection once all is sent."""
    leaves_after: int | None = None
    """Bytes of the answer after which the client is gone; None: it reads to the end."""

    @property
    def sent(self) -> bytes:
        """All bytes."""
        return b"".join(self.pieces)


def request_bytes(
    method: str,
    target: bytes,
    body: bytes | None = None,
    headers: Mapping[bytes, bytes] | tuple[tuple[bytes, bytes], ...] = (),
    version: bytes = b"1.1",
) -> bytes:
    """Return a request with `Host`, and with `Content-Length` where it has a body, unless `headers` has them."""
    given = list(headers.items() if isinstance(headers, Mapping) else headers)
    names = {name.lower() for name, _ in given}
    if b"host" not in names:
        given.insert(0, (b"Host", b"localhost"))
    if body is not None and not names & {b"content-length", b"transfer-encoding"}:
        given.append((b"Content-Length", str(len(body)).encode()))
    lines = [method.encode() + b" " + target + b" HTTP/" + version, *(name + b": " + value for name, value in given)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + (body or b"")
