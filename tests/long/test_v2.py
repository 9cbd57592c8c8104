"""vLLM's V2 model runner in Triton's interpreter: every way to draft, both ways to schedule, against V1, and samples.

The short version is `tests/integration/v2`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.v2.checks import PROMPTS, asks, check_answers, check_drafts, check_records, ids
from tests.integration.v2.test_draft_model import check_drafts_once_caught_up
from tests.integration.v2.test_rejection_sampler import ALPHA, check_distribution
from tests.support.two_sample import detectable_effect
from tests.support.v2_on_cpu.engine import Ask, Batch, EngineSpec, Host, v2_host
from tests.support.v2_on_cpu.weights import write_models

WAYS: Final[dict[str, dict[str, Any]]] = {
    "ngram": {"method": "ngram"},
    "ngram_gpu": {"method": "ngram_gpu"},
    "draft_model": {"method": "draft_model", "draft": "draft"},
    "target as its own draft": {"method": "draft_model", "draft": "target"},
    "draft model and lookup": {"method": "draft_model", "draft": "draft", "composite": True},
    "eagle3": {"method": "eagle3", "draft": "eagle3"},
    "eagle3 and lookup": {"method": "eagle3", "draft": "eagle3", "composite": True},
}
SCHEDULING: Final = {False: (False, True), True: (False,)}
"""Synchronous and asynchronous; by whether the lookup is on the CPU, with which vLLM refuses the latter."""
KS: Final[tuple[tuple[int | str, ...], ...]] = ((0, 0, 0, 0), (1, 1, 1, 1), (3, 3, 3, 3), (0, 2, 3, "auto"))
TOKENS: Final = 24
REQUESTS: Final = 1500


@pytest.fixture(scope="module")
def models(vllm_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_models(folder)
    return folder


@pytest.fixture(scope="module")
def v1_answers(models: Path) -> list[list[int]]:
    """Of vLLM's V1 runner without speculation."""
    with v2_host(v2=False) as host, host.engine(EngineSpec(models)) as engine:
        return [reply.token_ids for reply in engine.run(asks(0, 0, 0, 0, max_tokens=TOKENS)).replies]


@pytest.fixture(scope="module")
def host(v1_answers: list[list[int]]) -> Iterator[Host]:
    with v2_host() as running:
        yield running


@pytest.mark.parametrize(("way", "asynchronous"), [(way, flag) for way in WAYS for flag in SCHEDULING[way == "ngram"]])
def test_answers_equal_v1_without_speculation(
    host: Host, models: Path, v1_answers: list[list[int]], way: str, asynchronous: bool
) -> None:
    with host.engine(EngineSpec(models, asynchronous=asynchronous, **WAYS[way])) as engine:
        assert engine.info["asynchronous"] == asynchronous
        for ks in KS:
            requests = asks(*ks, max_tokens=TOKENS)
            batch: Batch = engine.run(requests)
            assert [reply.token_ids for reply in batch.replies] == v1_answers, ks
            check_answers(requests, batch)
            check_records(batch)


@pytest.fixture
def windows(models: Path, tmp_path: Path) -> Path:
    """The same models, but the target's first layer has a window, longer than any text. vLLM then has four groups of
    the KV cache, and the draft's two layers are in the last two."""
    (tmp_path / "target").mkdir()
    for file in (models / "target").iterdir():
        (tmp_path / "target" / file.name).symlink_to(file)
    config = json.loads((models / "target/config.json").read_text(encoding="utf-8"))
    config |= {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 256}
    (tmp_path / "target/config.json").unlink()
    (tmp_path / "target/config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "draft").symlink_to(models / "draft")
    return tmp_path


def test_beside_a_target_with_sliding_windows_every_draft_is_what_the_draft_model_says(
    host: Host, windows: Path
) -> None:
    spec = EngineSpec(windows, "draft_model", "draft", asynchronous=True, kv_blocks=160)
    with host.engine(spec) as engine:
        depths = ((3, 1, 0, 0, 0, 0, 2, 3), (2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 3))
        rests = [Ask(prompt, depths=each, max_tokens=24) for prompt, each in zip(PROMPTS[1:], depths, strict=False)]
        batch = engine.run(rests)
        check_answers(rests, batch)
        check_records(batch)
        assert sum(check_drafts(rests, batch)) > 15

        first = Ask("Hello there, how are", depths=(0,), max_tokens=24)
        [reply] = engine.run([first]).replies
        following = [Ask(first.prompt + reply.text, depths=(3,), max_tokens=20)]
        batch = engine.run(following)
        assert batch.steps[0].scheduled[0] < len(ids(following[0].prompt))  # the others were in the cache
        check_answers(following, batch)
        assert check_drafts_once_caught_up(following, batch) > 6


@pytest.mark.parametrize(("drafts", "temperature"), [([4, 0], 1.0), ([3, 2], 0.7), ([2, 4], 1.5)], ids=str)
def test_the_rejection_sampler_keeps_the_targets_distribution(
    host: Host, drafts: list[int], temperature: float
) -> None:
    assert detectable_effect(REQUESTS, 5, ALPHA, 0.9) < 0.11
    check_distribution(host, drafts, REQUESTS, temperature)
