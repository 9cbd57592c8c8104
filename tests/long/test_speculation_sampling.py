"""Speculation changes no distribution, with each way of drafting at two temperatures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.engine.engines import EngineProcess
from router.registry import Speculation
from tests.integration.engines.test_sampling import K_MAX, assert_drafts_change_no_distribution, tiny_engine


@pytest.fixture(scope="module", params=["ngram", "draft_model"])
def engine(
    vllm_installed: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineProcess]:
    speculation = Speculation(
        method=request.param, draft="draft" if request.param == "draft_model" else None, k_max=K_MAX
    )
    with tiny_engine(speculation, tmp_path_factory.mktemp("tiny")) as engine:
        yield engine


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_drafts_change_no_distribution(engine: EngineProcess, temperature: float) -> None:
    assert_drafts_change_no_distribution(engine, temperature)
