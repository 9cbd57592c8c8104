"""Each chain entry runs on the model runner that does its speculation right."""

from __future__ import annotations

from typing import Any

import pytest

from router.registry import ChainEntry
from serve_app.engine.vllm.runner import RUNNER_VARIABLE, runner_environment, runner_for


def entry(speculation: dict[str, Any] | None, **over: Any) -> ChainEntry:
    data = {"name": "entry", "target": "model", "max_model_len": 4096, "speculation": speculation}
    return ChainEntry.model_validate(data | over)


EAGLE3 = {"method": "eagle3", "draft": "head", "k_max": 4}


@pytest.mark.parametrize("speculation", [None, EAGLE3, {"method": "ngram_gpu", "k_max": 5}])
def test_gpus_run_on_v2_and_cpus_on_v1(speculation: dict[str, Any] | None) -> None:
    assert runner_for(entry(speculation), on_gpu=True) == "v2"
    assert runner_for(entry(speculation), on_gpu=False) == "v1"


def test_suffix_drafts_exist_on_v1_only() -> None:
    assert runner_for(entry({"method": "suffix", "k_max": 5}), on_gpu=True) == "v1"


@pytest.mark.parametrize("on_gpu", [True, False])
@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_an_entry_may_choose(runner: str, on_gpu: bool) -> None:
    assert runner_for(entry(EAGLE3, runner=runner), on_gpu) == runner


def test_the_variable_is_set_for_both_so_that_no_older_value_remains() -> None:
    assert runner_environment("v1") == {RUNNER_VARIABLE: "0"}
    assert runner_environment("v2") == {RUNNER_VARIABLE: "1"}
