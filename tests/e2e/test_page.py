"""The page, once with the real engine, HAProxy and Serve in between; tests/integration/web has the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect, sync_playwright

from bench.load.client import HOST
from bench.load.servers import Server
from tests.support.api import PATIENCE_S, Api
from tests.support.browser import Visit, launched, visiting
from tests.support.tools import program

COPY = 'Repeat this JSON exactly: {"name": "Ada", "year": 1815, "city": "London", "tags": ["math", "code", "math"]}'
ENDLESS = "Write a very long story about a lighthouse keeper, in twenty chapters."


@pytest.fixture
def visit(server: Server) -> Iterator[Visit]:
    executable = program("chromium", package="chromium")
    expect.set_options(timeout=PATIENCE_S * 1000)
    with (
        sync_playwright() as playwright,
        launched(playwright, executable) as browser,
        visiting(browser, f"http://{HOST}:{server.port}/") as visit,
    ):
        yield visit


def test_the_page_asks_a_real_model_marks_its_drafts_and_stops_it(visit: Visit, api: Api) -> None:
    expect(visit.element("server")).to_have_text(re.compile(r"^profile local, [1-4] of 4 tiers warm$"))  # no stubs
    visit.ask("What is the capital of France?")
    visit.wait_for("done")
    assert "Paris" in visit.answer()

    visit.set_power(10)
    visit.set_option("drafts", "3")
    visit.set_option("max_tokens", "60")
    visit.ask(COPY)
    visit.wait_for("done")
    assert visit.page.locator("#answer .drafted").count() > 0
    assert re.fullmatch(r"\d+ %", visit.figure("drafts"))
    assert "K was up to 3" in (visit.element("plot").get_attribute("aria-label") or "")
    expect(visit.element("reason")).to_contain_text("You set power to 10")

    visit.set_option("max_tokens", "1500")
    visit.ask(ENDLESS)
    visit.wait_for("streaming")
    api.wait_for(lambda api: api.tier("eco")["requests"]["running"] == 1)
    visit.element("stop").click()
    visit.wait_for("stopped")
    api.wait_for(lambda api: api.tier("eco")["requests"]["running"] == 0, timeout_s=13.0)
    expect(visit.page.locator("#history li")).to_have_count(3)
