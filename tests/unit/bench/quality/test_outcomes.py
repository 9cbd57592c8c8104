"""Outcomes are read whole or refused with the line, and told apart by what they repeat."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.quality.outcomes import Outcome, folds, groups, read_outcomes


def outcome(prompt: str, id_: str = "x_1") -> Outcome:
    return Outcome(id_, prompt, weak_score=0.0, strong_score=1.0)


def test_a_file_is_read_with_its_gains(tmp_path: Path) -> None:
    rows = [
        {"id": "MMLUPro_computer science_7", "prompt": "a", "weak_score": 0.25, "strong_score": 1, "output_tokens": 9},
        {"prompt": "b", "weak_score": 1.0, "strong_score": 0.0},
    ]
    file = tmp_path / "outcomes.jsonl"
    file.write_text("\n\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    first, second = read_outcomes(file)
    assert (first.prompt, first.gain, first.benchmark) == ("a", 0.75, "MMLUPro")
    assert (second.id, second.gain) == ("3", -1.0)


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"prompt": "a"}', '{"prompt": "a", "weak_score": "x", "strong_score": 1}']
)
def test_a_line_that_is_no_outcome_is_an_error_with_its_number(tmp_path: Path, line: str) -> None:
    file = tmp_path / "outcomes.jsonl"
    file.write_text('{"prompt": "a", "weak_score": 0, "strong_score": 1}\n' + line, encoding="utf-8")
    with pytest.raises(ValueError, match=r"outcomes\.jsonl:2: not an object"):
        read_outcomes(file)


@pytest.mark.parametrize(
    ("id_", "benchmark"),
    [("AIME_106", "AIME"), ("MMLU_formal_logic_105", "MMLU"), ("WMT19-cs-en_156", "WMT19"), ("alone", "alone")],
)
def test_all_subjects_of_a_benchmark_are_one(id_: str, benchmark: str) -> None:
    assert outcome("a", id_).benchmark == benchmark


def test_a_chain_of_similar_prompts_is_one_group() -> None:
    found = groups(
        [
            outcome("one two three four five six seven eight"),
            outcome("something else altogether"),
            outcome("one two three four five six seven nine"),
            outcome("one two three four five ten seven nine"),
        ]
    )
    assert found[0] == found[2] == found[3]
    assert found[1] != found[0]


def test_two_questions_in_one_template_are_two_groups() -> None:
    template = "Please read the following question.\n\nContext: None\n\nQuestion: {}\n\nProvide the correct answer."
    first, second = groups([outcome(template.format("Who wrote Emma?")), outcome(template.format("Where is Rome?"))])
    assert first != second


@given(st.lists(st.integers(0, 8), min_size=1, max_size=40), st.integers(1, 6), st.randoms(use_true_random=False))
def test_folds_hold_every_index_once_and_split_no_key(keys: list[int], count: int, rng: object) -> None:
    order = list(range(len(keys)))
    rng.shuffle(order)  # type: ignore[attr-defined]
    parts = folds(keys, count, order)
    assert sorted(index for part in parts for index in part) == list(range(len(keys)))
    assert len(parts) == min(count, len(set(keys)))
    homes = [{keys[index] for index in part} for part in parts]
    assert sum(map(len, homes)) == len(set(keys))
