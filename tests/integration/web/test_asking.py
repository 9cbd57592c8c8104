"""A prompt and its answer: the text, the drafts, who answered and why, what it took, and the history."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from router.observation import TierState
from tests.support.api import Api
from tests.support.browser import Visit
from tests.support.page_server import PageServer


def test_an_answer_is_the_text_of_its_tokens(visit: Visit, server: PageServer) -> None:
    visit.ask("What is the capital of France? stub:tokens=60")
    visit.wait_for("done")

    with Api(server.url.removesuffix("/")) as api:
        assert visit.answer() == api.infer(prompt="What is the capital of France? stub:tokens=60").text
    assert re.match(r"Done: 60 tokens in ", visit.element("phase").inner_text())


def test_drafted_and_accepted_text_is_underlined_until_the_marks_are_turned_off(
    visit: Visit, server: PageServer
) -> None:
    prompt = "Copy this. stub:tokens=60"
    visit.set_power(10)
    visit.ask(prompt)
    visit.wait_for("done")

    with Api(server.url.removesuffix("/")) as api:
        tokens = api.infer(prompt=prompt, mode="manual", power=10).all("token")
    marked = visit.page.locator("#answer .drafted")
    accepted = "".join(token["text"] for token in tokens if token["spec_accepted"])
    assert "".join(marked.all_inner_texts()) == accepted
    # Runs of tokens of a kind are one element: fewer than half as many as tokens.
    assert visit.page.locator("#answer span").count() < len(tokens) / 2
    expect(marked.first).to_have_css("text-decoration-line", "underline")
    expect(visit.element("legend")).to_be_visible()

    visit.element("marks").uncheck()
    expect(marked.first).to_have_css("text-decoration-line", "none")
    expect(visit.element("legend")).to_be_hidden()


def test_the_page_says_who_answered_why_and_what_each_other_tier_would_have_taken(visit: Visit) -> None:
    visit.ask("Prove that there are infinitely many primes. stub:tokens=20")
    visit.wait_for("done")

    expect(visit.element("why-title")).to_have_text(re.compile(r"Why (eco|balanced|performance|ultra)"))
    chosen = visit.element("why-title").inner_text().removeprefix("Why ")
    expect(visit.element("reason")).to_contain_text("math prompt of difficulty")
    rows = visit.page.locator("#tiers-table tbody tr:not(.because) th").all_inner_texts()
    tiers = ["eco", "balanced", "performance", "ultra"]
    place = tiers.index(chosen)
    assert rows == [*tiers[:place], f"{chosen} ✓", "actual", *tiers[place + 1 :]]
    figures = visit.page.locator("#tiers-table tbody tr:not(.because) td").all_inner_texts()
    assert len(figures) == 5 * 4
    assert all(re.search(r"\d", each) for each in figures)
    assert visit.page.locator("#tiers-table .because").count() == 4
    happened = visit.page.locator("#timeline .what").all_inner_texts()
    assert happened[0] == "Asked, AUTO, speed 50"
    assert happened[1].startswith("Rated: math, difficulty ")
    assert happened[-2] == "First token"
    assert happened[-1].startswith("Done: 20 tokens")


def test_figures_say_what_the_answer_took_and_saved(visit: Visit) -> None:
    visit.set_power(10)
    visit.ask("Hello. stub:tokens=40 stub:rate=100")
    visit.wait_for("done")

    assert re.fullmatch(r"[\d.]+ (ms|s)", visit.figure("ttft"))
    assert re.fullmatch(r"[\d,.]+", visit.figure("rate"))
    assert visit.figure("tokens") == "40"
    assert re.fullmatch(r"\d+ %", visit.figure("drafts"))
    assert visit.figure("cost").startswith("$0.0")
    for name, unit in (("energy", "Wh"), ("water", "L"), ("co2", "g")):
        assert re.fullmatch(rf"[\d.,]+ m?{unit}", visit.figure(name))
        expect(visit.page.locator(f'[data-figure="{name}"] small')).to_have_text(
            re.compile(rf"^saved [\d.]+ m?{unit}$")
        )
    expect(visit.element("savings")).to_contain_text("less energy than one H100")


def test_a_plot_shows_speed_acceptance_and_depth_over_the_answer(visit: Visit) -> None:
    visit.set_power(10)
    visit.ask("Hello. stub:tokens=100 stub:rate=100")
    visit.wait_for("done")

    expect(visit.page.locator("#plot canvas")).to_have_count(2)
    label = visit.element("plot").get_attribute("aria-label") or ""
    assert re.fullmatch(
        r"Plot over the answer: [\d.]+ to [\d.]+ tokens per second; \d+ % of the drafts were accepted, K was up to 5\.",
        label,
    )

    visit.set_option("drafts", "0")
    visit.ask("Hello. stub:tokens=50 stub:rate=100")
    visit.wait_for("done")
    expect(visit.page.locator("#plot canvas").nth(1)).to_be_hidden()  # nothing was drafted
    expect(visit.element("plot")).to_have_attribute("aria-label", re.compile("nothing was drafted"))


def test_the_history_of_this_visit_shows_an_answer_again_and_adds_up(visit: Visit) -> None:
    for prompt in ("First. stub:tokens=10", "Second. stub:tokens=30"):
        visit.ask(prompt)
        visit.wait_for("done")
        expect(visit.element("asked")).to_have_text(prompt)
    second = visit.answer()
    entries = visit.page.locator("#history button")
    assert [text.split("\n")[0] for text in entries.all_inner_texts()] == [
        "Second. stub:tokens=30",
        "First. stub:tokens=10",
    ]
    expect(visit.element("history-sum")).to_have_text(re.compile(r"^2 answers: \$0\.0"))

    entries.nth(1).click()
    expect(visit.element("asked")).to_have_text("First. stub:tokens=10")
    expect(visit.page.locator('[data-figure="tokens"] strong')).to_have_text("10")
    assert len(visit.answer()) < len(second)
    entries.nth(0).click()
    expect(visit.element("answer")).to_have_text(second)

    visit.page.reload()
    expect(visit.element("history-empty")).to_be_visible()  # it was in memory only


def test_an_earlier_answer_is_read_while_another_one_comes(visit: Visit) -> None:
    visit.ask("First. stub:tokens=10")
    visit.wait_for("done")
    visit.ask("Second. stub:rate=40 stub:tokens=120")
    visit.wait_for("streaming")
    entries = visit.page.locator("#history button")
    expect(entries.nth(0)).to_contain_text("under way")
    entries.nth(1).click()
    expect(visit.element("asked")).to_have_text("First. stub:tokens=10")
    visit.wait_for("done")
    expect(visit.element("stop")).to_be_visible()  # of the other one

    entries.nth(0).click()
    expect(visit.element("asked")).to_have_text("Second. stub:rate=40 stub:tokens=120")
    expect(visit.page.locator('[data-figure="tokens"] strong')).to_have_text("120")
    expect(entries.nth(0)).not_to_contain_text("under way")


def test_stop_ends_the_request_in_the_engine(visit: Visit, server: PageServer) -> None:
    visit.ask("A long one. stub:rate=20 stub:tokens=2000")
    visit.wait_for("streaming")
    assert server.tiers.running == 1

    visit.element("stop").click()
    visit.wait_for("stopped")
    server.wait_for_no_requests()
    assert re.fullmatch(r"You stopped it after \d+ tokens?", visit.element("phase").inner_text())
    expect(visit.element("send")).to_be_visible()
    expect(visit.page.locator("#history button")).to_contain_text("stopped after")


def test_leaving_the_page_ends_the_request_too(visit: Visit, server: PageServer) -> None:
    visit.ask("A long one. stub:rate=20 stub:tokens=2000")
    visit.wait_for("streaming")
    visit.page.goto("about:blank")
    visit.origins.discard("about://")
    server.wait_for_no_requests()


def test_a_cold_tier_is_shown_while_it_starts_and_then_answers(visit: Visit, server: PageServer) -> None:
    server.pool.set("ultra", TierState(pending=1, cold_start_s=90.0, reason="no node has room"))
    visit.set_power(95)
    visit.ask("Wake up. stub:tokens=5")
    expect(visit.element("phase")).to_have_text(
        re.compile(r"^Provisioning: .*, about (1 min )?\d+ s left \(no node has room\)$")
    )
    card = visit.page.locator(".tier", has_text="ultra")
    expect(card.locator(".state")).to_contain_text("provisioning")
    expect(card).to_contain_text("no node has room")

    server.pool.set("ultra", TierState(starting=1, cold_start_s=40.0))
    expect(visit.element("phase")).to_have_text(re.compile(r"^Loading the model, waited .*, about \d+ s left$"))
    expect(card.locator(".state")).to_contain_text("loading")
    expect(card).to_contain_text(re.compile(r"at most about \d+ s left"))
    expect(card.get_by_role("progressbar")).to_be_visible()

    server.pool.set("ultra", TierState(running=1))
    visit.wait_for("done")
    expect(card.locator(".state")).to_contain_text("warm")
    waits = [each for each in visit.page.locator("#timeline .what").all_inner_texts() if "waited" in each]
    assert [each.split()[0] for each in waits] == ["Provisioning:", "Loading"]
    assert any(said.startswith("Loading the model") for said in visit.announced())


def test_tiers_say_what_they_do(visit: Visit, server: PageServer) -> None:
    failure = "EngineStartError: its weights are missing"
    server.pool.set(
        "eco", TierState(running=2, engine_running=3, engine_waiting=1, queue_wait_ms=240, active_entry="ngram")
    )
    server.pool.set("balanced", TierState(cold_start_s=35.0))
    server.pool.set(
        "performance", TierState(running=1, active_entry="target-only", entry_failures=(("early-exit", failure),))
    )
    server.pool.set("ultra", TierState(failed=True, reason="no GPU of this type"))
    cards = visit.page.locator(".tier")

    expect(cards.nth(0)).to_contain_text(
        re.compile(r"busy.*2 replicas · wait 240 ms · 3 running, 1 waiting.*entry ngram", re.DOTALL)
    )
    expect(cards.nth(1)).to_contain_text(re.compile(r"cold.*35 s to start", re.DOTALL))
    expect(cards.nth(2)).to_contain_text(f"early-exit was left: {failure}")
    expect(cards.nth(2)).to_contain_text("entry target-only, no drafts")
    expect(cards.nth(3)).to_contain_text(re.compile(r"failed.*no GPU of this type", re.DOTALL))
    expect(visit.element("server")).to_have_text(re.compile("^profile local, 2 of 4 tiers warm"))


def test_a_stub_says_that_no_model_answers(visit: Visit) -> None:
    expect(visit.element("server")).to_contain_text("stub engines: no model answers")
