"""The rolling record of past runs."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.difficulty.categories import CATEGORIES
from router.registry import TIER_NAMES
from router.runs.history import RunRecord
from router.runs.statistics import HalfLife
from router.runs.summary import FINISH_REASONS, HandedOver, Recent, RunReport
from router.signs import HOPELESS, Signs
from tests.support.runs import run

HALF_LIFE = HalfLife(values=50, seconds=3600)
LONG = HalfLife(values=1e12, seconds=1e12)
"""Nothing is forgotten."""


def record(*reports: RunReport, half_life: HalfLife = LONG) -> RunRecord:
    kept = RunRecord(half_life)
    for report in reports:
        kept.add(report, 0.0)
    return kept


def mean(recent: Recent | None) -> float:
    assert recent is not None
    return recent.mean


def test_half_an_answer_is_no_run_but_tells_how_answers_go() -> None:
    kept = record(run(signs=Signs(first=-1.0, worst=-2.0)))
    kept.add(HandedOver("eco", "math", Signs(first=-2.0, worst=-9.0)), 0.0)
    summary = kept.summaries(0.0)["eco"].all
    assert (summary.runs, mean(summary.total_ms)) == pytest.approx((1, 1100))
    assert mean(summary.first_logprob) == pytest.approx(-1.5)
    assert mean(summary.worst_logprob) == pytest.approx((-2.0 + HOPELESS) / 2), "nothing lower is learned"


def test_an_answer_that_was_not_watched_says_nothing_of_that() -> None:
    summary = record(run()).summaries(0.0)["eco"].all
    assert (summary.first_logprob, summary.worst_logprob) == (None, None)


def test_a_summary_of_one_run_has_what_it_measured() -> None:
    summary = record(run(draft_tokens=40, accepted_tokens=10)).summaries(0.0)["eco"].all
    assert summary.runs == 1
    assert (mean(summary.ttft_ms), mean(summary.engine_ttft_ms), mean(summary.total_ms)) == (100, 80, 1100)
    assert mean(summary.ms_per_token) == pytest.approx(20)
    assert mean(summary.tokens_per_s) == pytest.approx(51 / 1.08)
    assert (mean(summary.watts), mean(summary.usd_per_hour)) == pytest.approx((1, 1))
    assert (summary.draft_tokens, summary.acceptance_rate) == (40, 0.25)
    assert summary.finish_reasons == {"stop": 1}


def test_several_runs_have_mean_deviation_and_shares() -> None:
    summary = record(run(ttft_ms=100), run(ttft_ms=300, finish_reason="length")).summaries(0.0)["eco"].all
    assert summary.ttft_ms is not None
    assert (summary.ttft_ms.mean, summary.ttft_ms.deviation, summary.ttft_ms.count) == pytest.approx((200, 100, 2))
    assert summary.finish_reasons == pytest.approx({"stop": 0.5, "length": 0.5})


def test_a_summary_says_how_many_runs_had_their_energy_measured() -> None:
    runs = [run(energy_is_measured=True), run(energy_is_measured=True), run(), run()]
    assert mean(record(*runs).summaries(0.0)["eco"].all.energy_measured) == pytest.approx(0.5)


def test_each_tier_and_category_has_its_own_runs_and_a_tier_has_all_of_them() -> None:
    summaries = record(run(ttft_ms=100), run(category="code", ttft_ms=500), run("ultra", ttft_ms=7)).summaries(0.0)
    assert set(summaries) == {"eco", "ultra"}
    eco = summaries["eco"]
    assert {category: mean(summary.ttft_ms) for category, summary in eco.by_category.items()} == {
        "math": 100,
        "code": 500,
    }
    assert (eco.all.runs, mean(eco.all.ttft_ms)) == (2, 300)


def test_a_quantity_that_a_run_does_not_have_is_not_counted() -> None:
    summary = record(run(completion_tokens=1, total_ms=100.0, tokens_per_s=12.5)).summaries(0.0)["eco"].all
    assert summary.ms_per_token is None
    nothing = run(completion_tokens=0, ttft_ms=0.0, queue_ms=0.0, total_ms=0.0, tokens_per_s=0.0)
    summary = record(nothing).summaries(0.0)["eco"].all
    assert (summary.tokens_per_s, summary.watts, summary.usd_per_hour) == (None, None, None)
    assert summary.acceptance_rate is None


def test_runs_fade_only_with_further_runs_of_their_tier_and_category() -> None:
    kept = RunRecord(HalfLife(values=1, seconds=1e12))
    kept.add(run(ttft_ms=0.0), 0.0)
    kept.add(run(category="code", ttft_ms=9.0), 0.0)
    kept.add(run(ttft_ms=30.0), 0.0)
    eco = kept.summaries(0.0)["eco"]
    assert mean(eco.by_category["math"].ttft_ms) == pytest.approx(20)
    assert eco.by_category["math"].runs == pytest.approx(1.5)
    assert eco.by_category["code"].runs == 1


def test_runs_fade_with_time_until_none_is_left() -> None:
    kept = record(run(), half_life=HalfLife(values=50, seconds=60))
    assert kept.summaries(60.0)["eco"].all.runs == pytest.approx(0.5)
    assert mean(kept.summaries(60.0)["eco"].all.ttft_ms) == 100
    assert kept.summaries(600.0) == {}


def test_a_new_run_outweighs_an_old_one() -> None:
    kept = record(run(ttft_ms=10_000.0), half_life=HalfLife(values=50, seconds=60))
    kept.add(run(ttft_ms=100.0), 600.0)
    assert mean(kept.summaries(600.0)["eco"].all.ttft_ms) == pytest.approx(100, rel=0.1)


reports = st.builds(
    RunReport,
    tier=st.sampled_from(TIER_NAMES),
    category=st.sampled_from(CATEGORIES),
    ttft_ms=st.floats(0, 1e6),
    queue_ms=st.floats(0, 1e6),
    total_ms=st.floats(0, 1e6),
    tokens_per_s=st.floats(0, 1e4),
    completion_tokens=st.integers(0, 100_000),
    draft_tokens=st.integers(0, 1000),
    accepted_tokens=st.integers(0, 1000),
    energy_wh=st.floats(0, 1e3),
    cost_usd=st.floats(0, 1e3),
    finish_reason=st.sampled_from(FINISH_REASONS),
)


@given(st.lists(st.tuples(reports, st.floats(-10, 1e5)), max_size=40))
def test_any_runs_give_a_record_of_bounded_size_with_means_within_what_was_reported(
    many: list[tuple[RunReport, float]],
) -> None:
    kept = RunRecord(HALF_LIFE)
    for report, now_s in many:
        kept.add(report, now_s)
    summaries = kept.summaries(max((now_s for _, now_s in many), default=0.0))
    assert set(summaries) <= {report.tier for report, _ in many}
    for tier, runs in summaries.items():
        assert set(runs.by_category) <= set(CATEGORIES)
        assert runs.all.runs == pytest.approx(sum(summary.runs for summary in runs.by_category.values()))
        mine = [report for report, _ in many if report.tier == tier]
        assert sum(runs.all.finish_reasons.values()) == pytest.approx(1)
        waits = [report.ttft_ms for report in mine]
        slack = 1e-6 * (1 + max(waits))
        assert min(waits) - slack <= mean(runs.all.ttft_ms) <= max(waits) + slack


def test_the_record_of_ten_thousand_runs_is_as_large_as_that_of_a_few() -> None:
    few, many = RunRecord(HALF_LIFE), RunRecord(HALF_LIFE)
    everything = [run(tier, category=category) for tier in TIER_NAMES for category in CATEGORIES]
    for report in everything:
        few.add(report, 0.0)
    for number in range(10_000):
        many.add(everything[number % len(everything)], float(number))
    assert len(pickle.dumps(many)) < 2 * len(pickle.dumps(few))
