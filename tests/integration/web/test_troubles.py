"""What goes wrong is said in words, what had come stays, and a retry asks the same again."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, expect

from serve_app.api.sse import event
from tests.integration.web.scripts import closing, opening, real_events, token
from tests.support.browser import Visit, visiting
from tests.support.page_server import CUT, PageServer, page_server
from tests.support.streams import Wait

FAILED = "Failed to load resource"
"""How the console notes a response that is an error, or that was cut."""


def test_an_error_in_mid_stream_keeps_the_text_and_offers_a_retry(visit: Visit, server: PageServer) -> None:
    visit.ask("Hello. stub:fail=12 stub:tokens=30")
    visit.wait_for("failed")
    text = visit.answer()
    assert len(text) > 20
    expect(visit.element("trouble-title")).to_have_text("The engine failed.")
    expect(visit.element("trouble-message")).to_have_text("a stub directive made it fail")
    assert visit.announced()[-1] == "The engine failed. a stub directive made it fail"

    visit.element("retry").click()
    visit.wait_for("failed")
    expect(visit.element("history").locator("button")).to_have_count(2)
    assert visit.answer() == text
    assert server.door.asked[0] == server.door.asked[1]


def test_a_retry_shows_nothing_of_the_last_answer_from_the_click_on(visit: Visit) -> None:
    visit.ask("Hello. stub:fail=12 stub:tokens=30")
    visit.wait_for("failed")
    seen = visit.element("retry").evaluate(
        """retry => {
            retry.click();
            const shown = id => document.getElementById(id);
            return [shown("phase").dataset.phase, shown("answer").innerText, shown("trouble").hidden];
        }"""
    )
    assert seen == ["waiting", "", True]
    visit.wait_for("failed")


def test_an_error_that_a_retry_cannot_help_offers_none(visit: Visit, server: PageServer) -> None:
    error = {"code": "prompt_too_long", "message": "9000 tokens", "retryable": False, "request_id": "r"}
    server.door.scripts["long"] = [opening(server), event("error", error)]
    visit.ask("script:long")
    visit.wait_for("failed")
    expect(visit.element("trouble-title")).to_have_text("The prompt or the answer is too long.")
    expect(visit.element("retry")).to_be_hidden()


def test_an_error_of_an_unknown_code_is_shown_by_its_message(visit: Visit, server: PageServer) -> None:
    error = {"code": "brand_new", "message": "the moon is wrong", "retryable": True, "request_id": "r"}
    server.door.scripts["moon"] = [opening(server), event("error", error)]
    visit.ask("script:moon")
    visit.wait_for("failed")
    expect(visit.element("trouble")).to_contain_text("It failed. the moon is wrong")


def test_a_cut_connection_is_an_error_and_the_text_stays(visit: Visit, server: PageServer) -> None:
    visit.expected = (FAILED,)
    server.door.scripts["cut"] = [opening(server), token("Half an ans"), Wait(0.3), CUT]
    visit.ask("script:cut")
    visit.wait_for("failed")
    assert visit.answer() == "Half an ans"
    expect(visit.element("trouble-title")).to_have_text("No connection.")

    server.door.scripts["cut"] = [opening(server), token("A whole answer."), closing(server)]
    visit.element("retry").click()
    visit.wait_for("done")
    assert visit.answer() == "A whole answer."
    expect(visit.element("trouble")).to_be_hidden()


def test_a_stream_that_ends_without_an_end_was_cut_off(visit: Visit, server: PageServer) -> None:
    server.door.scripts["short"] = [opening(server), token("Half an ans")]
    visit.ask("script:short")
    visit.wait_for("failed")
    expect(visit.element("trouble-title")).to_have_text("The answer was cut off.")


def without_savings(server: PageServer) -> bytes:
    [metrics] = [data for kind, data in real_events(server) if kind == "metrics"]
    return event("metrics", metrics | {"savings": None})


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda _: b'data: {"type":"token"}\n\n', "An event of the answer, “token”, lacks what it must have."),
        (lambda _: event("config", {}), "An event of the answer, “config”, lacks what it must have."),
        (
            lambda _: event("trace", {"step": "classify_prompt", "result": {"reasons": None}}),
            "An event of the answer, “trace”, lacks what it must have.",
        ),
        (without_savings, "An event of the answer, “metrics”, lacks what it must have."),
        (lambda _: b"data: 5\n\n", "An event of the answer has no type."),
        (lambda _: b'data: {"type":\n\n', "An event of the answer is not JSON."),
    ],
    ids=["no data", "no tier", "no reasons", "no savings", "no type", "no JSON"],
)
def test_a_broken_event_is_said_ends_the_request_and_the_next_one_is_answered(
    visit: Visit, server: PageServer, broken: Callable[[PageServer], bytes], message: str
) -> None:
    server.door.scripts["broken"] = [opening(server), token("Half"), Wait(0.3), broken(server), Wait(4), token(".")]
    with visit.page.expect_event("requestfailed") as ended:
        visit.ask("script:broken")
    assert ended.value.failure == "net::ERR_ABORTED"  # and did not go on to its end
    visit.wait_for("failed")
    assert visit.answer() == "Half"
    expect(visit.element("trouble-title")).to_have_text("The page cannot read the answer.")
    expect(visit.element("trouble-message")).to_have_text(message)

    visit.ask("Hello. stub:tokens=3")
    visit.wait_for("done")
    expect(visit.element("trouble")).to_be_hidden()


def test_a_refusal_is_shown_with_the_servers_own_words(visit: Visit) -> None:
    visit.expected = (FAILED,)
    visit.set_option("max_tokens", "999999")
    visit.ask("Hello.")
    visit.wait_for("failed")
    expect(visit.element("trouble-title")).to_have_text("The prompt or the answer is too long.")
    expect(visit.element("trouble-message")).to_contain_text("999999")
    expect(visit.element("why")).to_be_hidden()  # nobody answered

    visit.element("max_tokens").fill("")
    visit.ask("Hello. stub:tokens=3")
    visit.wait_for("done")


def test_a_field_that_is_wrong_is_shown_and_nothing_is_asked(visit: Visit, server: PageServer) -> None:
    visit.page.locator("summary").click()
    visit.element("drafts").fill("99")
    visit.page.locator("summary").click()
    visit.ask("Hello.")
    expect(visit.element("drafts")).to_be_visible()  # the browser opens what is wrong
    expect(visit.element("drafts")).to_be_focused()
    visit.element("prompt").fill("")
    visit.element("drafts").fill("")
    visit.element("send").click()
    expect(visit.element("prompt")).to_be_focused()
    assert server.door.asked == []


def test_a_server_that_holds_the_tiers_back_is_said_and_asked_again(visit: Visit) -> None:
    expect(visit.element("server")).to_have_text(re.compile("4 of 4 tiers warm"))
    visit.page.route("**/api/tiers", lambda _: None)  # never answered
    expect(visit.element("server")).to_have_text("The server does not answer. Trying again.")
    visit.page.unroute_all()
    expect(visit.element("server")).to_have_text(re.compile("4 of 4 tiers warm"))


def test_a_server_that_is_gone_is_said_and_found_again(browser: Browser) -> None:
    with page_server() as other, visiting(browser, other.url) as visit:
        visit.expected = (FAILED,)
        expect(visit.element("server")).to_have_text(re.compile("4 of 4 tiers warm"))
        with other.closed():
            expect(visit.element("server")).to_have_text("The server does not answer. Trying again.")
            visit.ask("Hello.")
            visit.wait_for("failed")
            expect(visit.element("trouble-title")).to_have_text("No connection.")
        expect(visit.element("server")).to_have_text(re.compile("4 of 4 tiers warm"))
        visit.element("retry").click()
        visit.wait_for("done")
