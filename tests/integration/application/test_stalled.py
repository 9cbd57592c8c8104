"""Requests that stalled long before (`test_front_door.py`) get their answer: their time, 15 and 30 s, is over now."""

from __future__ import annotations

from tests.integration.application.conftest import Stalled
from tests.support.api import Api
from tests.support.raw_http import assert_alive


def test_stalled_requests_get_408(stalled: Stalled, api: Api) -> None:
    for code, connections in stalled.items():
        for connection in connections:
            received = b""
            while not received.endswith(b"}"):
                piece = connection.recv(65536)
                assert piece, received
                received += piece
            assert received.startswith(b"HTTP/1.1 408"), received
            assert f'"code":"{code}"'.encode() in received.replace(b": ", b":")
    assert_alive(api)
