"""Every type of event that a stream may have, known or not, in whatever pieces the network brings it."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from serve_app.api.sse import PING, event
from tests.integration.web.scripts import closing, opening, real_events, token
from tests.support.browser import Visit
from tests.support.page_server import PageServer, Part
from tests.support.streams import Wait

TEXT = "Zwölf Boxkämpfer: 電力 👩‍🔬 <b>&amp;</b>\n\nThe end."


def happened(visit: Visit) -> list[str]:
    return visit.page.locator("#timeline .what").all_inner_texts()


def test_an_answer_may_come_in_any_pieces(visit: Visit, server: PageServer) -> None:
    raw = opening(server) + b"".join(token(letter) for letter in TEXT) + closing(server)
    server.door.scripts["pieces"] = [raw[at : at + 7] for at in range(0, len(raw), 7)]
    visit.ask("script:pieces")
    visit.wait_for("done")
    assert visit.answer() == TEXT
    assert visit.page.locator("#answer span").count() == 1


def test_a_slow_network_shows_what_has_come_so_far(visit: Visit, server: PageServer) -> None:
    server.door.scripts["slow"] = [
        opening(server),
        token("One "),
        PING,
        Wait(0.4),
        PING,
        Wait(0.4),
        token("two "),
        Wait(0.8),
        token("three."),
        closing(server),
    ]
    visit.ask("script:slow")
    expect(visit.element("answer")).to_have_text("One ")
    expect(visit.element("answer")).to_have_text("One two ")
    visit.wait_for("done")
    assert visit.answer() == "One two three."


def test_html_in_an_answer_is_text(visit: Visit, server: PageServer) -> None:
    evil = "<img src=x onerror=alert(1)><script>alert(2)</script><a href=javascript:alert(3)>x</a>"
    reason = event("reasoning", {"text": evil, "source": "claude"})
    server.door.scripts["evil"] = [opening(server), reason, token(evil), closing(server)]
    visit.ask("script:evil")
    visit.wait_for("done")
    assert visit.answer() == evil
    assert evil in visit.element("reason").inner_text()
    assert visit.page.locator("main img, main a, main script").count() == 0


CODE = "```x = 0```\nSo:\n```python\nx = 1\n\n  y = `2`\n```not yet\n```\nThat is all. ```no``` ```\n"


def test_code_between_fences_is_shown_as_code_and_no_character_is_lost(visit: Visit, server: PageServer) -> None:
    letters = [token(letter, accepted=at % 3 == 0, k=2) for at, letter in enumerate(CODE)]
    server.door.scripts["code"] = [opening(server), *letters, closing(server)]
    visit.ask("script:code")
    visit.wait_for("done")
    assert visit.element("answer").text_content() == CODE
    assert visit.page.locator("#answer code").all_text_contents() == ["x = 1\n\n  y = `2`\n```not yet\n```\n"]
    marked = "".join(visit.page.locator("#answer .drafted").all_text_contents())
    assert marked == CODE[::3]


@pytest.mark.parametrize(
    ("source", "words"),
    [("heuristic", "the router"), ("claude", "Claude"), ("agent", "the router's agent"), ("new", "new")],
)
def test_the_last_reason_is_shown_with_its_source(visit: Visit, server: PageServer, source: str, words: str) -> None:
    reason = event("reasoning", {"text": "It is short.", "source": source})
    server.door.scripts["reason"] = [opening(server), token("Yes."), reason, closing(server)]
    visit.ask("script:reason")
    expect(visit.element("reason")).to_have_text(f"It is short. ({words})")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("queued", "Queued: another request is ahead, waited 3.0 s, about 4.0 s left"),
        ("provisioning", "Provisioning: a machine is being found, waited 3.0 s, about 4.0 s left"),
        ("loading", "Loading the model, waited 3.0 s, about 4.0 s left"),
        ("resumed", "Resumed: another replica goes on, about 4.0 s left"),
        ("dreaming", "dreaming, waited 3.0 s, about 4.0 s left"),
    ],
)
def test_a_status_is_shown_in_words_also_one_that_is_new(
    visit: Visit, server: PageServer, state: str, words: str
) -> None:
    status = event("status", {"state": state, "waited_s": 3.0, "estimate_s": 4.0, "reason": None})
    server.door.scripts["status"] = [opening(server), status, Wait(1), token("Yes."), closing(server)]
    visit.ask("script:status")
    expect(visit.element("phase")).to_have_text(words)
    visit.wait_for("done")
    assert words in happened(visit)


def test_steps_of_the_router_are_told_with_their_reasons(visit: Visit, server: PageServer) -> None:
    def step(name: str, **result: object) -> bytes:
        return event("trace", {"step": name, "result": result, "duration_ms": 0.1})

    server.door.scripts["steps"] = [
        opening(server),
        step("availability", tier="eco", wanted_tier="ultra", reason="it is gone"),
        step("past_drafts", reason="drafts are waste"),
        step("agent", model="claude-x", detail="no answer in time"),
        step("a_new_step", reason="who knows"),
        step("another_new_step", figures=[1, 2]),
        token("Yes."),
        closing(server),
    ]
    visit.ask("script:steps")
    visit.wait_for("done")
    items = [text.split("\n") for text in visit.page.locator("#timeline li").all_inner_texts()]
    told = {item[1]: item[2:] for item in items}
    assert told["eco instead of ultra"] == ["it is gone"]
    assert told["past drafts"] == ["drafts are waste"]
    assert told["Claude was asked (claude-x)"] == ["no answer in time"]
    assert told["a new step"] == ["who knows"]
    assert told["another new step"] == []


def test_limits_and_goals_are_told(visit: Visit) -> None:
    visit.page.locator("summary").click()
    visit.element("goal").select_option("greener")
    visit.element("max_energy_wh").fill("0.000001")
    visit.ask("Prove that 2 is prime. stub:tokens=3")
    visit.wait_for("done")
    assert "Goal: greener" in happened(visit)
    assert "A limit will be broken" in happened(visit)


def test_an_escalation_marks_a_seam_and_another_tier_goes_on(visit: Visit, server: PageServer) -> None:
    seam = {"from_tier": "eco", "to_tier": "ultra", "reason": "it repeated itself", "at_token": 1, "rewrite": False}
    server.door.scripts["climb"] = [
        opening(server), token("Well, "), event("escalation", seam), token("done."), closing(server)
    ]  # fmt: skip
    visit.ask("script:climb")
    visit.wait_for("done")
    assert visit.page.locator("#answer span:not(.seam)").all_inner_texts() == ["Well, ", "done."]
    expect(visit.page.locator("#answer .seam")).to_have_text("ultra goes on for eco at token 1: it repeated itself")
    expect(visit.element("why-title")).to_have_text("Why eco; ultra goes on")
    assert "ultra takes over from eco at token 1" in happened(visit)


def test_after_a_seam_the_table_is_about_the_tier_that_was_chosen_and_says_which_goes_on(
    visit: Visit, server: PageServer
) -> None:
    seam = {"from_tier": "eco", "to_tier": "ultra", "reason": "it was unsure", "at_token": 1, "rewrite": False}
    server.door.scripts["climb"] = [
        opening(server), token("Well, "), event("escalation", seam), token("done."), closing(server)
    ]  # fmt: skip
    visit.ask("script:climb")
    visit.wait_for("done")
    heads = visit.page.locator("#tiers-table tbody th").all_inner_texts()
    assert heads == ["eco ✓", "actual, with ultra", "balanced", "performance", "ultra"]
    notes = visit.page.locator("#tiers-table .because").all_inner_texts()
    assert notes[0].startswith("began; expected from ")
    assert notes[3].startswith("goes on at token 1; at first: ")
    assert not any("token" in note for note in notes[1:3])


def test_advice_in_mid_stream_names_the_tier_and_that_of_the_plan_too(visit: Visit, server: PageServer) -> None:
    def advice(at_token: int | None, reason: str) -> bytes:
        result = {"from_tier": "eco", "to_tier": "ultra", "reason": reason, "applied": False, "at_token": at_token}
        return event("trace", {"step": "escalate", "result": result, "duration_ms": 0.0})

    server.door.scripts["advice"] = [
        opening(server), advice(None, "it is hard"), token("Well, "), advice(1, "it is unsure"), token("done."),
        closing(server),
    ]  # fmt: skip
    visit.ask("script:advice")
    visit.wait_for("done")
    items = [text.split("\n") for text in visit.page.locator("#timeline li").all_inner_texts()]
    told = {item[1]: item[2:] for item in items}
    assert told["Advice: ultra instead of eco"] == ["it is hard"]
    assert told["Advice at token 1: ultra should go on"] == ["it is unsure"]
    expect(visit.element("why-title")).to_have_text("Why eco")


def test_an_escalation_that_rewrites_withdraws_the_text_before(visit: Visit, server: PageServer) -> None:
    seam = {"from_tier": "eco", "to_tier": "ultra", "reason": "it was wrong", "at_token": 2, "rewrite": True}
    server.door.scripts["anew"] = [
        opening(server), token("Wro"), token("ng.", accepted=True, k=3), Wait(0.3),
        event("escalation", seam), token("Right."), closing(server),
    ]  # fmt: skip
    visit.ask("script:anew")
    visit.wait_for("done")
    assert visit.page.locator("#answer span:not(.seam)").all_inner_texts() == ["Right."]
    expect(visit.page.locator("#answer .seam")).to_have_text(re.compile("^ultra begins the answer anew"))
    expect(visit.element("why-title")).to_have_text("Why eco; ultra begins anew")


def test_events_of_an_unknown_type_disturb_nothing_and_are_told(visit: Visit, server: PageServer) -> None:
    new = event("poem", {"lines": ["roses"]})
    server.door.scripts["new"] = [opening(server), new, token("Yes"), new, token("."), closing(server)]
    visit.ask("script:new")
    visit.wait_for("done")
    assert visit.answer() == "Yes."
    assert "2 events of an unknown type: poem" in happened(visit)


def test_a_server_without_spec_k_draws_no_depth(visit: Visit, server: PageServer) -> None:
    data = {"text": "Yes ", "token_id": 1, "logprob": None, "spec_accepted": False}
    old: list[Part] = []
    for _ in range(4):
        old += [event("token", data), Wait(0.15)]
    server.door.scripts["old"] = [opening(server), *old, closing(server)]
    visit.ask("script:old")
    visit.wait_for("done")
    assert visit.answer() == "Yes Yes Yes Yes "
    expect(visit.page.locator("#plot canvas").nth(1)).to_be_hidden()


@pytest.mark.parametrize(("percent", "words"), [(99.949, "99.9 %"), (99.95, "over 99.9 %")])
def test_nearly_all_of_the_energy_is_not_all_of_it(
    visit: Visit, server: PageServer, percent: float, words: str
) -> None:
    [metrics] = [data for kind, data in real_events(server) if kind == "metrics"]
    metrics["savings"] = metrics["savings"] | {"percent": percent}
    server.door.scripts["most"] = [opening(server), token("Yes."), event("metrics", metrics), event("done", {})]
    visit.ask("script:most")
    visit.wait_for("done")
    expect(visit.element("savings")).to_contain_text(f"This took {words} less energy than one H100")


def test_a_loss_is_shown_as_a_loss(visit: Visit, server: PageServer) -> None:
    [metrics] = [data for kind, data in real_events(server) if kind == "metrics"]
    lost = {"wh": -0.5, "water_l": -0.0009, "co2_g": -0.2, "cost_usd": -0.0001, "percent": -250.0}
    metrics["savings"] = metrics["savings"] | lost
    server.door.scripts["loss"] = [opening(server), token("Yes."), event("metrics", metrics), event("done", {})]
    visit.ask("script:loss")
    visit.wait_for("done")
    notes = {
        name: visit.page.locator(f'[data-figure="{name}"] small').inner_text()
        for name in ("cost", "energy", "water", "co2")
    }
    minus = "\u2212"
    assert notes == {
        "cost": f"saved {minus}$0.0001",
        "energy": f"saved {minus}0.5 Wh",
        "water": f"saved {minus}0.9 mL",
        "co2": f"saved {minus}0.2 g",
    }
    expect(visit.element("savings")).to_contain_text("This took 250 % more energy than one H100")
