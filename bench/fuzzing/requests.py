"""Fuzzed requests of every kind, as hypothesis's strategies, and a list of them for a seed."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from bench.fuzzing.bodies import MODELS, encoded, nearly_valid, not_json, valid
from bench.fuzzing.case import Case, Kind, request_bytes
from bench.fuzzing.wire import broken_http

Cases = st.SearchStrategy[Case]

_JSON: Final = (b"Content-Type", b"application/json")
READ: Final = (
    *("/", "/api/tiers", "/healthz", "/readyz", "/health", "/ping", "/version", "/metrics", "/v1/models"),
    *("/v1/models/eco", "/api/decisions/x", "/web/style.css", "/web/main.js", "/web/vendor/x.js", "/v1/responses/r1"),
)
"""Paths of the routes without a body."""
ABSENT: Final = ("/api/decisions/x", "/web/vendor/x.js", "/v1/responses/r1")
"""Those of them that are 404s."""
_METHODS: Final = (
    *("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "PROPFIND", "FOO", "get", "M-SEARCH"),
)
_SUFFIXES: Final = (
    *(b"", b"/", b"//", b"/..", b"/.", b"/%2e%2e/", b"%00", b"%ff", b"%2f", b"%", b"%zz", b"?", b"?a=b&a", b"?%ff=%00"),
    *(
        b"?stream=true",
        b";a=b",
        b"#x",
        b"/" + b"a" * 4_000,
        b"?" + b"q" * 7_000,
        b"\\",
        b"/\x7f",
        b"/%0d%0aX: y",
        b"'\"",
    ),
)
_TARGETS: Final = (
    *(b"*", b"//", b"/../../etc/passwd", b"/web/../../etc/passwd", b"/web/%2e%2e/index.html", b"/web/..%2f..%2fetc"),
    *(b"/web//etc/passwd", b"/web/types.d.ts", b"/-/routes", b"/-/healthz", b"/api", b"/v1", b"/v1/", b"/v1/models/"),
    *(b"http://localhost/api/tiers", b"http://[/api/tiers", b"http://other:99999/healthz", b"/API/TIERS", b"/.env"),
    *(b"/v1/models/gpt-4", b"/v1/models/%F0%9F%A6%94", b"/v1/models/a%0ab", b"/api/tiers/nope/drafts", b"/docs"),
    *(
        b"/api/decisions/%00",
        b"/api/decisions/" + b"d" * 3_000,
        b"/api/decisions/..",
        b"/openapi.json",
        b"/favicon.ico",
    ),
    *(b"/v1/responses/%ff", b"/v1/responses/a/cancel", b"/v1/embeddings", b"/v1/audio/speech", b"/tight/healthz"),
)
_HEADERS: Final[tuple[tuple[bytes, bytes], ...]] = (
    *((b"Host", value) for value in (b"[", b"[::1", b"", b"a:b:c", b"a" * 300, b"x/y", b"\xff", b"user@host", b"*")),
    *((b"X-Request-Id", value) for value in (b"\xff\xfe", b"", b"a" * 129, b"a,b", b"<b>", b"ok-1")),
    *((b"X-Request-Timeout-Seconds", value) for value in (b"abc", b"-1", b"nan", b"1e999", b"0")),
    *((b"X-Session-Id", b"\xff"), (b"X-Request-Disconnect-Disabled", b"?1"), (b"serve_multiplexed_model_id", b"x")),
    *(
        (b"Traceparent", b"00-zz"),
        (b"Traceparent", b"\xc3\x28"),
        (b"Forwarded", b"for=\x01"),
        (b"X-Forwarded-For", b"'"),
    ),
    *(
        (b"X-Forwarded-Proto", b"gopher"),
        (b"X-Forwarded-Proto", b"wss"),
        (b"X-Forwarded-Port", b"99999999"),
        (b"Via", b""),
    ),
    *((b"Expect", b"100-continue"), (b"Expect", b"200-ok"), (b"Range", b"bytes=0-0"), (b"Range", b"bytes=9-1")),
    *(
        (b"Accept", b"nothing/at-all"),
        (b"Accept-Encoding", b"gzip, br;q=0"),
        (b"TE", b"trailers"),
        (b"Cookie", b"a" * 4_000),
    ),
    *(
        (b"Upgrade", b"websocket"),
        (b"Connection", b"upgrade"),
        (b"Connection", b"close, x-request-id, host"),
        (b"DNT", b""),
    ),
    *(
        (b"Anthropic-Beta", b"x" * 200),
        (b"If-None-Match", b'W/"a", ,"'),
        (b"If-None-Match", b"*"),
        (b"Origin", b"null"),
    ),
    *(
        (b"Content-Encoding", b"gzip"),
        (b"Content-Encoding", b"br"),
        (b"Authorization", b"Bearer \xe9"),
        (b"X-Api-Key", b""),
    ),
    *(
        (b"User-Agent", b"\x80" * 100),
        (b"Access-Control-Request-Method", b"POST"),
        (b"X-Http-Method-Override", b"DELETE"),
    ),
)
_WEBSOCKET: Final = (
    *((b"Connection", b"Upgrade"), (b"Upgrade", b"websocket"), (b"Sec-WebSocket-Version", b"13")),
    (b"Sec-WebSocket-Key", b"dGhlIHNhbXBsZSBub25jZQ=="),
)
_CONTENT_TYPES: Final = (
    *(b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data; boundary=x", b"", b"application"),
    *(
        b"application/json5",
        b"text/json",
        b"application/json, text/plain",
        b"*/*",
        b"\xff",
        b"application/octet-stream",
    ),
)
_JSON_TYPES: Final = (
    b"application/json",
    b"APPLICATION/JSON",
    b"application/json; charset=utf-16",
    b"application/json;",
)


def draw_cases(count: int, with_seed: int) -> list[Case]:
    """Return so many requests in random order: the same for the same seed and version of hypothesis."""
    bodies = st.sampled_from(sorted(MODELS))
    kinds: dict[Kind, tuple[float, Cases]] = {
        "valid": (0.2, bodies.flatmap(_valid)),
        "nearly valid": (0.35, bodies.flatmap(_nearly_valid)),
        "not JSON": (0.1, bodies.flatmap(_not_json)),
        "odd request": (0.2, _odd_requests()),
        "broken HTTP": (0.1, broken_http()),
        "client leaves": (0.05, bodies.flatmap(_leaving)),
    }
    # Each kind by itself: together, hypothesis would soon leave those of which it has seen the most.
    drawn = [
        case
        for number, (share, strategy) in enumerate(kinds.values())
        for case in _drawn(strategy, math.ceil(share * count), with_seed + number)
    ]
    random.Random(with_seed).shuffle(drawn)
    return drawn[:count]


def _drawn(strategy: Cases, count: int, with_seed: int) -> list[Case]:
    drawn: list[Case] = []

    @seed(with_seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def draw(case: Case) -> None:
        drawn.append(case)

    draw()
    return list(itertools.islice(itertools.cycle(drawn), count))


def _post(path: str, body: bytes, *headers: tuple[bytes, bytes]) -> bytes:
    return request_bytes("POST", path.encode(), body, headers or (_JSON,))


def _valid(path: str) -> Cases:
    serves = path != "/api/tiers/eco/drafts"  # whose entry drafts in one way: a 409
    plain = valid(path).map(lambda body: Case("valid", (_post(path, encoded(body)),), path, must_serve=serves))
    reading = st.sampled_from(READ).map(
        lambda read: Case("valid", (request_bytes("GET", read.encode()),), read, "GET", must_serve=read not in ABSENT)
    )
    return st.one_of(plain, plain, plain, reading)


def _nearly_valid(path: str) -> Cases:
    return nearly_valid(path).map(lambda body: Case("nearly valid", (_post(path, body),), path))


def _not_json(path: str) -> Cases:
    broken = st.tuples(not_json(path), st.sampled_from(_JSON_TYPES))
    other = st.tuples(valid(path).map(encoded), st.sampled_from(_CONTENT_TYPES))
    return st.one_of(broken, broken, other).map(
        lambda drawn: Case("not JSON", (_post(path, drawn[0], (b"Content-Type", drawn[1])),), path, must_refuse=True)
    )


def _odd_requests() -> Cases:
    """Return whole requests with another method, path or header than the routes know."""
    bodies = st.sampled_from(sorted(MODELS))
    headers = st.lists(st.sampled_from(_HEADERS), max_size=3).map(tuple)
    paths = st.one_of(st.sampled_from(sorted((*READ, *MODELS))), bodies)
    targets = st.one_of(
        st.tuples(paths, st.sampled_from(_SUFFIXES)).map(lambda drawn: drawn[0].encode() + drawn[1]),
        st.sampled_from(_TARGETS),
    )
    content = st.one_of(st.none(), bodies.flatmap(valid).map(encoded))
    methods = st.one_of(st.sampled_from(_METHODS), st.text("ABCXYZ", min_size=1, max_size=9))
    odd_target = st.tuples(methods, targets, content, headers).map(_odd)
    known = paths.flatmap(
        lambda path: st.tuples(
            st.just("POST" if path in MODELS else "GET"),
            st.just(path.encode()),
            valid(path).map(encoded) if path in MODELS else st.none(),
            st.lists(st.sampled_from(_HEADERS), min_size=1, max_size=5).map(tuple),
        )
    ).map(_odd)
    websocket = paths.map(lambda path: _odd(("GET", path.encode(), None, _WEBSOCKET)))
    return st.one_of(odd_target, odd_target, known, known, websocket)


def _odd(drawn: tuple[str, bytes, bytes | None, tuple[tuple[bytes, bytes], ...]]) -> Case:
    method, target, body, headers = drawn
    given = (*headers, _JSON) if body is not None else headers
    return Case("odd request", (request_bytes(method, target, body, given),), _path_of(target), method)


def _path_of(target: bytes) -> str:
    return target.partition(b"?")[0].decode(errors="replace")


def _leaving(path: str) -> Cases:
    at_once = st.tuples(st.sampled_from(_SLOW), st.booleans(), st.just(0))
    mid_stream = st.tuples(st.sampled_from(_SLOW), st.just(True), st.sampled_from((1, 300, 5_000)))
    half_closes = st.tuples(st.just("x stub:tokens=20"), st.booleans(), st.none())
    return st.one_of(at_once, mid_stream, half_closes).map(
        lambda drawn: Case(
            "client leaves",
            (_post(path, encoded(_long(path, *drawn[:2]))),),
            path,
            must_answer=False,
            half_closes=drawn[2] is None,
            leaves_after=drawn[2],
        )
    )


_SLOW: Final = ("x stub:first=3", "x stub:rate=20", "x stub:rate=0")


def _long(path: str, text: str, stream: bool) -> dict[str, Any]:
    """Return a body whose answer takes a while."""
    if path == "/api/inference":
        return {"prompt": text, "max_tokens": 500}
    if path == "/v1/completions":
        return {"model": "eco", "prompt": text, "max_tokens": 500, "stream": stream}
    if path == "/v1/responses":
        return {"model": "eco", "input": text, "max_output_tokens": 500, "stream": stream}
    messages = [{"role": "user", "content": text}]
    return {"model": "eco", "messages": messages, "max_tokens": 500, "stream": stream}
