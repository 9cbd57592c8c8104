"""vLLM's V2 model runner in Triton's interpreter: every way to draft, both ways to schedule, against V1, and samples.

The short version is `tests/integration/v2`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.v2.checks import asks, check_answers, check_records
from tests.integration.v2.test_rejection_sampler import ALPHA, check_distribution
from tests.support.two_sample import detectable_effect
from tests.support.v2_on_cpu.engine import Batch, EngineSpec, Host, v2_host
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


@pytest.mark.parametrize(("drafts", "temperature"), [([4, 0], 1.0), ([3, 2], 0.7), ([2, 4], 1.5)], ids=str)
def test_the_rejection_sampler_keeps_the_targets_distribution(
    host: Host, drafts: list[int], temperature: float
) -> None:
    assert detectable_effect(REQUESTS, 5, ALPHA, 0.9) < 0.11
    check_distribution(host, drafts, REQUESTS, temperature)
