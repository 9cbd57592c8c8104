"""Clients that leave at any moment, many of them, while all cores are busy."""

from __future__ import annotations

from bench.load.servers import Server
from tests.support.api import Api
from tests.support.raw_http import leave_a_busy_machine


def test_1000_of_1000_clients_that_leave_a_busy_machine_are_noticed(server: Server, api: Api) -> None:
    leave_a_busy_machine(server, api, waves=20)
