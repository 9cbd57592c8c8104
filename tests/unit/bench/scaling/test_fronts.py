"""Fronts of misses against GPU-hours, and the goal."""

from __future__ import annotations

import pytest

from bench.scaling.fronts import Front, Key, goal_rows, half_width, help_rows, rows_of, summary_rows
from bench.scaling.policies import OURS
from bench.scaling.simulation import Outcome


def outcome(misses: float, hours: float) -> Outcome:
    return Outcome(1000, round(1000 * misses), hours, 4, 4)


def key(policy: str, setting: float = 1.0) -> Key:
    return Key("step", 4, policy, setting)


OTHERS = {
    key("fixed", 4): [outcome(0.0, 10.0)],
    key("clairvoyant"): [outcome(0.05, 3.0)],
    key("ours_fast_start"): [outcome(0.01, 4.0)],
    key("fixed_admission", 4): [outcome(0.0, 10.0)],
}


def test_a_point_is_the_mean_of_its_seeds_with_its_interval() -> None:
    [row] = rows_of({key(OURS, 0.01): [outcome(0.01, 3.0), outcome(0.02, 4.0), outcome(0.06, 5.0)]})
    assert (row["trace"], row["replicas_max"], row["policy"], row["setting"]) == ("step", 4, OURS, 0.01)
    assert (row["slo_miss_share"], row["gpu_hours"], row["seeds"]) == (pytest.approx(0.03), 4.0, 3)
    # Student's t for two degrees of freedom is 4.303; the deviation of 3, 4, 5 is 1.
    assert row["hours_ci95"] == pytest.approx(4.303 / 3**0.5, rel=0.001)


def test_one_seed_has_no_interval() -> None:
    assert half_width([0.1]) is None


def test_a_front_has_straight_lines_between_the_points_that_nothing_beats() -> None:
    # (3.5, 0.3) costs more than (3, 0.2) and misses more.
    front = Front([(4.0, 0.1), (2.0, 0.4), (3.0, 0.2), (3.5, 0.3)])
    assert front.misses_at(2.5) == pytest.approx(0.3)
    assert front.misses_at(3.5) == pytest.approx(0.15)
    assert front.hours_at(0.3) == pytest.approx(2.5)
    assert front.hours_at(0.15) == pytest.approx(3.5)


def test_a_front_ends_where_its_points_do() -> None:
    front = Front([(2.0, 0.4), (4.0, 0.1)])
    assert (front.misses_at(2.0), front.misses_at(9.0), front.misses_at(1.9)) == (0.4, 0.1, None)
    assert (front.hours_at(0.1), front.hours_at(0.9), front.hours_at(0.09)) == (4.0, 2.0, None)


@pytest.mark.parametrize(
    ("its", "misses_met", "hours_met"),
    [
        # Our front goes from 2 hours and 0.4 to 4 hours and 0.1.
        ((0.5, 3.0), "yes", "yes"),  # 0.25 at 3 hours; 2 hours at 0.5
        ((0.49, 3.0), "no", "yes"),
        ((0.25, 3.4), "no", "yes"),  # 3 hours at 0.25
        ((0.25, 3.3), "no", "no"),
        ((0.9, 1.9), "no", "no"),  # we have no point so cheap
        ((0.05, 8.0), "no", "no"),  # and none that misses so few
    ],
)
def test_the_goal_is_held_against_every_point_of_a_rival(
    its: tuple[float, float], misses_met: str, hours_met: str
) -> None:
    ours = {key(OURS, 0.1): [outcome(0.4, 2.0)], key(OURS, 0.01): [outcome(0.1, 4.0)]}
    rows = goal_rows(rows_of({**ours, key("serve_default", 16): [outcome(*its)], **OTHERS}))
    assert [row["rival"] for row in rows] == ["serve_default", "fixed"]
    assert (rows[0]["misses_met"], rows[0]["hours_met"]) == (misses_met, hours_met)


def test_misses_of_a_thousandth_are_as_good_as_none() -> None:
    ours = {key(OURS, 0.01): [outcome(0.001, 4.0)]}
    goals = goal_rows(rows_of({**ours, **OTHERS}))
    [fixed] = goals
    assert (fixed["its_misses"], fixed["misses_met"], fixed["hours_met"]) == (0.0, "yes", "yes")
    assert summary_rows(goals) == [{"trace": "step", "replicas_max": 4, "fixed": "1 and 1 of 1"}]


def test_what_would_help_is_each_ones_point_with_the_fewest_misses() -> None:
    ours = {key(OURS, 0.1): [outcome(0.4, 2.0)], key(OURS, 0.01): [outcome(0.1, 4.0)]}
    [row] = help_rows(rows_of({**ours, key("fixed", 2): [outcome(0.6, 5.0)], **OTHERS}))
    assert (row["kept_hours"], row["kept"], row["kept_admission"]) == (10.0, 0.0, 0.0)
    assert (row["ours"], row["ours_hours"]) == (0.1, 4.0)
    assert (row["fast_start"], row["fast_start_hours"]) == (0.01, 4.0)
    assert (row["clairvoyant"], row["clairvoyant_hours"]) == (0.05, 3.0)
