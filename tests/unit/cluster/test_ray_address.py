"""An address where no Ray cluster answers is told at once."""

from __future__ import annotations

import socket

import pytest

from cluster.ray_address import raise_if_silent
from router.errors import ConfigError


@pytest.mark.parametrize("address", [None, "", "auto", "local", "ray://127.0.0.1:1"])
def test_an_address_without_a_host_and_a_ray_clients_are_left_to_ray(address: str | None) -> None:
    raise_if_silent(address, "RAY_ADDRESS")


def test_where_somebody_listens_nothing_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        raise_if_silent(f"127.0.0.1:{server.getsockname()[1]}", "RAY_ADDRESS")


def test_a_silent_address_is_named_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(ConfigError, match=f"RAY_ADDRESS: no Ray cluster answers at {free}: .*refused"):
        raise_if_silent(free, "RAY_ADDRESS")


@pytest.mark.parametrize(
    "address", ["nonsense", "127.0.0.1", "127.0.0.1:", ":6379", "127.0.0.1:six", "127.0.0.1:99999"]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=f"^--address: .*{address}"):
        raise_if_silent(address, "--address")
