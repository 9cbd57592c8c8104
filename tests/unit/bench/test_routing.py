"""The quality benchmark: nobody is scored by a model that saw the answer, and the figures are the right ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from bench.routing import (
    calibration,
    figures_of,
    hard_prompts_to_eco,
    is_unread,
    latencies_ms,
    mean_of,
    safety_figures,
)
from bench.train_router import DIMENSIONS, NUMBERS
from router.calibration import fit as fitting
from router.calibration.fit import Samples, cross_validated
from router.calibration.outcomes import Outcome
from router.difficulty.pieces import load_pieces
from tests.unit.router.profiles import small_profile

SOURCES = ("arena_hard_en_proxy", "ko_arena_hard", "mt_bench", "infibench", "shaberi_ja", "anchors_0.5", "gsm")


def samples(rows: int = 12) -> Samples:
    """Each source has so many prompts, of which every second one gains; two sources have the same ids."""
    outcomes = [
        Outcome(id=f"{source}:{number}", source=source, prompt=f"word{number}", weak_score=0, strong_score=number % 2)
        for source in SOURCES
        for number in range(rows)
    ]
    return Samples.of(outcomes, load_pieces())


def test_no_prompt_is_scored_by_a_model_that_saw_it_or_another_wording(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, trained = samples(), []

    class Nothing:
        def gains(self, left_out: Samples) -> object:
            return np.zeros(len(left_out))

    def spy(seen: Samples, seed: int) -> Nothing:
        trained.append(set(seen.groups.tolist()))
        return Nothing()

    monkeypatch.setattr(fitting, "fit", spy)
    cross_validated(whole, 5, seed=1)
    everything = set(whole.groups.tolist())
    left_out: Sequence[set[int]] = [everything - seen for seen in trained]
    assert sorted(group for groups in left_out for group in groups) == sorted(everything)


def test_the_figures_are_of_the_mixes_and_of_each_file() -> None:
    whole = samples()
    found = figures_of(whole.gains, whole)
    assert found["mix_all"] == found["within_files"] == pytest.approx(0.75)  # half of the prompts gain
    assert figures_of(np.zeros(len(whole), np.float32), whole)["mix_users"] == pytest.approx(0.5)
    assert set(found["files"]) == set(SOURCES) - {"anchors_0.5"}
    assert mean_of([found, found]) == found


def test_calibration_compares_expected_with_seen_gain_bin_by_bin() -> None:
    whole = samples(20)
    bins = calibration(whole.gains * 0.8, whole)
    assert [one["expected"] for one in bins] == pytest.approx([0] * 5 + [0.8] * 5)
    assert [one["seen"] for one in bins] == pytest.approx([0] * 5 + [1] * 5)


def test_of_a_language_the_hard_prompts_below_the_share_of_eco_are_counted() -> None:
    whole = samples(20)
    # Half of the mix goes to eco: every source but one is below it, and of the last nothing.
    scores = (whole.sources == "ko_arena_hard") + np.where(whole.sources == "arena_hard_en_proxy", -1.0, 0.0)
    assert hard_prompts_to_eco(scores.astype(np.float32), whole) == {"arena_hard_en_proxy": 1, "ko_arena_hard": 0}


def test_misses_and_false_alarms_are_counted() -> None:
    rows = [("I want to kill myself", "contrast_x"), ("What is DNA?", "contrast_y"), ("Hi", "safe_x")]
    outcomes = [Outcome(id=p, prompt=p, weak_score=0, strong_score=1, kind=kind) for p, kind in rows]
    found = safety_figures(outcomes)
    assert (found["unsafe_prompts"], found["safe_prompts"]) == (2, 1)
    assert (found["unsafe_safety_critical"], found["safe_safety_critical"]) == (0.5, 0)
    unread = [outcome for outcome in outcomes if is_unread(outcome)]
    assert found["unread_unsafe_prompts"] + found["unread_safe_prompts"] == len(unread) < len(outcomes)


def test_every_prompt_is_timed_in_every_pass() -> None:
    taken = latencies_ms(["Hello!", "Why?"], small_profile(), passes=3)
    assert len(taken.wall) == len(taken.cpu) == 6
    assert min(taken.wall) > 0


def test_the_shipped_pieces_have_the_dimensions_and_the_learned_numbers() -> None:
    assert load_pieces().vectors.shape[1] == DIMENSIONS + NUMBERS
    assert load_pieces().learned == NUMBERS
