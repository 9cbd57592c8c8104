"""Every control does what it says: the dials, the options, the keys."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.support.browser import Visit
from tests.support.page_server import PageServer


def asked(visit: Visit, server: PageServer, prompt: str = "Hello. stub:tokens=3") -> dict[str, object]:
    """The body of the request that the page sends now."""
    server.door.asked.clear()
    visit.ask(prompt)
    visit.wait_for("done")
    [body] = server.door.asked
    return body


def test_a_page_that_nobody_touched_asks_in_auto_mode(visit: Visit, server: PageServer) -> None:
    assert asked(visit, server) == {"prompt": "Hello. stub:tokens=3", "mode": "auto", "speed": 50}


@pytest.mark.parametrize(
    ("power", "tier"),
    [(0, "eco"), (25, "eco"), (26, "balanced"), (51, "performance"), (80, "performance"), (100, "ultra")],
)
def test_the_dial_picks_the_tier_below_it(visit: Visit, server: PageServer, power: int, tier: str) -> None:
    visit.set_power(power)
    expect(visit.element("manual")).to_be_checked()  # who moves the dial sets it
    expect(visit.element("power-note")).to_have_text(f"picks {tier}")
    expect(visit.page.locator(".tier[aria-current]")).to_contain_text(tier)
    assert asked(visit, server)["power"] == power
    expect(visit.element("why-title")).to_have_text(f"Why {tier}")


def test_auto_shows_what_it_chose_on_the_dial(visit: Visit, server: PageServer) -> None:
    expect(visit.element("power-value")).to_have_text("AUTO")
    expect(visit.element("power")).to_have_attribute("aria-valuetext", "AUTO")
    assert "power" not in asked(visit, server, "Prove that there are infinitely many primes. stub:tokens=3")
    chosen = visit.element("why-title").inner_text().removeprefix("Why ")
    expect(visit.element("power-note")).to_have_text(f"AUTO chose {chosen}")
    expect(visit.page.locator(".tier[aria-current]")).to_contain_text(chosen)
    expect(visit.element("power")).to_have_attribute("aria-valuetext", re.compile(rf"^\d+, {chosen}$"))


def test_the_modes_switch_and_keep_the_dial(visit: Visit, server: PageServer) -> None:
    visit.set_power(90)
    visit.element("auto").check()
    assert asked(visit, server)["mode"] == "auto"
    visit.element("manual").check()
    assert asked(visit, server)["mode"] == "manual"


def test_every_option_is_sent(visit: Visit, server: PageServer) -> None:
    visit.page.locator("summary").click()
    visit.element("speed").fill("20")
    visit.element("goal").select_option("cheaper")
    limits = {"max_ttft_ms": 5000, "max_total_ms": 60000, "max_cost_usd": 0.01, "max_energy_wh": 2.5, "max_co2_g": 1.5}
    for name, value in limits.items():
        visit.element(name).fill(str(value))
    visit.element("max_tokens").fill("30")
    visit.element("drafts").fill("2")
    visit.element("escalate").select_option("advise")
    visit.element("reasoning").uncheck()
    expect(visit.element("options-set")).to_have_text("10 set")
    assert asked(visit, server) == {
        "prompt": "Hello. stub:tokens=3",
        "mode": "auto",
        "speed": 20,
        "goal": "cheaper",
        "constraints": limits,
        "max_tokens": 30,
        "spec": {"k": 2},
        "escalate": "advise",
        "reasoning": False,
    }
    expect(visit.element("reason")).to_be_hidden()


@pytest.mark.parametrize(("choice", "rewrite"), [("auto", False), ("rewrite", True)])
def test_an_answer_that_climbs_goes_on_or_begins_anew(
    visit: Visit, server: PageServer, choice: str, rewrite: bool
) -> None:
    visit.page.locator("summary").click()
    visit.element("escalate").select_option(choice)
    body = asked(visit, server)
    assert (body["escalate"], body["rewrite"]) == ("auto", rewrite)


def test_a_goal_goes_with_auto_only(visit: Visit, server: PageServer) -> None:
    visit.page.locator("summary").click()
    visit.element("goal").select_option("better")
    visit.set_power(30)
    expect(visit.element("goal")).to_be_disabled()
    assert "goal" not in asked(visit, server)
    visit.element("auto").check()
    expect(visit.element("goal")).to_be_enabled()
    assert asked(visit, server)["goal"] == "better"


def test_an_example_fills_the_prompt(visit: Visit, server: PageServer) -> None:
    visit.page.get_by_role("button", name="What is the capital of France?").click()
    expect(visit.element("prompt")).to_have_value("What is the capital of France?")
    expect(visit.element("prompt")).to_be_focused()
    assert server.door.asked == []


def test_shift_enter_begins_a_new_line_and_the_button_asks(visit: Visit, server: PageServer) -> None:
    visit.element("prompt").fill("One")
    visit.element("prompt").press("Shift+Enter")
    visit.element("prompt").press_sequentially("two. stub:tokens=2")
    assert server.door.asked == []
    visit.element("send").click()
    visit.wait_for("done")
    assert server.door.asked[0]["prompt"] == "One\ntwo. stub:tokens=2"


def test_while_an_answer_comes_enter_asks_nothing_and_escape_stops(visit: Visit, server: PageServer) -> None:
    visit.ask("A long one. stub:rate=20 stub:tokens=2000")
    visit.wait_for("streaming")
    expect(visit.element("send")).to_be_hidden()
    visit.element("prompt").press("Enter")
    visit.page.keyboard.press("Escape")
    visit.wait_for("stopped")
    server.wait_for_no_requests()
    assert len(server.door.asked) == 1
    visit.page.keyboard.press("Escape")  # nothing is under way
    assert asked(visit, server)
