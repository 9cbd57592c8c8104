"""HTTP that is broken on the wire: cut, contradicting, slow, of another age, or no HTTP at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from hypothesis import strategies as st

from bench.fuzzing.case import Case, request_bytes

_BODY: Final = b'{"prompt": "hi stub:tokens=2 stub:rate=0", "mode": "manual", "power": 10}'
_PATH: Final = "/api/inference"
_TYPE: Final = (b"Content-Type", b"application/json")
_SMUGGLED: Final = request_bytes("GET", b"/api/tiers")
TLS_HELLO: Final = bytes.fromhex("16030100a5010000a10303") + b"\x5a" * 32 + bytes.fromhex("20") + b"\xa5" * 32 + b"\0\2"
HTTP2_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")


def _post(*headers: tuple[bytes, bytes], body: bytes = _BODY, version: bytes = b"1.1") -> bytes:
    return request_bytes("POST", _PATH.encode(), body, (_TYPE, *headers), version)


def _length(value: object) -> tuple[bytes, bytes]:
    return (b"Content-Length", value if isinstance(value, bytes) else str(value).encode())


_CHUNKED: Final = (b"Transfer-Encoding", b"chunked")
_CHUNKS: Final = b"%x\r\n%s\r\n0\r\n\r\n" % (len(_BODY), _BODY)


def _whole(sent: bytes, answers: int = 1, *, method: str = "POST", must_answer: bool = True) -> Case:
    return Case("broken HTTP", (sent,), _PATH, method, answers=answers, must_answer=must_answer)


def _cut(sent: bytes) -> Case:
    """Return a request that ends early; the client closes its side, so that nobody waits for more."""
    return Case("broken HTTP", (sent,), _PATH, must_answer=False, half_closes=True)


_REQUESTS: Final = (
    # Lengths that are wrong. Longer than the body: the client closes. Shorter: what is left is no request.
    *(_cut(_post(_length(length))) for length in (len(_BODY) + 1, len(_BODY) + 5_000, 10**7, 2**63)),
    *(_whole(_post(_length(length)), 2) for length in (0, 1, len(_BODY) - 1)),
    *(
        _whole(_post(_length(length)), must_answer=False)
        for length in (-1, b"abc", b"1e2", b"0x10", b"", b"+5", 10**40)
    ),
    _whole(_post(_length(len(_BODY)), _length(len(_BODY)))),
    _whole(_post(_length(len(_BODY)), _length(3)), must_answer=False),
    _whole(_post(_length(b"%d, %d" % (len(_BODY), len(_BODY)))), must_answer=False),
    # Chunks: whole, cut, with wrong sizes, extensions and trailers.
    _whole(_post(_CHUNKED, body=_CHUNKS)),
    _whole(_post(_CHUNKED, body=b"".join(b"1\r\n%c\r\n" % byte for byte in _BODY) + b"0\r\n\r\n")),
    _whole(_post(_CHUNKED, body=b"%x;a=b\r\n%s\r\n0\r\nX-Trailer: y\r\n\r\n" % (len(_BODY), _BODY))),
    *(_cut(_post(_CHUNKED, body=_CHUNKS[:kept])) for kept in (0, 1, 5, len(_CHUNKS) // 2, len(_CHUNKS) - 2)),
    *(
        _whole(_post(_CHUNKED, body=size + b"\r\n" + _BODY + b"\r\n0\r\n\r\n"), must_answer=False)
        for size in (b"zz", b"-1", b"", b"0x4", b"ffffffffffffffffff", b"1", b"a" * 200)
    ),
    # Two lengths, of which a proxy and a server might each believe another: there must be one answer, and no second.
    _whole(_post(_length(4), _CHUNKED, body=b"0\r\n\r\n" + _SMUGGLED), must_answer=False),
    _whole(_post(_length(len(_CHUNKS) + len(_SMUGGLED)), _CHUNKED, body=_CHUNKS + _SMUGGLED), 2, must_answer=False),
    *(
        _whole(_post(_length(5), (b"Transfer-Encoding", value), body=b"0\r\n\r\n" + _SMUGGLED), must_answer=False)
        for value in (
            b"chunked, identity",
            b"xchunked",
            b"chunked\x0b",
            b"identity",
            b"gzip, chunked",
            b"chunked, chunked",
        )
    ),
    _whole(_post(_length(5), (b"Transfer-Encoding ", b"chunked"), body=b"0\r\n\r\n" + _SMUGGLED), must_answer=False),
    _whole(_post(_length(5), (b"Transfer_Encoding", b"chunked"), body=b"0\r\n\r\n" + _SMUGGLED), 2),
    # Several requests in one write.
    _whole(request_bytes("GET", b"/healthz") * 3, 3, method="GET"),
    _whole(_post() + _post(), 2),
    _whole(_post() + request_bytes("GET", b"/nope") + b"garbage\r\n\r\n", 3),
    # HTTP of other ages.
    *(
        _whole(_post(version=version), must_answer=False)
        for version in (b"1.0", b"0.9", b"2.0", b"1.2", b"9.9", b"1.1x")
    ),
    _whole(_post((b"Connection", b"keep-alive"), version=b"1.0")),
    _whole(b"GET /healthz\r\n\r\n", method="GET", must_answer=False),
    replace(_cut(HTTP2_PREFACE), other_protocol=True),  # which HAProxy speaks
    replace(_cut(TLS_HELLO), other_protocol=True),
    _cut(b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n" + _post()),
    _cut(b"\x00" * 100),
    _cut(b"\r\n" * 50),
    _cut(b"CONNECT localhost:443 HTTP/1.1\r\nHost: localhost:443\r\n\r\n"),
    _cut(b"HELO there\r\n"),
    # Heads that are too long, or no heads.
    *(_whole(_post((b"X-Long", b"a" * size)), must_answer=False) for size in (1_000, 8_000, 15_000, 16_384, 70_000)),
    *(_whole(_post(*((b"X-%d" % n, b"v") for n in range(count))), must_answer=False) for count in (50, 90, 101, 400)),
    _whole(request_bytes("GET", b"/" + b"a" * 20_000), method="GET", must_answer=False),
    *(
        _whole(b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + line + b"\r\n\r\n", method="GET", must_answer=False)
        for line in (
            b"no colon",
            b": no name",
            b"a b: c",
            b"x: a\x00b",
            b"x: a\rb",
            b" folded",
            b"X: 1\r\n folded",
            b"\xff: x",
        )
    ),
    _whole(b"GET /healthz HTTP/1.1\r\n\r\n", method="GET"),
    _whole(b"GET /healthz HTTP/1.0\r\n\r\n", method="GET"),
    _whole(b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", method="GET", must_answer=False),
    _whole(b"GET  /healthz  HTTP/1.1\r\nHost: x\r\n\r\n", method="GET", must_answer=False),
    _whole(b"GET /healthz HTTP/1.1\nHost: x\n\n", method="GET", must_answer=False),
    _whole(b"GET /h\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n", method="GET", must_answer=False),
    *(_cut(_post()[:kept]) for kept in (1, 20, 100, 150)),
)


def broken_http() -> st.SearchStrategy[Case]:
    """Return requests that are broken on the wire, some of them sent in pieces."""
    whole = st.sampled_from(_REQUESTS)
    random = st.binary(min_size=1, max_size=300).map(lambda raw: _cut(raw + b"\r\n\r\n"))
    shape = st.sampled_from(("whole", "whole", "slowly", "random"))
    return shape.flatmap(
        lambda shape: {"whole": whole, "slowly": st.tuples(whole, st.integers(2, 9)).map(_slowly)}.get(shape, random)
    )


def _slowly(drawn: tuple[Case, int]) -> Case:
    """Return the case in pieces, some hundredths of a second apart."""
    case, count = drawn
    size = max(1, -(-len(case.sent) // count))
    pieces = tuple(case.sent[start : start + size] for start in range(0, len(case.sent), size))
    return replace(case, pieces=pieces, pause_s=0.03)
