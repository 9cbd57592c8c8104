"""The page says what of the next request leaves the server's cluster, only where something does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from router.agent.leaving import Leaving
from router.agent.settings import AgentSettings
from tests.integration.web.conftest import PHONE
from tests.integration.web.test_access import violations
from tests.support.browser import Visit, visiting
from tests.support.page_server import PageServer
from tests.support.tools import npm_file


@pytest.fixture
def sending(server: PageServer) -> Iterator[PageServer]:
    """A server whose agent is asked."""
    server.ingress.ingress._leaving = Leaving.of(AgentSettings(), "single_shot", {})
    yield server
    server.ingress.ingress._leaving = None


def test_below_the_prompt_it_says_what_goes_where_and_whoever_refuses_sends_that(
    browser: Browser, sending: PageServer
) -> None:
    with visiting(browser, sending.url) as visit:
        note = visit.element("leaves")
        expect(note).to_contain_text("this server sends to api.anthropic.com: up to 4,000 characters of the last user")
        expect(visit.element("prompt")).to_have_accessible_description(
            "Enter asks, Shift+Enter begins a new line, Escape stops. " + note.inner_text()
        )
        visit.page.locator("summary").click()
        visit.element("reasoning").uncheck()
        expect(note).to_be_hidden()
        visit.ask("Hello. stub:tokens=3")
        visit.wait_for("done")
        assert sending.door.asked[-1]["reasoning"] is False
        visit.element("reasoning").check()
        expect(note).to_be_visible()


def test_where_nothing_leaves_nothing_is_said(visit: Visit) -> None:
    expect(visit.page.locator(".tier")).to_have_count(4)
    expect(visit.element("leaves")).to_be_hidden()
    assert visit.element("leaves").text_content() == ""


@pytest.mark.parametrize("options", [{"color_scheme": "dark"}, {"color_scheme": "light", "viewport": PHONE}])
def test_axe_finds_no_violation_in_what_is_said(browser: Browser, sending: PageServer, options: dict[str, Any]) -> None:
    axe: Path = npm_file("axe-core/axe.min.js")
    with visiting(browser, sending.url, reduced_motion="reduce", **options) as visit:
        expect(visit.element("leaves")).to_be_visible()
        assert violations(visit.page, axe) == []
        assert visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
