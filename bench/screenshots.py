"""Take the pictures of the page that the README shows, on the real bundled model.

    python -m bench.screenshots                                 # starts the shipped application with its CPU tiers
    python -m bench.screenshots --url http://localhost:8000/    # of one that runs

`docs/page.png`: a desktop in the middle of an answer. `docs/page-phone.png`: a phone in the dark, after it. It needs
Debian's chromium (`make tools`) and the packages of requirements/dev.txt.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from bench.load.client import HOST
from bench.load.servers import application, running
from bench.reporting.report import REPOSITORY

FIRST: Final = "What is the capital of France?"
CODE: Final = "Write a Python class Stack with push, pop and peek. Then write a unit test for each method."
TOKENS: Final = 260
"""Of the answer that is shown."""
DRAFTS: Final = 3
"""A step: left to itself, an engine on a busy CPU may find that none pays, and a picture of no drafts shows little."""
SHOWN_AFTER: Final = 150
"""Tokens after which the desktop's picture is taken."""
PATIENCE_MS: Final = 600_000


@contextmanager
def served(url: str | None) -> Iterator[str]:
    """The address of the running application, or of one that is started for this."""
    if url is not None:
        yield url
        return
    server = application({"/": {"profile": "local"}})
    with running(server):
        yield f"http://{HOST}:{server.port}/"


def opened(browser: Browser, url: str, scheme: str, width: int, height: int, scale: float) -> Page:
    """Open the page, with one answer in its history."""
    viewport = {"width": width, "height": height}
    context = browser.new_context(color_scheme=scheme, viewport=viewport, device_scale_factor=scale)  # type: ignore[arg-type]
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector(".tier")
    page.fill("#prompt", FIRST)
    page.press("#prompt", "Enter")
    page.wait_for_selector('#phase[data-phase="done"]')
    return page


def ask(page: Page) -> None:
    """Ask for code, which has much that drafts can propose, on the smallest tier."""
    page.fill("#power", "20")
    page.eval_on_selector("details", "details => details.open = true")
    page.fill("#max_tokens", str(TOKENS))
    page.fill("#drafts", str(DRAFTS))
    page.eval_on_selector("details", "details => details.open = false")
    page.fill("#prompt", CODE)
    page.press("#prompt", "Enter")


def take(browser: Browser, url: str, folder: Path) -> None:
    """Take both pictures."""
    page = opened(browser, url, "light", 1340, 1250, 1)
    ask(page)
    tokens = page.locator('[data-figure="tokens"] strong')
    page.wait_for_selector('#phase[data-phase="streaming"]')
    while int(tokens.inner_text()) < SHOWN_AFTER:
        page.wait_for_timeout(100)
    shoot(page, folder / "page.png")
    page.click("#stop")

    page = opened(browser, url, "dark", 390, 1190, 1.5)
    ask(page)
    page.wait_for_selector('#phase[data-phase="done"]')
    shoot(page, folder / "page-phone.png")


def shoot(page: Page, path: Path) -> None:
    """Write a small picture: 256 colours are enough for a page, if rare ones are among them."""
    page.eval_on_selector("#prompt", "prompt => prompt.blur()")
    with Image.open(io.BytesIO(page.screenshot())) as picture:
        picture.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE).save(path, optimize=True)


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="address of a running application; without it, one is started")
    parser.add_argument("--output", type=Path, default=REPOSITORY / "docs", help="folder of the pictures (docs)")
    options = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("chromium is not installed (Debian's package chromium; `make tools`)")
    options.output.mkdir(parents=True, exist_ok=True)
    with served(options.url) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        take(browser, url, options.output)
        browser.close()


if __name__ == "__main__":
    main()
