"""The kit keeps its time, continues, and survives an engine that fails."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bench.engine.engines import EngineProcess, RefusedError
from bench.kit.plan import Engine, Measurement, engines_of
from bench.kit.results import OtherRunError, Results
from bench.kit.run import AGAIN, reason_in
from bench.kit.table import reason_rows
from router.errors import ConfigError
from router.registry import Profile
from tests.unit.bench.kit.conftest import ALL_THERE, MACHINE, MADE_BY, Pretended


def test_all_is_measured_once_when_there_is_time(profile: Profile, tmp_path: Path) -> None:
    engines, pretended = engines_of(profile, ALL_THERE, 1), Pretended()
    assert pretended.run(tmp_path / "r.json", minutes=60).engines(engines) == 0
    assert len(pretended.started) == len(engines) == 6
    assert pretended.emptied == [True] * 3 + [False] * 3
    assert len(pretended.done) == len(set(pretended.done)) == sum(len(engine.measurements) for engine in engines)
    again = Pretended()
    assert again.run(tmp_path / "r.json", minutes=60).engines(engines) == 0
    assert again.started == []


def test_several_short_runs_measure_what_one_long_run_does_each_within_its_minutes(
    profile: Profile, tmp_path: Path
) -> None:
    engines, long = engines_of(profile, ALL_THERE, 1), Pretended()
    long.run(tmp_path / "long.json", minutes=60).engines(engines)
    done: list[str] = []
    for _ in range(20):
        short = Pretended()
        left = short.run(tmp_path / "short.json", minutes=4).engines(engines)
        assert short.now_s <= 4 * 60
        done += short.done
        if not left:
            break
    assert sorted(done) == sorted(long.done)


def test_an_engine_that_is_started_for_the_rest_answers_once_before_it_is_measured(
    profile: Profile, tmp_path: Path
) -> None:
    engines = engines_of(profile, ALL_THERE, 1)[:1]
    Pretended(other_s=70).run(tmp_path / "r.json", minutes=3).engines(engines)
    later, asked = Pretended(), []
    run = later.run(tmp_path / "r.json", minutes=60)

    def measure(process: EngineProcess, engine: Engine, what: Measurement, limit_s: float) -> dict[str, Any]:
        asked.append(what)
        return later.measure(process, engine, what, limit_s)

    run.measure = measure
    assert run.engines(engines) == 0
    assert asked[0] == AGAIN
    assert run.results.get(engines[0], AGAIN) is None
    assert all(run.results.get(engines[0], what) for what in asked[1:])


def test_nothing_is_begun_that_is_not_expected_to_end_in_time(profile: Profile, tmp_path: Path) -> None:
    pretended = Pretended()
    engines = engines_of(profile, ALL_THERE, 1)
    left = pretended.run(tmp_path / "r.json", minutes=1).engines(engines)  # a GPU engine is expected to take longer
    assert pretended.started == []
    assert left == sum(len(engine.measurements) for engine in engines)


def test_every_engine_is_started_twice_before_larger_batches_take_the_time(profile: Profile, tmp_path: Path) -> None:
    engines = engines_of(profile, ALL_THERE, 1)
    # Both starts of the three engines take 6 minutes, and the 24 measurements of the first starts take 2.
    short = Pretended()
    left = short.run(tmp_path / "r.json", minutes=9).engines(engines)
    first = sum(len(engine.measurements) for engine in engines[:3])
    assert [done for done in short.done[first:] if "start warm" in done] == [
        "eco/ngram off start warm",
        "eco/ngram drafts start warm",
        "performance/early-exit drafts start warm",
    ]
    assert left == sum(len(engine.measurements) for engine in engines) - len(short.done) > 0
    # What is left is measured by the next run, with one more start of each engine.
    rest = Pretended()
    assert rest.run(tmp_path / "r.json", minutes=60).engines(engines) == 0
    assert len(rest.done) == left
    assert len(rest.started) <= 3


def test_an_engine_that_is_slower_than_expected_ends_with_the_minutes_and_is_tried_again(
    profile: Profile, tmp_path: Path
) -> None:
    engines, slow = engines_of(profile, ALL_THERE, 1), Pretended(start_s=400)
    run = slow.run(tmp_path / "r.json", minutes=5)
    assert run.engines(engines) > 0
    assert slow.now_s <= 5 * 60
    assert not any(run.results.failed(engine) for engine in engines)
    patient = Pretended(start_s=400)
    patient.run(tmp_path / "r.json", minutes=200).engines(engines)
    assert patient.started[0] == slow.started[0]


def test_an_engine_that_fails_leaves_its_reason_and_the_others_go_on(profile: Profile, tmp_path: Path) -> None:
    engines, pretended = engines_of(profile, ALL_THERE, 1), Pretended(broken=("off",))
    run = pretended.run(tmp_path / "r.json", minutes=60)
    assert run.engines(engines) == 0
    assert run.results.of(engines[0])["reason"] == "torch.OutOfMemoryError: CUDA out of memory."
    assert pretended.started.count("eco/ngram off") == 1  # nor with warm caches
    assert any(done.startswith("performance/early-exit drafts load") for done in pretended.done)
    again = Pretended()
    again.run(tmp_path / "r.json", minutes=60).engines(engines)
    assert again.started == []


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (IndexError("list index out of range"), "IndexError: list index out of range"),
        (RefusedError("prompt_too_long", 400, False, "the prompt has 9 tokens"), "the prompt has 9 tokens"),
    ],
)
def test_whatever_fails_in_a_measurement_is_the_engines_reason_and_the_others_go_on(
    error: Exception, reason: str, profile: Profile, tmp_path: Path
) -> None:
    engines, pretended = engines_of(profile, ALL_THERE, 1), Pretended(fault=("drafts", "load K=5", error))
    run = pretended.run(tmp_path / "r.json", minutes=60)
    assert run.engines(engines) == 0  # the next run has nothing to go on with
    assert [row["reason"] for row in reason_rows(run.results)] == [reason]
    assert pretended.done.count("eco/ngram drafts answers mixed") == 1  # what came before it stays
    assert pretended.done.count("eco/ngram off start warm") == 1


def test_an_engine_is_not_started_for_what_is_hopeless(profile: Profile, tmp_path: Path) -> None:
    engines = engines_of(profile, ALL_THERE, 1)
    first = Pretended().run(tmp_path / "r.json", minutes=60)
    first.hopeless = lambda engine, what: what.kind == "answers" and engine.role == "drafts"
    assert first.engines(engines) == first.left(engines) == 0
    again = Pretended()
    run = again.run(tmp_path / "r.json", minutes=60)
    assert run.left(engines) == 8  # answers of two engines at four settings
    run.hopeless = first.hopeless
    assert run.engines(engines) == run.left(engines) == 0
    assert again.started == []


def test_a_failed_engine_is_tried_again_only_when_asked_for(profile: Profile, tmp_path: Path) -> None:
    engines = engines_of(profile, ALL_THERE, 1)
    Pretended(broken=("off",)).run(tmp_path / "r.json", minutes=60).engines(engines)
    mended = Pretended()
    run = mended.run(tmp_path / "r.json", minutes=60)
    run.results.forget_failures()
    assert run.engines(engines) == 0
    assert mended.started == ["eco/ngram off", "eco/ngram off"]


def test_what_was_impossible_is_measured_once_it_is_possible(profile: Profile, tmp_path: Path) -> None:
    without = engines_of(profile, ALL_THERE, cards=0)
    run = Pretended().run(tmp_path / "r.json", minutes=60)
    assert run.engines(without) == 0
    assert {row["reason"] for row in reason_rows(run.results)} == {"it needs 1 GPUs, this machine has 0"}
    pretended = Pretended()
    later = pretended.run(tmp_path / "r.json", minutes=60)
    later.engines(engines_of(profile, ALL_THERE, cards=1))
    assert len(pretended.started) == 6
    assert list(reason_rows(later.results)) == []


@pytest.mark.parametrize("key", ["card", "driver", "versions"])
def test_results_of_another_machine_are_not_continued(key: str, profile: Profile, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    Results.read(path, dict(MACHINE), MADE_BY, "local").write()
    with pytest.raises(OtherRunError, match=f"{key} .*name another --json"):
        Results.read(path, MACHINE | {key: "other"}, MADE_BY, "local")


def test_results_of_another_profile_are_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    Results.read(path, dict(MACHINE), MADE_BY, "local").write()
    with pytest.raises(OtherRunError, match="has results of profile 'local', not of 'gpu': name another --json"):
        Results.read(path, dict(MACHINE), MADE_BY, "gpu")
    path.write_text(path.read_text().replace('"profile": "local",', ""))
    with pytest.raises(OtherRunError, match="has results of a profile that it does not name, not of 'local'"):
        Results.read(path, dict(MACHINE), MADE_BY, "local")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "it is not JSON"),
        (b"\xff\xfe", "it is not JSON"),
        (b"[1]", "(top level): "),
        (b'{"machine": {}}', "machine.card: Field required"),
        (
            b'{"machine": {"card": "H100", "driver": "1", "versions": {}}, "application": {}, "engines": {"a": 1}}',
            "engines.a: ",
        ),
    ],
)
def test_a_file_that_is_no_result_is_refused_and_kept(content: bytes, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(f"got {path}, which is no result of this command: {expected}")):
        Results.read(path, dict(MACHINE), MADE_BY, "local")
    assert path.read_bytes() == content


def test_each_figure_says_when_and_by_which_commit_it_was_measured(profile: Profile, tmp_path: Path) -> None:
    engines = engines_of(profile, ALL_THERE, 1)
    run = Pretended().run(tmp_path / "r.json", minutes=60)
    run.engines(engines)
    figures = run.results.of(engines[0])["measured"].values()
    assert {(figure["date"], figure["git"]) for figure in figures} == {(MADE_BY["date"], MADE_BY["git"])}


def test_a_finished_file_is_a_result(profile: Profile, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    Pretended().run(path, minutes=60).engines(engines_of(profile, ALL_THERE, 1))
    again = Results.read(path, dict(MACHINE), MADE_BY, "local")
    assert any(engine["measured"] for engine in again.engines.values())


def test_the_reason_is_the_last_error_of_the_log() -> None:
    log = "INFO 08:00 x.py:1] KeyError: none here\n(EngineCore pid=7) ValueError: No available memory\nEngine died"
    assert reason_in(log) == "(EngineCore pid=7) ValueError: No available memory"
    assert reason_in("killed\n") == "killed"
    assert reason_in("") == "no reason in its log"
