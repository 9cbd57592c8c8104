import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.load.http1 import HttpError, ResponseDecoder

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n7;x=y\r\n, world\r\n0\r\n\r\n"


def _feed(decoder: ResponseDecoder, data: bytes, cuts: list[int]) -> bytes:
    edges = [0, *sorted(cuts), len(data)]
    return b"".join(decoder.feed(data[a:b]) for a, b in itertools.pairwise(edges))


@given(st.lists(st.integers(0, len(CHUNKED)), max_size=12))
def test_a_chunked_body_does_not_depend_on_the_reads(cuts: list[int]) -> None:
    decoder = ResponseDecoder()
    assert _feed(decoder, CHUNKED, cuts) == b"hello, world"
    assert (decoder.status, decoder.done) == (200, True)


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=8), st.lists(st.integers(0, 600), max_size=12))
def test_any_chunks_are_joined(chunks: list[bytes], cuts: list[int]) -> None:
    body = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    data = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"
    decoder = ResponseDecoder()
    assert _feed(decoder, data, [cut for cut in cuts if cut < len(data)]) == b"".join(chunks)
    assert decoder.done


def test_a_body_with_a_length_ends_at_that_length() -> None:
    decoder = ResponseDecoder()
    assert decoder.feed(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nwaitMORE") == b"wait"
    assert (decoder.status, decoder.done) == (503, True)


def test_a_body_without_length_or_chunks_lasts_until_the_connection_closes() -> None:
    decoder = ResponseDecoder()
    assert decoder.feed(b"HTTP/1.1 200 OK\r\n\r\nab") + decoder.feed(b"cd") == b"abcd"
    assert not decoder.done


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"SSH-2.0-x\r\n\r\n", "bad status line"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "bad chunk size"),
        (b"HTTP/1.1 200 OK\r\n" + b"x" * 70_000, "does not end"),
    ],
)
def test_other_bytes_than_http_are_an_error(data: bytes, message: str) -> None:
    with pytest.raises(HttpError, match=message):
        ResponseDecoder().feed(data)
