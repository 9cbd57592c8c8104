"""A fuzzed request over a real socket: what is read, and when the client stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from bench.fuzzing.case import Case
from bench.fuzzing.exchange import Exchange, exchange
from bench.load.client import HOST

ONE = b"HTTP/1.1 200 OK\r\nX-Request-Id: a\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 400 Bad\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
CASE = Case("valid", (b"one", b"two"), "/")


@asynccontextmanager
async def serving(*pieces: bytes, closes: bool) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that sends these pieces whatever it gets; its port, and what it got in the end."""
    got: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.readexactly(3))
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if not closes:
            got.append(await reader.read())
        writer.close()

    server = await asyncio.start_server(answer, HOST, 0)
    async with server:
        yield server.sockets[0].getsockname()[1], got


async def through(case: Case, *pieces: bytes, closes: bool = False, within_s: float = 60.0) -> Exchange:
    async with serving(*pieces, closes=closes) as (port, _):
        return await exchange(case, port, within_s)


@pytest.mark.parametrize("closes", [True, False])
async def test_answers_are_read_to_their_end_however_they_are_cut(closes: bool) -> None:
    both = ONE + CHUNKED
    done = await through(replace(CASE, answers=2), both[:10], both[10:70], both[70:], closes=closes)
    assert [(answer.status, answer.body, answer.complete) for answer in done.answers] == [
        (200, b"{}", True),
        (400, b"abc", True),
    ]
    assert (done.unreadable, done.hung) == ("", False)
    assert done.answers[0].one(b"x-request-id") == "a"


async def test_an_answer_too_many_is_read_too() -> None:
    assert len((await through(CASE, ONE + ONE)).answers) == 2


async def test_an_answer_without_a_length_ends_with_the_connection() -> None:
    done = await through(CASE, b"HTTP/1.1 200 OK\r\n\r\nab", b"c", closes=True)
    assert [(answer.body, answer.complete) for answer in done.answers] == [(b"abc", True)]


async def test_an_answer_that_is_cut_is_not_readable() -> None:
    done = await through(CASE, ONE[:-1], closes=True)
    assert done.unreadable
    assert not done.answers[0].complete


async def test_what_is_no_http_is_not_readable() -> None:
    assert (await through(CASE, b"hello\r\n\r\n")).unreadable


async def test_a_server_that_neither_answers_nor_closes_hangs() -> None:
    assert (await through(CASE, within_s=0.2)).hung
    assert (await through(CASE, ONE[:-1], within_s=0.2)).hung


async def test_a_client_that_leaves_reads_no_more_than_it_wants() -> None:
    done = await through(replace(CASE, leaves_after=10), ONE[:-1])
    assert (done.hung, done.unreadable) == (False, "")
    assert (await through(replace(CASE, leaves_after=0), ONE)).answers == []


async def test_a_client_that_half_closes_reads_the_answer() -> None:
    async with serving(ONE, closes=False) as (port, got):
        done = await exchange(replace(CASE, half_closes=True), port, 60.0)
        assert done.answers[0].complete
    assert b"".join(got) == b"onetwo"
