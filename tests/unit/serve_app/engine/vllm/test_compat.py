"""The scheduler starts on the vLLM that it is written for, and an entry only if vLLM runs it as we believe.

`tests/integration/gpu_config` checks vLLM's methods themselves.
"""

from __future__ import annotations

from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest

from router.registry import ChainEntry, Runner
from serve_app.engine.interface import EngineStartError
from serve_app.engine.vllm import compat
from serve_app.engine.vllm.compat import check_interface, check_version, installed_version


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1", "0.32.0+cpu"])
def test_the_version_that_the_scheduler_is_written_for_is_accepted(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["0.26.0", "0.31.1", "0.33.0", "0.320.0", "1.0.0", ""])
def test_another_version_is_refused_and_both_are_named(version: str) -> None:
    with pytest.raises(RuntimeError) as error:
        check_version(version)
    assert str(error.value) == f"per-request speculation is written for vLLM 0.32.x, this is {version}"


def test_a_node_without_vllm_reports_the_version_that_replicas_need(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    assert installed_version().startswith("0.32.")
    monkeypatch.setattr(metadata, "version", version)
    assert installed_version() == "0.32.x"


CONTEXT_PARALLEL = ("decode_context_parallel_size", "prefill_context_parallel_size")


def config(v2: bool = True, max_num_seqs: int = 64, **over: Any) -> Any:
    sizes = ("pipeline_parallel_size", "data_parallel_size", *CONTEXT_PARALLEL)
    parallel = {**dict.fromkeys(sizes, 1), "use_ubatching": False}
    speculative = {"parallel_drafting": False, "enable_adaptive_verification": False}
    return SimpleNamespace(
        use_v2_model_runner=v2,
        scheduler_config=SimpleNamespace(max_num_seqs=max_num_seqs),
        parallel_config=SimpleNamespace(**{key: over.get(key, value) for key, value in parallel.items()}),
        speculative_config=SimpleNamespace(**{key: over.get(key, value) for key, value in speculative.items()}),
    )


def entry(method: str | None = "eagle3") -> ChainEntry:
    draft = {"draft": "head"} if method in ("eagle3", "draft_model") else {}
    speculation = None if method is None else {"method": method, "k_max": 4, **draft}
    return ChainEntry.model_validate({"name": "e", "target": "m", "max_model_len": 4096, "speculation": speculation})


@pytest.fixture
def _no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take vLLM's methods as they should be: they are looked at where vLLM can be imported."""
    for name in ("SCHEDULER_INTERFACE", "GPU_V2_INTERFACE", "V2_INTERFACE"):
        monkeypatch.setattr(compat, name, {})


def refused(config: Any, entry: ChainEntry, runner: Runner = "v2") -> str:
    with pytest.raises(EngineStartError) as error:
        check_interface(config, entry, runner, on_gpu=True)
    return str(error.value)


@pytest.mark.usefixtures("_no_vllm")
@pytest.mark.parametrize(
    ("over", "problem"),
    [
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size is 2: with per-request speculation on v2 it must be 1"),
        ({"data_parallel_size": 2}, "data_parallel_size is 2"),
        *(({size: 2}, f"{size} is 2: with per-request speculation on v2 it must be 1") for size in CONTEXT_PARALLEL),
        ({"use_ubatching": True}, "enable_dbo is True: with per-request speculation on v2 it must be False"),
        ({"parallel_drafting": True}, "parallel_drafting (a P-EAGLE head) is True"),
        ({"enable_adaptive_verification": True}, "enable_adaptive_verification is True"),
        ({"max_num_seqs": 4}, "max_num_seqs is 4: it must be more than speculation.k_max (4)"),
        ({"v2": False}, "vLLM runs this entry on its model runner v1, not on v2"),
    ],
)
def test_what_would_be_silently_wrong_is_refused_by_name(over: dict[str, Any], problem: str) -> None:
    check_interface(config(), entry(), "v2", on_gpu=True)
    assert refused(config(**over), entry()).startswith(problem)


@pytest.mark.usefixtures("_no_vllm")
@pytest.mark.parametrize(("runner", "method"), [("v2", "suffix"), ("v2", "ngram"), ("v1", "ngram_gpu")])
def test_a_method_that_a_runner_does_wrong_is_refused(runner: Runner, method: str) -> None:
    problem = refused(config(v2=runner == "v2"), entry(method), runner)
    assert problem.startswith(f"speculation.method '{method}' does not work with vLLM's model runner {runner}")


def test_without_speculation_nothing_of_ours_can_be_wrong() -> None:
    check_interface(config(pipeline_parallel_size=2, max_num_seqs=1), entry(None), "v2", on_gpu=True)


def test_a_method_with_other_parameters_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "SCHEDULER_INTERFACE", {"fractions:Fraction.limit_denominator": ("most",)})
    assert "fractions:Fraction.limit_denominator takes ('max_denominator',)" in refused(config(), entry())
    monkeypatch.setattr(compat, "SCHEDULER_INTERFACE", {"fractions:Fraction.gone": ()})
    assert "fractions:Fraction.gone takes None" in refused(config(), entry())
