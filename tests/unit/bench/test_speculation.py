"""The figures of the speculation benchmark, from batches made by hand."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from bench.engine.engines import Batch, Reply, StepTaken
from bench.engine.prompts import COPYING, read_families
from bench.reporting.plot import grouped_bars
from bench.reporting.report import REPOSITORY
from bench.speculation import (
    AUTO,
    OFF,
    SETTINGS,
    Cell,
    Cells,
    Row,
    cell_rows,
    entries_of,
    goal_rows,
    updated,
    write_report,
)
from cluster.profiles.reading import read_profile, validate_profile
from router.registry import Profile


def _reply(
    arrivals: list[tuple[float, int]], steps: int = 0, drafted: int = 0, accepted: int = 0, began_s: float = 0.0
) -> Reply:
    """Of that many steps, which share the drafts."""
    tokens = sum(count for _, count in arrivals)
    return Reply(
        token_ids=[1] * tokens,
        accepted=[False] * tokens,
        text="",
        began_s=began_s,
        arrivals=arrivals,
        finish_reason="length",
        prompt_tokens=1,
        draft_tokens=drafted,
        accepted_tokens=accepted,
        reasons={},
        stopped_by_tau=False,
        steps=[StepTaken(drafted // steps, accepted // steps, "asked", "own") for _ in range(steps)],
        core_steps=None,
    )


def _batch(tokens: int, seconds: float, steps: int = 0, drafted: int = 0, accepted: int = 0) -> Batch:
    arrivals = [(seconds * (place + 1) / tokens, 1) for place in range(tokens)]
    return Batch([_reply(arrivals, steps, drafted, accepted)], seconds, 0, None, (0, 0))


def _rows(family: str, *rounds: Mapping[str, float]) -> list[Row]:
    cells = {
        (family, 1, setting): Cell([_batch(int(speeds[setting]), 1.0) for speeds in rounds]) for setting in SETTINGS
    }
    return cell_rows(cells)


def test_speed_is_all_tokens_over_all_time_and_the_ratio_is_of_two_speeds() -> None:
    cells: Cells = {(COPYING, 8, setting): Cell([_batch(10, 1.0), _batch(20, 4.0)]) for setting in SETTINGS}
    cells[COPYING, 8, "K=5"] = Cell([_batch(10, 0.5, 4, 20, 5), _batch(20, 2.0, 6, 30, 15)])
    rows = {row["setting"]: row for row in cell_rows(cells)}
    # Without the first token and the wait for it: 9 and 19 tokens in 0.9 and 3.8 s, and in half of that.
    assert rows[OFF]["tokens_per_s"] == pytest.approx(28 / 4.7)
    assert rows[OFF]["ratio_to_off"] == 1
    assert rows["K=5"]["tokens_per_s"] == pytest.approx(28 / 2.35)
    assert rows["K=5"]["ratio_to_off"] == pytest.approx(2)
    assert (rows["K=5"]["lowest"], rows["K=5"]["highest"]) == pytest.approx((2, 2))
    assert rows["K=5"]["acceptance_rate"] == pytest.approx(0.4)  # 20 of 50
    assert rows["K=5"]["mean_acceptance_length"] == pytest.approx(3)  # 1 + 20 / 10
    assert rows[OFF]["acceptance_rate"] is None
    assert {"family", "batch", "setting", "tokens_per_s", "acceptance_rate", "ratio_to_off"} <= set(rows[OFF])
    assert rows[OFF]["ttft_p50_ms"] == pytest.approx(150)  # of 100 and 200
    assert rows[OFF]["itl_p50_ms"] == pytest.approx(200)  # of 9 times 100 and 19 times 200


def test_only_the_time_counts_in_which_all_places_decode() -> None:
    # Two at a time: the third begins when the first ends after 1 s; it ends first, at 2 s; the second crawls on.
    quick = [(0.5, 4), (1.0, 4)]
    crawling = [(0.5 * step, 1) for step in range(1, 20)]
    batch = Batch([_reply(quick), _reply(crawling), _reply(quick, began_s=1.0)], 9.5, 0, None, (0, 0))
    assert batch.full == (0.5, 2.0)
    assert batch.full_tokens == 4 + 3 + 8
    assert batch.tokens_per_s == 10.0
    assert batch.tokens == 35


def test_the_whole_time_counts_if_an_answer_ends_before_all_places_decode() -> None:
    batch = Batch([_reply([(0.5, 1)]), _reply([(0.9, 1), (1.5, 1)])], 1.5, 0, None, (0, 0))
    assert batch.full == (0.0, 1.5)
    assert batch.tokens_per_s == 2.0


def test_tokens_of_one_item_share_the_wait_for_it() -> None:
    reply = _reply([(0.5, 1), (0.8, 3), (1.0, 1)])
    assert reply.ttft_s == 0.5
    assert reply.itl_s == pytest.approx([0.1, 0.1, 0.1, 0.2])


@pytest.mark.parametrize(
    ("auto", "met"),
    [(388, "yes"), (387, "no")],  # 0.97 of the best static K, 400
)
def test_auto_is_compared_with_the_best_static_k(auto: float, met: str) -> None:
    (row,) = goal_rows(_rows("chat", {OFF: 300, "K=2": 390, "K=5": 400, "K=8": 100, AUTO: auto}))
    assert row["best_static"] == "K=5"
    assert row["auto_to_best_static"] == pytest.approx(auto / 400)
    assert row["met"] == met


def test_the_standard_error_of_the_ratio_comes_from_its_rounds() -> None:
    even = {OFF: 50, "K=2": 100, "K=5": 200, "K=8": 100}
    (row,) = goal_rows(_rows("chat", even | {AUTO: 200}, even | {AUTO: 180}, even | {AUTO: 220}))
    # 1, 0.9 and 1.1: a deviation of 0.1, over the root of three.
    assert row["standard_error"] == pytest.approx(0.1 / 3**0.5, rel=0.02)
    assert goal_rows(_rows("chat", even | {AUTO: 200}, even | {AUTO: 180}))[0]["standard_error"] is None


def test_cells_that_are_measured_again_replace_the_old_ones() -> None:
    speeds = dict.fromkeys(SETTINGS, 100.0)
    before = _rows("chat", speeds) + _rows("code", speeds)
    rows = updated(before, _rows("code", dict.fromkeys(SETTINGS, 200.0)) + _rows("math", speeds))
    assert [row["family"] for row in rows[:: len(SETTINGS)]] == ["chat", "code", "math"]
    assert [round(row["tokens_per_s"]) for row in rows[:: len(SETTINGS)]] == [100, 200, 100]


def test_auto_is_compared_with_off_where_every_static_k_loses() -> None:
    (row,) = goal_rows(_rows("chat", {OFF: 300, "K=2": 200, "K=5": 200, "K=8": 100, AUTO: 210}))
    assert row["auto_to_best_static"] == pytest.approx(1.05)
    assert row["auto_to_off"] == pytest.approx(0.7)
    assert row["met"] == "no"


def test_copying_at_batch_1_must_be_twice_as_fast() -> None:
    (row,) = goal_rows(_rows(COPYING, {OFF: 100, "K=2": 190, "K=5": 190, "K=8": 190, AUTO: 199}))
    assert row["met"] == "no"
    (row,) = goal_rows(_rows(COPYING, {OFF: 100, "K=2": 190, "K=5": 190, "K=8": 190, AUTO: 200}))
    assert row["met"] == "yes"


@pytest.mark.parametrize("drafts", ["ngram", "early-exit"])
def test_both_engines_have_the_same_arguments_except_speculation(drafts: str) -> None:
    _, plain, drafting = entries_of(validate_profile(Profile, read_profile("local"), where="local"), drafts)
    assert plain.speculation is None
    assert drafting.speculation is not None
    assert drafting.speculation.k_max == 8
    assert drafting.engine_args == plain.engine_args
    assert (drafting.target, drafting.max_model_len) == (plain.target, plain.max_model_len)


def test_the_report_has_both_tables_and_shows_its_plot(tmp_path: Path) -> None:
    rows = _rows("chat", {OFF: 300, "K=2": 390, "K=5": 400, "K=8": 100, AUTO: 400})
    made_by = {"command": "python", "machine": {"cpu": "a CPU", "cores": 2}, "git": "abc", "date": "2026-11-28"}
    write_report(tmp_path / "report.md", rows, "ngram", made_by)
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "(report.svg)" in report
    assert "auto_to_best_static" in report
    assert "mean_acceptance_length" in report
    assert (tmp_path / "report.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_a_plot_names_its_panels_groups_and_series(tmp_path: Path) -> None:
    grouped_bars(tmp_path / "p.svg", "Title", {"batch 1": {"auto": [1.0, None]}}, ["chat", "code"], "ratio", 1.0)
    svg = (tmp_path / "p.svg").read_text(encoding="utf-8")
    # matplotlib draws text as outlines and names each in a comment.
    for text in ("Title", "batch 1", "auto", "chat", "code", "ratio"):
        assert f"<!-- {text} -->" in svg


def test_the_default_prompts_have_all_families() -> None:
    data = REPOSITORY.parent / "shared" / "data"
    if not data.is_dir():
        pytest.skip(f"no prompt files at {data}")
    assert {"code", "math", "translation", "summarisation", "rag", "chat"} == set(read_families(data))
