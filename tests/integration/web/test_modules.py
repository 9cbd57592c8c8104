"""The page's pure modules, in the browser that runs them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.support.browser import visiting
from tests.support.page_server import PageServer

MINUS = "\u2212"
UNKNOWN = "\u2013"
Call = dict[str, Any]


@pytest.fixture(scope="module")
def page(browser: Browser, serving: PageServer) -> Iterator[Page]:
    with visiting(browser, serving.url) as visit:
        yield visit.page


def call(page: Page, module: str, name: str, *arguments: Any) -> Any:
    """What a function of a module returns."""
    script = "async ([module, name, args]) => (await import(`./web/${module}.js`))[name](...args)"
    return page.evaluate(script, [module, name, list(arguments)])


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("figure", [0], "0"),
        ("figure", [1234567], "1,234,567"),
        ("figure", [12.345], "12.3"),
        ("figure", [-0.012345], f"{MINUS}0.0123"),
        ("figure", [0.00000007512], "0.0000000751"),
        ("duration", [None], UNKNOWN),
        ("duration", [0], "0 ms"),
        ("duration", [0.254], "0.25 ms"),
        ("duration", [141.96], "142 ms"),
        ("duration", [999.4], "999 ms"),
        ("duration", [999.7], "1.0 s"),
        ("duration", [4940], "4.9 s"),
        ("duration", [12900], "13 s"),
        ("duration", [99499], "99 s"),
        ("duration", [119600], "2 min 0 s"),
        ("duration", [3599000], "59 min 59 s"),
        ("duration", [3599700], "1 h 0 min"),
        ("duration", [3672000], "1 h 1 min"),
        ("money", [None], UNKNOWN),
        ("money", [0.1], "$0.10"),
        ("money", [1234.5], "$1,234.50"),
        ("money", [-0.0000123], f"{MINUS}$0.0000123"),
        ("amount", [0.0251, "Wh"], "25.1 mWh"),
        ("amount", [0.164, "Wh"], "0.164 Wh"),
        ("amount", [-0.00052, "L"], f"{MINUS}0.52 mL"),
        ("amount", [0, "g"], "0 g"),
        ("percent", [0.476], "48 %"),
        ("counted", [1, "token"], "1 token"),
        ("counted", [2500, "token"], "2,500 tokens"),
    ],
)
def test_figures_as_text(page: Page, name: str, arguments: list[Any], words: str) -> None:
    assert call(page, "format", name, *arguments) == words


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ""),
        ("It is 3.5 degrees", ""),  # not finished, and a point in a number ends nothing
        ("It is cold. It", "It is cold."),
        ("It is cold.", ""),  # more of the word may come
        ("Really?! Yes! N", "Really?! Yes!"),
        ("水は冷たい。それ", "水は冷たい。"),
        ("a line\nanother", "a line"),
    ],
)
def test_a_sentence_is_said_when_it_is_finished(page: Page, text: str, said: str) -> None:
    found = call(page, "announcer", "finishedSentences", text, 0)
    assert found["said"] == said
    assert text[: found["upTo"]].strip() == said


@pytest.mark.parametrize("line_end", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
def test_events_are_cut_the_same_in_any_pieces(page: Page, size: int, line_end: str) -> None:
    first = 'data: {"type":"a","data":{"text":"\\n\\n⚡"}}'
    text = f': ping\n\n{first}\n\n\n\n: ping\n\ndata:{{"type":"b","data":1}}\n\ndata: {{"ty'
    text = text.replace("\n", line_end)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    script = """async (pieces) => {
      const { EventCutter } = await import("./web/stream.js");
      const cutter = new EventCutter();
      return pieces.flatMap((piece) => cutter.push(piece));
    }"""
    assert page.evaluate(script, pieces) == [{"type": "a", "data": {"text": "\n\n⚡"}}, {"type": "b", "data": 1}]


def steps(count: int, every_ms: float, tokens: int = 1, k: int = 0, accepted: int = 0) -> list[Call]:
    return [{"atMs": 500 + at * every_ms, "tokens": tokens, "k": k, "accepted": accepted} for at in range(count)]


def test_a_steady_answer_has_one_speed_from_its_second_step_on(page: Page) -> None:
    points = call(page, "state", "course", steps(41, 100), 100)
    assert points["s"] == pytest.approx([0.5 + 0.1 * at for at in range(1, 41)])
    assert points["rate"] == pytest.approx([10.0] * 40)
    assert points["accepted"] == [None] * 40
    assert points["k"] == [0] * 40


def test_acceptance_and_depth_are_those_of_the_last_second(page: Page) -> None:
    made = steps(20, 100, tokens=4, k=4, accepted=3)
    for step in made[10:]:
        step.update(tokens=1, k=2, accepted=0)
    points = call(page, "state", "course", made, 100)
    assert points["accepted"][8] == pytest.approx(3 / 4)
    assert points["k"][8] == pytest.approx(4)
    assert points["rate"][8] == pytest.approx(40)
    # Half of the last second's ten steps: 5 * 3 of 5 * 4 + 5 * 2 drafts.
    assert points["accepted"][13] == pytest.approx(15 / 30)
    assert points["k"][13] == pytest.approx(3)
    assert points["accepted"][18] == 0
    assert points["k"][18] == pytest.approx(2)


def test_a_long_answer_is_shown_by_twelfths(page: Page) -> None:
    slow = steps(121, 1000)
    points = call(page, "state", "course", slow, 500)
    assert points["rate"][19:] == pytest.approx([1.0] * (240 - 19), rel=0.06)  # steps fall into ten seconds


@pytest.mark.parametrize("made", [[], steps(1, 100), steps(5, 0)], ids=["no step", "one step", "all at once"])
def test_an_answer_in_one_piece_has_no_course_and_no_speed(page: Page, made: list[Call]) -> None:
    assert len(call(page, "state", "course", made, 100)["s"]) < 2
    assert call(page, "state", "liveRate", made, 500) is None


def test_the_speed_of_now_is_that_of_the_last_second(page: Page) -> None:
    made = steps(30, 100, tokens=2)
    assert call(page, "state", "liveRate", made, 500 + 2900) == pytest.approx(20)
    assert call(page, "state", "liveRate", made, 500 + 2900 + 500) == pytest.approx(10)  # it has stalled
    assert call(page, "state", "liveRate", made, 500 + 2900 + 1000) == 0
