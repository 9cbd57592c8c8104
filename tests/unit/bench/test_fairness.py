"""What `bench.fairness` makes of what two users saw."""

from __future__ import annotations

import pytest

from bench.fairness import WAYS, Crowd, row
from bench.load.client import Stream


def answer(start_s: float, ttft_s: float) -> Stream:
    return Stream(ttft_s, (), 4, start_s, start_s + 1)


CROWD = Crowd([[0.0, 0.1, 0.2, 0.3, 0.4, 0.5], [0.3, 0.4, 0.5, 0.5]], ["HTTP 503"])


def test_a_row_tells_how_long_the_small_user_waited_in_steps_and_against_its_time_alone() -> None:
    made = row(WAYS[1], [answer(0.05, 0.2), answer(0.15, 0.5)], CROWD, alone_ms=150.0)
    assert made["step_ms"] == pytest.approx(100)
    assert [made["ttft_p50_ms"], made["ttft_max_ms"]] == pytest.approx([350, 500])
    assert made["within"] == 0.5  # 350 ms are allowed
    assert (made["steps_p50"], made["steps_max"], made["refused"]) == (3, 4, 1)
    assert made["large user"] == "other key"


def test_alone_there_are_no_steps_of_others() -> None:
    made = row(WAYS[0], [answer(0.0, 0.2)], Crowd(), alone_ms=0.0)
    assert [made[name] for name in ("step_ms", "within", "steps_p50", "steps_max")] == [None] * 4
