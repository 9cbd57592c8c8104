"""A visit of the page in Chromium, with what must hold of every visit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Locator, Page, Playwright, expect

PATIENCE_MS = 60_000


@contextmanager
def launched(playwright: Playwright, executable: Path) -> Iterator[Browser]:
    """Chromium. As root it has no sandbox of its own; it sees only pages of this machine."""
    browser = playwright.chromium.launch(
        executable_path=executable, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    )
    try:
        yield browser
    finally:
        browser.close()


@dataclass
class Visit:
    """The open page."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    """Errors and warnings of the browser's console, and exceptions of the page."""
    origins: set[str] = field(default_factory=set)
    """Whom the page asked for anything."""
    expected: tuple[str, ...] = ()
    """Beginnings of the complaints that a test provokes."""

    def element(self, name: str) -> Locator:
        return self.page.locator(f"#{name}")

    def ask(self, prompt: str) -> None:
        """Type a prompt and press Enter."""
        self.element("prompt").fill(prompt)
        self.element("prompt").press("Enter")

    def set_power(self, power: int) -> None:
        self.element("power").fill(str(power))

    def set_option(self, name: str, value: str) -> None:
        """Fill a field of the disclosure, which is opened for it."""
        self.element(name).evaluate("field => field.closest('details').open = true")
        self.element(name).fill(value)

    def wait_for(self, phase: Literal["waiting", "streaming", "done", "stopped", "failed"]) -> None:
        expect(self.element("phase")).to_have_attribute("data-phase", phase)

    def answer(self) -> str:
        return self.element("answer").inner_text()

    def figure(self, name: str) -> str:
        return self.page.locator(f'[data-figure="{name}"] strong').inner_text()

    def announced(self) -> list[str]:
        """What a screen reader was told, in order."""
        return self.page.locator("#announcer p").all_inner_texts()


@contextmanager
def visiting(browser: Browser, url: str, *, shut: bool = False, **options: Any) -> Iterator[Visit]:
    """Open the page. At the end, fail if it asked another origin, or if the browser complained.

    With `shut` it shows no tiers yet, as the server asks for a key.
    """
    context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    visit = Visit(page)
    page.on("console", lambda message: _note(visit, message.type, message.text))
    page.on("pageerror", lambda error: visit.complaints.append(str(error)))
    page.on("request", lambda request: visit.origins.add(_origin(request.url)))
    page.goto(url)
    expect(page.locator(".tier")).to_have_count(0 if shut else 4)
    try:
        yield visit
    finally:
        context.close()
    assert visit.origins == {_origin(url)}
    assert [each for each in visit.complaints if not each.startswith(visit.expected or "\0")] == []


def _note(visit: Visit, kind: str, text: str) -> None:
    if kind in ("error", "warning"):
        visit.complaints.append(text)


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
