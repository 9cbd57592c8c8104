"""Clients as they really are: of other ages, half-sent, never reading, gone; the application behind HAProxy.

Raw sockets, as no HTTP library would send this.
"""

from __future__ import annotations

import contextlib
import select

import pytest

from bench.load.servers import Server
from tests.integration.application.conftest import Stalled
from tests.support.api import Api
from tests.support.raw_http import LONG, QUICK, assert_alive, connected, leave_a_busy_machine, request, running


def answer(server: Server, sent: bytes) -> tuple[str, bytes]:
    """Head and body of what comes back until the server closes, as it came over the wire."""
    with connected(server) as connection:
        connection.sendall(sent)
        received = b""
        while piece := connection.recv(65536):
            received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    return head.decode().lower(), body


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
def test_a_client_of_http_1_0_gets_the_stream_unchunked_until_the_connection_closes(
    server: Server, connection: str
) -> None:
    head, body = answer(server, request(QUICK, version="1.0", connection=connection))
    assert head.startswith("http/1.1 200") or head.startswith("http/1.0 200")
    assert "transfer-encoding" not in head
    assert body.startswith(b'data: {"type":"config"')
    assert body.endswith(b"}}\n\n")


def test_a_client_that_offers_h2c_keeps_its_body(server: Server) -> None:
    offer = ("Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA")
    with connected(server) as connection:
        connection.sendall(request(QUICK, *offer, connection="Upgrade, HTTP2-Settings"))
        received = b""
        while b'{"type":"done"' not in received:
            piece = connection.recv(65536)
            assert piece, received
            received += piece
    assert received.startswith(b"HTTP/1.1 200")


def test_a_response_has_exactly_one_request_id_the_clients_if_it_is_valid(server: Server) -> None:
    for given, kept in (("order-17", True), ("no spaces please", False)):
        head, body = answer(server, request(QUICK, f"X-Request-Id: {given}"))
        (line,) = [line for line in head.split("\r\n") if line.startswith("x-request-id:")]
        assert (line == f"x-request-id: {given}") is kept
        assert line.split(": ")[1].encode() in body.lower()


def test_a_client_cannot_keep_its_request_running_after_it_left(server: Server, api: Api) -> None:
    api.wait_for(lambda api: running(api) == 0)
    with connected(server) as connection:
        connection.sendall(request(LONG, "X-Request-Disconnect-Disabled: ?1"))
        api.wait_for(lambda api: running(api) == 1)
    api.wait_for(lambda api: running(api) == 0)


def test_stalled_requests_block_no_other(stalled: Stalled, api: Api) -> None:
    assert_alive(api)
    last = stalled["body_timeout"][-1]
    assert select.select([last], [], [], 0)[0] == []  # it still waits: the others were not served after it


def test_clients_that_never_read_block_no_other(server: Server, api: Api) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(32):
            stack.enter_context(connected(server)).sendall(request({**LONG, "prompt": "x stub:rate=0"}))
        assert_alive(api)
    api.wait_for(lambda api: running(api) == 0)


def test_50_of_50_clients_that_leave_a_busy_machine_are_noticed(server: Server, api: Api) -> None:
    leave_a_busy_machine(server, api, waves=1)
