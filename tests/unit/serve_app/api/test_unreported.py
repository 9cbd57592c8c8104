"""An estimate of what an engine did for a request since it said so last."""

from __future__ import annotations

import pytest

from router.observation import TierState
from serve_app.api.request_record import unreported_s


@pytest.mark.parametrize(
    ("quiet_s", "tier", "waits", "expected_s"),
    [
        (0.5, TierState(running=1, engine_running=1), False, 0.5),
        (0.5, TierState(running=1, engine_running=5), False, 0.1),
        (0.5, TierState(running=2, engine_running=5), False, 0.2),
        (0.5, TierState(running=1), False, 0.5),
        (0.5, TierState(), False, 0.5),
        (4.0, TierState(running=1, engine_running=2, queue_wait_ms=3000), True, 0.5),
        (4.0, TierState(running=1, engine_running=2, queue_wait_ms=3000), False, 2.0),
        (2.0, TierState(running=1, engine_running=2, queue_wait_ms=3000), True, 0.0),
    ],
)
def test_it_is_an_equal_part_of_the_time_less_the_wait_before_the_first_token(
    quiet_s: float, tier: TierState, waits: bool, expected_s: float
) -> None:
    assert unreported_s(quiet_s, tier, waits=waits) == pytest.approx(expected_s)
