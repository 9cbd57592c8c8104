"""By keyboard, with a screen reader, in light and dark, on a phone, and at 200 tokens/s."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from router.observation import TierState
from serve_app.api.sse import event
from tests.integration.web.conftest import PHONE
from tests.integration.web.scripts import closing, opening, real_events, token
from tests.support.browser import Visit, visiting
from tests.support.page_server import PageServer, Part
from tests.support.streams import Wait
from tests.support.tools import npm_file


@pytest.fixture(scope="package")
def axe() -> Path:
    return npm_file("axe-core/axe.min.js")


def violations(page: Page, axe: Path) -> list[str]:
    """What axe-core finds, best practices included."""
    page.evaluate(axe.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']}).then((results) => results.violations)")
    return [f"{each['id']}: {node['target']} {node['failureSummary']}" for each in found for node in each["nodes"]]


@pytest.mark.parametrize(
    "options",
    [{"color_scheme": "light"}, {"color_scheme": "dark"}, {"color_scheme": "light", "viewport": PHONE}],
    ids=["light", "dark", "phone"],
)
def test_axe_finds_no_violation_at_any_time(
    browser: Browser, server: PageServer, axe: Path, options: dict[str, Any]
) -> None:
    failure = (("early-exit", "EngineStartError: no weights"),)
    server.pool.set("balanced", TierState(starting=1, cold_start_s=30.0))
    server.pool.set("performance", TierState(running=1, active_entry="target-only", entry_failures=failure))
    server.pool.set("ultra", TierState(failed=True, reason="no GPU"))
    with visiting(browser, server.url, reduced_motion="reduce", **options) as visit:
        assert violations(visit.page, axe) == []
        visit.page.locator("summary").click()
        visit.set_power(10)
        visit.ask("Hello. stub:tokens=400 stub:rate=200")
        visit.wait_for("streaming")
        expect(visit.page.locator("#answer .drafted").first).to_be_visible()
        assert violations(visit.page, axe) == []
        visit.wait_for("done")
        visit.ask("Hello. stub:fail=12 stub:tokens=30")
        visit.wait_for("failed")
        assert violations(visit.page, axe) == []


@pytest.mark.parametrize("width", [320, 390, 768])
def test_nothing_is_wider_than_the_screen(browser: Browser, server: PageServer, width: int) -> None:
    long = "EngineStartError:" + "a_very_long_word_without_a_break" * 5
    server.pool.set("ultra", TierState(failed=True, reason=long))
    with visiting(browser, server.url, viewport={"width": width, "height": 700}) as visit:
        visit.page.locator("summary").click()
        wide = token("wide" * 200)
        server.door.scripts["wide"] = [opening(server), wide, Wait(0.3), wide, Wait(0.3), wide, closing(server)]
        visit.ask("script:wide")
        visit.wait_for("done")
        expect(visit.page.locator("#plot canvas").first).to_be_visible()
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width


SCROLLED_TO = """() => new Promise((resolve) => {
  const look = () => {
    if (document.getElementById("answer").getBoundingClientRect().top < innerHeight / 2) resolve();
    else requestAnimationFrame(look);
  };
  look();
})"""


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_on_a_phone_the_answer_that_was_asked_is_seen_and_can_be_stopped(
    browser: Browser, server: PageServer, motion: Literal["reduce", "no-preference"]
) -> None:
    with visiting(browser, server.url, viewport=PHONE, reduced_motion=motion) as visit:
        before = visit.element("answer-panel").bounding_box()
        assert before is not None
        assert before["y"] > PHONE["height"] / 2
        visit.ask("Hello. stub:rate=20 stub:tokens=2000")
        visit.wait_for("streaming")
        visit.page.evaluate(SCROLLED_TO)
        assert visit.page.evaluate("document.getElementById('answer').getBoundingClientRect().top") > 0
        expect(visit.element("prompt")).to_be_focused()
        expect(visit.element("stop")).to_be_in_viewport(ratio=1)
        visit.element("stop").click()
        visit.wait_for("stopped")


def test_an_answer_is_scrolled_to_once(browser: Browser, server: PageServer) -> None:
    with visiting(browser, server.url, viewport=PHONE, reduced_motion="reduce") as visit:
        visit.ask("Hello. stub:rate=20 stub:tokens=2000")
        visit.wait_for("streaming")
        visit.page.evaluate("scrollTo(0, 0)")
        tokens = visit.page.locator('[data-figure="tokens"] strong')
        expect(tokens).not_to_have_text(tokens.inner_text())
        assert visit.page.evaluate("scrollY") == 0


def test_an_answer_that_is_seen_is_not_scrolled_to(visit: Visit) -> None:
    visit.ask("Hello. stub:tokens=30")
    visit.wait_for("done")
    assert visit.page.evaluate("scrollY") == 0


@pytest.mark.parametrize("width", [1280, 390, 320])
def test_no_column_of_the_tiers_is_lost_to_a_price_of_many_digits(
    browser: Browser, server: PageServer, width: int
) -> None:
    [metrics] = [data for kind, data in real_events(server) if kind == "metrics"]
    metrics |= {"cost_usd": 0.00000008394, "energy": metrics["energy"] | {"wh": 0.002516}, "total_ms": 132_000.0}
    server.door.scripts["cheap"] = [opening(server), token("Yes."), event("metrics", metrics), event("done", {})]
    with visiting(browser, server.url, viewport={"width": width, "height": 844}) as visit:
        visit.ask("script:cheap")
        visit.wait_for("done")
        actual = visit.page.locator("#tiers-table .taken", has_text="actual").locator("td")
        assert actual.all_inner_texts()[1:] == ["2 min 12 s", "$0.0000000839", "2.52 mWh"]
        assert visit.figure("cost") == "$0.0000000839"
        assert visit.figure("energy") == "2.52 mWh"  # in the same unit
        table = visit.page.locator(".wide-table")
        assert table.evaluate("table => table.scrollWidth - table.clientWidth") == 0


def test_everything_is_done_by_keyboard(visit: Visit, server: PageServer) -> None:
    keys = visit.page.keyboard
    reached: list[str] = []
    for _ in range(6):
        keys.press("Tab")
        reached.append(visit.page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert reached == ["prompt", "send", "auto", "speed", "power", "SUMMARY"]

    keys.press("Enter")
    keys.press("Tab")
    expect(visit.element("goal")).to_be_focused()
    visit.element("power").focus()
    keys.press("ArrowLeft")
    expect(visit.element("manual")).to_be_checked()
    expect(visit.element("power-value")).to_have_text("49")
    keys.press("Home")
    expect(visit.element("power-note")).to_have_text("picks eco")

    visit.element("prompt").focus()
    keys.type("Hello. stub:rate=20 stub:tokens=2000")
    keys.press("Tab")
    keys.press("Space")
    visit.wait_for("streaming")
    expect(visit.element("stop")).to_be_focused()  # the button that was there became this one
    keys.press("Space")
    visit.wait_for("stopped")
    expect(visit.element("send")).to_be_focused()
    expect(visit.element("send")).to_have_css("outline-style", "solid")  # the focus is seen

    visit.page.locator("#history button").focus()
    keys.press("Enter")
    expect(visit.page.locator("#history button")).to_have_attribute("aria-current", "true")
    visit.element("answer").focus()  # it scrolls by keys
    expect(visit.element("answer")).to_be_focused()


def test_a_screen_reader_is_told_states_and_finished_sentences(visit: Visit, server: PageServer) -> None:
    parts = ["Water boils", " at 100", " °C. It free", "zes at 0 °C! 水", "。 Then", " it is ice"]
    script: list[Part] = [opening(server)]
    for part in parts:
        script += [token(part), Wait(0.6)]
    server.door.scripts["said"] = [*script, closing(server)]
    visit.ask("script:said")
    visit.wait_for("done")
    said = visit.announced()
    assert (said[0], said[1]) == ("Asking", "eco answers")
    assert said[-1].startswith("Done: ")
    sentences = said[2:-1]
    assert " ".join(sentences) == "Water boils at 100 °C. It freezes at 0 °C! 水。 Then it is ice"
    assert all(each.endswith((".", "!", "。")) for each in sentences[:-1])
    region = visit.element("announcer")
    assert region.get_attribute("aria-live") == "polite"
    assert visit.element("answer").get_attribute("aria-live") is None


def test_motion_is_reduced_for_who_wants_it(browser: Browser, server: PageServer) -> None:
    with visiting(browser, server.url, reduced_motion="reduce") as visit:
        expect(visit.page.locator(".tier").first).to_have_css("transition-duration", "0s")
    with visiting(browser, server.url, reduced_motion="no-preference") as visit:
        expect(visit.page.locator(".tier").first).to_have_css("transition-duration", "0.2s, 0.2s")


BEHIND_MS = 4000
"""How long after its last token an answer may be complete on the page, on a busy machine, ms."""
COUNT_DRAWINGS = """() => {
  window.drawings = 0;
  new MutationObserver(() => { window.drawings += 1; }).observe(
    document.getElementById("answer"), {childList: true, characterData: true, subtree: true});
}"""


def test_200_tokens_a_second_are_shown_without_falling_behind(visit: Visit) -> None:
    visit.page.evaluate(COUNT_DRAWINGS)
    visit.set_power(10)
    visit.set_option("max_tokens", "1200")
    began = visit.page.evaluate("performance.now()")
    visit.ask("Hello. stub:rate=200")
    visit.wait_for("done")
    took_ms = visit.page.evaluate("performance.now()") - began

    assert visit.figure("tokens") == "1,200"
    assert 6000 <= took_ms < 6000 + BEHIND_MS
    assert 20 < visit.page.evaluate("window.drawings") < 60 * took_ms / 1000  # once a frame, not once a token
    assert visit.page.locator("#answer span").count() < 1200 / 2


def test_a_long_answer_is_followed_unless_the_reader_has_scrolled_up(visit: Visit) -> None:
    scrolled = "answer => answer.scrollHeight - answer.scrollTop - answer.clientHeight"
    answer = visit.element("answer")
    visit.set_power(10)
    visit.set_option("max_tokens", "900")
    visit.ask("Hello. stub:rate=300")
    visit.wait_for("done")
    assert answer.evaluate("answer => answer.scrollTop") > 0
    assert answer.evaluate(scrolled) < 2

    visit.ask("Hello. stub:rate=200")
    visit.page.wait_for_selector("#answer:not(:empty)")
    expect(visit.page.locator('[data-figure="tokens"] strong')).to_have_text(re.compile("^[4-8]..$"))
    answer.evaluate("answer => { answer.scrollTop = 5; }")
    visit.wait_for("done")
    assert answer.evaluate("answer => answer.scrollTop") == 5


def test_an_answer_that_comes_all_at_once_is_shown(visit: Visit) -> None:
    visit.set_power(10)
    visit.set_option("max_tokens", "1900")
    visit.ask("Hello.")
    visit.wait_for("done")
    assert visit.figure("tokens") == "1,900"
