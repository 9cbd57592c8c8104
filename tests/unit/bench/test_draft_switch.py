"""What a change of drafts cost, from answers made by hand."""

import pytest

from bench.draft_switch import change_of, place_of_change
from bench.engine.engines import Batch, Reply, StepTaken
from router.registry import Drafts


def _reply(arrivals_s: list[float], drafts: list[Drafts]) -> Reply:
    return Reply(
        token_ids=[1] * len(arrivals_s),
        accepted=[False] * len(arrivals_s),
        text="",
        began_s=0.0,
        arrivals=[(at_s, 1) for at_s in arrivals_s],
        finish_reason="length",
        prompt_tokens=1,
        draft_tokens=3 * len(drafts),
        accepted_tokens=0,
        reasons={},
        stopped_by_tau=False,
        # The step that ends the prefill verifies nothing.
        steps=[StepTaken(0, 0, "", "own"), *(StepTaken(3, 0, "asked", who) for who in drafts)],
        core_steps=None,
    )


GOING: list[Drafts] = ["own", "own", "own", "own", "ngram", "ngram", "ngram", "ngram"]


def test_the_longest_wait_around_the_switch_is_compared_with_the_usual_one_before() -> None:
    # Waits of 0.1 s; of 0.3 s before the first step with others' drafts; of 0.9 s long after.
    reply = _reply([0.0, 0.1, 0.2, 0.3, 0.4, 0.7, 0.8, 0.9, 1.8], GOING)
    assert [gap_s for gap_s, _ in reply.gaps] == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.3, 0.1, 0.1, 0.9])
    assert place_of_change(reply) == 4
    change = change_of(Batch([reply], 1.8, 0, 0.002, (0, 0)))
    assert change.longest_gap_s == pytest.approx(0.3)
    assert change.usual_gap_s == pytest.approx(0.1)
    assert change.order_s == 0.002


def test_a_request_whose_drafts_never_switched_is_an_error() -> None:
    with pytest.raises(ValueError, match="before the drafts switched"):
        place_of_change(_reply([0.0, 0.1, 0.2], ["own", "own"]))


def test_a_batch_without_an_order_is_an_error() -> None:
    with pytest.raises(ValueError, match="no order"):
        change_of(Batch([_reply([0.0, 0.1], GOING)], 1.0, 0, None, (0, 0)))
