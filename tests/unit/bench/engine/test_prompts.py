"""Prompts of the benchmarks: what is read, what is made, what is refused."""

import json
from pathlib import Path

import pytest

from bench.engine.prompts import PromptError, copying_prompts, cycled, read_families


def _write(path: Path, *rows: object) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_first_turns_are_grouped_by_family_and_spec_bench_families_by_ours(tmp_path: Path) -> None:
    _write(tmp_path / "a.jsonl", {"id": 1, "family": "summarization", "turns": ["short, please", "shorter"]})
    _write(
        tmp_path / "b.jsonl",
        {"id": 2, "family": "roleplay", "turns": ["you are a pirate"]},
        {"id": 3, "family": "writing", "turns": ["a poem"]},
        {"id": 4, "family": "haiku", "turns": ["frogs"]},
    )
    assert read_families(tmp_path) == {
        "summarisation": ["short, please"],
        "chat": ["you are a pirate", "a poem"],
        "haiku": ["frogs"],
    }


def test_files_of_another_kind_are_skipped(tmp_path: Path) -> None:
    _write(tmp_path / "outcomes.jsonl", {"prompt": "hello", "weak_score": 1})
    _write(tmp_path / "prompts.jsonl", {"family": "math", "turns": ["1 + 1"]})
    assert read_families(tmp_path) == {"math": ["1 + 1"]}


def test_a_bad_line_is_named_with_its_file(tmp_path: Path) -> None:
    _write(tmp_path / "prompts.jsonl", {"family": "math", "turns": ["1 + 1"]}, {"family": "math", "turns": []})
    with pytest.raises(PromptError, match=r"prompts\.jsonl:2: must have `family` and `turns`"):
        read_families(tmp_path)


def test_a_line_that_is_not_json_is_named_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text("hello\n", encoding="utf-8")
    with pytest.raises(PromptError, match=r"prompts\.jsonl:1: not JSON"):
        read_families(tmp_path)


def test_a_folder_without_prompts_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=r"no \*\.jsonl file"):
        read_families(tmp_path)


def test_copying_prompts_hold_a_json_document_each_and_are_the_same_in_every_run() -> None:
    prompts = copying_prompts(32)
    documents = [json.loads(prompt.split("\n", 1)[1]) for prompt in prompts]
    assert all(len(document["items"]) == 4 for document in documents)
    assert len(set(prompts)) == 32
    assert copying_prompts(2) == prompts[:2]


def test_prompts_begin_again_when_there_are_too_few() -> None:
    assert cycled(["a", "b", "c"], 2, 5) == ["c", "a", "b", "c", "a"]
