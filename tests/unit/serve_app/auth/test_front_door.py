"""Which names are ours, and which web pages may send a POST."""

from __future__ import annotations

import pytest

from serve_app.auth.front_door import host_allowed, origin_allowed


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST:8000", "localhost.:8000", "lever.localhost:8000", "127.0.0.1", "127.0.0.1:8000"),
        *("[::1]:8000", "[::1]", "10.0.0.7:30000", "[2001:db8::1]:80"),
    ],
)
def test_localhost_and_addresses_are_always_ours(host: str) -> None:
    assert host_allowed(host, ())


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "notlocalhost"),
        *("", ":8000", "127.0.0.1@evil.example", "[evil.example]", "[::1].evil.example", "0x7f.1", "127.1"),
    ],
)
def test_a_name_that_is_not_listed_is_not_ours(host: str) -> None:
    assert not host_allowed(host, ())
    assert not host_allowed(host, ("llm.example", "*.inner.example"))


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        ("llm.example", True),
        ("LLM.example:443", True),
        ("a.llm.example", False),
        ("a.inner.example:80", True),
        ("a.b.inner.example", True),
        ("inner.example", False),
        ("evilinner.example", False),
    ],
)
def test_listed_names_are_ours_and_a_star_stands_for_what_is_below(host: str, *, ours: bool) -> None:
    assert host_allowed(host, ("llm.example", "*.inner.example")) == ours


def test_a_star_alone_is_every_name() -> None:
    assert host_allowed("evil.example", ("*",))


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://localhost:8000", "localhost:8000"),
        ("https://llm.example", "llm.example"),  # TLS ended before us
        ("https://llm.example", "llm.example:443"),
        ("http://LLM.example", "llm.example:80"),
        ("http://[::1]:8000", "[::1]:8000"),
    ],
)
def test_a_page_of_the_same_host_may_ask(origin: str, host: str) -> None:
    assert origin_allowed(origin, host, ())


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("https://evil.example", "localhost:8000"),
        ("http://localhost:3000", "localhost:8000"),
        ("http://localhost", "localhost:8000"),
        ("http://127.0.0.1:8000", "localhost:8000"),
        ("null", "localhost:8000"),
        ("", "localhost:8000"),
        ("localhost:8000", "localhost:8000"),
        ("file://localhost:8000", "localhost:8000"),
        ("https://llm.example.evil.example", "llm.example"),
        ("https://evil.example", ""),
    ],
)
def test_a_page_of_another_origin_may_not(origin: str, host: str) -> None:
    assert not origin_allowed(origin, host, ("https://chat.example",))


def test_a_listed_origin_may_ask_whatever_the_host() -> None:
    assert origin_allowed("https://chat.example", "localhost:8000", ("https://chat.example",))
    assert origin_allowed("null", "localhost:8000", ("*",))
