"""The page in Chromium, on the ingress with stub engines in this process. A browser and a server for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.support.browser import Visit, launched, visiting
from tests.support.page_server import PageServer, page_server
from tests.support.tools import program

PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    executable = program("chromium", package="chromium")
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright, launched(playwright, executable) as browser:
        yield browser


@pytest.fixture(scope="package")
def serving() -> Iterator[PageServer]:
    with page_server() as server:
        yield server


@pytest.fixture
def server(serving: PageServer) -> PageServer:
    """Every tier is warm, and nothing was asked."""
    serving.reset()
    return serving


@pytest.fixture
def visit(browser: Browser, server: PageServer) -> Iterator[Visit]:
    """The page, open. At its end it has asked no other server, and the browser had nothing to complain about."""
    with visiting(browser, server.url) as visit:
        yield visit
