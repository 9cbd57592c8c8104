"""Who used more than a fair share of an engine's time lately."""

from __future__ import annotations

import pytest

from serve_app.fairness.engine_time import FORGET_S, EngineTime


def test_whoever_used_more_than_the_mean_of_those_present_is_over_it() -> None:
    time = EngineTime()
    time.use({"large": 9.0, "small": 1.0}, 0.0)
    assert time.over_share({"large", "small"}) == {"large"}


def test_one_key_alone_is_never_over_its_share() -> None:
    time = EngineTime()
    time.use({"large": 9.0}, 0.0)
    assert time.over_share({"large"}) == frozenset()


def test_a_newcomer_makes_whoever_was_alone_go_over_it() -> None:
    time = EngineTime()
    time.use({"large": 9.0}, 0.0)
    assert time.over_share({"large", "newcomer"}) == {"large"}


def test_equal_users_are_not_over_it() -> None:
    time = EngineTime()
    for step in range(100):
        time.use({"one": 0.1, "other": 0.1}, float(step))
    assert time.over_share({"one", "other"}) == frozenset()


def test_who_is_over_it_does_not_change_with_every_step() -> None:
    time = EngineTime()
    time.use({"one": 2.0, "other": 1.0}, 0.0)
    assert time.over_share({"one", "other"}) == frozenset()  # above the mean, not clearly
    time.use({"one": 2.0}, 0.0)
    assert time.over_share({"one", "other"}) == {"one"}  # 4 of 5
    time.use({"other": 2.0}, 0.0)
    assert time.over_share({"one", "other"}) == {"one"}  # 4 of 7: still above the mean
    time.use({"other": 2.0}, 0.0)
    assert time.over_share({"one", "other"}) == frozenset()


def test_whoever_is_absent_has_no_share() -> None:
    time = EngineTime()
    time.use({"one": 7.0, "other": 2.0, "absent": 100.0}, 0.0)
    assert time.over_share({"one", "other"}) == {"one"}


def test_what_was_used_is_forgotten() -> None:
    time = EngineTime()
    time.use({"early": 10.0}, 0.0)
    time.use({"late": 1.0}, FORGET_S)  # 10 / e = 3.7 are left of the early one's
    assert time.over_share({"early", "late"}) == {"early"}
    time.use({"late": 0.0}, 30 * FORGET_S)
    assert time._used_s == pytest.approx({"late": 0.0}, abs=1e-9)
