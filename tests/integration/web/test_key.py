"""The page asks for a key where the server needs one, and keeps it in memory only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from serve_app.auth.key_file import write_keys
from serve_app.auth.keys import KeyLimits, KeyList, NewKey, make_key, utc_now
from tests.integration.web.conftest import PHONE
from tests.integration.web.test_access import violations
from tests.support.browser import Visit, visiting
from tests.support.page_server import PageServer, page_server
from tests.support.tools import npm_file

FAILED = "Failed to load resource"
"""How the console notes a response that is an error."""
KEPT = "() => [document.cookie, localStorage.length, sessionStorage.length]"


@pytest.fixture(scope="module")
def key() -> NewKey:
    return make_key("page", "infer", utc_now())


@pytest.fixture(scope="module")
def locking(key: NewKey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    write_keys(path, KeyList(version=1, keys=(key.key,)))
    with page_server(path) as server:
        yield server


@pytest.fixture
def locked(locking: PageServer, key: NewKey) -> PageServer:
    """It asks for the key."""
    locking.reset()
    locking.set_keys(KeyList(version=1, keys=(key.key,)))
    return locking


@pytest.fixture
def visit(browser: Browser, locked: PageServer) -> Iterator[Visit]:
    with visiting(browser, locked.url, shut=True) as visit:
        visit.expected = (FAILED,)
        yield visit


def test_it_asks_at_once_and_everything_is_done_by_keyboard(visit: Visit, key: NewKey) -> None:
    expect(visit.element("key-dialog")).to_be_visible()
    expect(visit.element("key")).to_be_focused()
    expect(visit.element("server")).to_have_text("This server asks for a key.")
    keys = visit.page.keyboard
    keys.type("pl_wrong")
    keys.press("Enter")
    expect(visit.element("key-note")).to_have_text("The server does not take this key.")
    expect(visit.element("key")).to_be_focused()
    expect(visit.element("key")).to_have_value("")
    keys.type(key.secret)
    keys.press("Enter")
    expect(visit.element("key-dialog")).to_be_hidden()
    expect(visit.page.locator(".tier")).to_have_count(4)
    visit.ask("Hello. stub:tokens=3")
    visit.wait_for("done")


def test_the_key_is_nowhere_but_in_memory_and_a_reload_forgets_it(visit: Visit, key: NewKey) -> None:
    visit.element("key").fill(f"  {key.secret}\n")
    visit.element("key").press("Enter")
    expect(visit.page.locator(".tier")).to_have_count(4)
    assert visit.page.evaluate(KEPT) == ["", 0, 0]
    assert key.secret not in visit.page.content()
    assert visit.element("key").input_value() == ""
    assert key.secret not in visit.page.url
    visit.page.reload()
    expect(visit.element("key-dialog")).to_be_visible()
    expect(visit.page.locator(".tier")).to_have_count(0)


def test_what_can_be_no_key_is_not_sent(visit: Visit) -> None:
    for given in ("a key", "schlüssel"):
        visit.element("key").fill(given)
        visit.element("key").press("Enter")
        expect(visit.element("key-note")).to_contain_text("This is no key")


def test_whoever_closes_the_question_can_open_it_again(visit: Visit, locked: PageServer) -> None:
    visit.page.keyboard.press("Escape")
    expect(visit.element("key-dialog")).to_be_hidden()
    visit.element("key-button").click()
    expect(visit.element("key-dialog")).to_be_visible()
    visit.element("key-later").click()
    visit.ask("Hello.")
    expect(visit.element("key-dialog")).to_be_visible()
    assert locked.door.asked == []
    assert visit.element("prompt").input_value() == "Hello."


def test_a_key_that_is_revoked_meanwhile_is_asked_for_again(visit: Visit, locked: PageServer, key: NewKey) -> None:
    visit.element("key").fill(key.secret)
    visit.element("key").press("Enter")
    expect(visit.page.locator(".tier")).to_have_count(4)
    locked.set_keys(KeyList(version=1))
    expect(visit.element("key-dialog")).to_be_visible()
    expect(visit.element("key-note")).to_have_text("The server no longer takes the key that you gave.")


@pytest.mark.parametrize(
    "options",
    [{"color_scheme": "light"}, {"color_scheme": "dark"}, {"color_scheme": "light", "viewport": PHONE}],
    ids=["light", "dark", "phone"],
)
def test_axe_finds_no_violation_in_the_question(browser: Browser, locked: PageServer, options: dict[str, Any]) -> None:
    axe: Path = npm_file("axe-core/axe.min.js")
    with visiting(browser, locked.url, shut=True, reduced_motion="reduce", **options) as visit:
        visit.expected = (FAILED,)
        expect(visit.element("key-dialog")).to_be_visible()
        assert violations(visit.page, axe) == []
        visit.element("key").fill("pl_wrong")
        visit.element("key").press("Enter")
        expect(visit.element("key-note")).to_have_text("The server does not take this key.")
        assert violations(visit.page, axe) == []
        assert visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_server_that_needs_none_never_asks(browser: Browser, server: PageServer) -> None:
    with visiting(browser, server.url) as visit:
        visit.ask("Hello. stub:tokens=3")
        visit.wait_for("done")
        expect(visit.element("key-dialog")).to_be_hidden()
        expect(visit.element("key-button")).to_be_hidden()


def test_a_key_that_has_reached_a_limit_is_told_which_and_when_to_try_again(
    visit: Visit, locked: PageServer, key: NewKey
) -> None:
    limited = key.key.model_copy(update={"limits": KeyLimits(requests_per_minute=1)})
    locked.set_keys(KeyList(version=1, keys=(limited,)))
    visit.page.keyboard.type(key.secret)
    visit.page.keyboard.press("Enter")
    expect(visit.page.locator(".tier")).to_have_count(4)
    visit.ask("Hello. stub:tokens=3")
    visit.wait_for("done")
    visit.ask("Hello again. stub:tokens=3")
    visit.wait_for("failed")
    expect(visit.element("trouble-title")).to_have_text("Your key has reached its limit.")
    expect(visit.element("trouble-message")).to_have_text(
        re.compile(r"^key page may send 1 request in any minute .* has sent 1: try again in 6[0-2] s$")
    )
    expect(visit.element("retry")).to_be_visible()
