"""An answer that goes wrong is continued by a stronger tier, which is cold until it begins to."""

from __future__ import annotations

from tests.support.api import Answer, Api

LOOPS = "Say something. stub:loop=0 stub:rate=25"
"""Known as a loop after 5 s; a replica with a stub starts in some seconds, and goes on eight times as fast."""
ASKED = {"prompt": LOOPS, "mode": "manual", "power": 10, "max_tokens": 1500, "escalate": "auto"}


def before_and_after(answer: Answer) -> tuple[list[str], list[str]]:
    """The texts of the tokens on both sides of the seam."""
    seam = answer.kinds.index("escalation")
    texts = [data["text"] if kind == "token" else None for kind, data in answer.events]
    return [text for text in texts[:seam] if text is not None], [text for text in texts[seam:] if text is not None]


def test_the_stronger_tier_is_woken_while_the_answer_goes_on_and_then_continues_it(planning: Api) -> None:
    assert planning.tier("ultra")["replicas"]["running"] == 0
    answer = planning.infer(**ASKED)

    assert answer.kinds[-2:] == ["metrics", "done"]
    seam, metrics = answer.one("escalation"), answer.one("metrics")
    assert (seam["from_tier"], seam["to_tier"], seam["rewrite"]) == ("eco", "ultra", False)
    assert seam["reason"].startswith("it has repeated itself for")
    before, after = before_and_after(answer)
    assert len(before) == seam["at_token"]
    assert len(before) + len(after) == metrics["completion_tokens"] == 1500
    first, last = metrics["legs"]
    assert (first["tier"], first["completion_tokens"], first["ended_by"]) == ("eco", len(before), "handed_over")
    assert (last["tier"], last["entry"], last["completion_tokens"]) == ("ultra", "other", len(after))
    # eco works on one request at a time: it is free again.
    assert planning.infer(prompt="x stub:tokens=2", mode="manual", power=10).kinds[-1] == "done"
    counted = 'power_lever_escalations_total{applied="true",kind="climb",tier="eco",to="ultra"} 1'
    planning.wait_for(lambda api: counted in api.get("/metrics").text)


def test_a_warm_one_may_begin_anew(planning: Api) -> None:
    answer = planning.infer(**ASKED | {"rewrite": True, "max_tokens": 300, "prompt": LOOPS + " stub:rate=200"})
    before, after = before_and_after(answer)
    assert answer.one("escalation")["rewrite"] is True
    assert len(before) >= 144
    assert len(after) == answer.one("metrics")["completion_tokens"] == 300
