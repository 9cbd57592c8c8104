"""The scheduler adapter starts on the vLLM that it knows, and nowhere else."""

from __future__ import annotations

from importlib import metadata

import pytest

from serve_app.engine.vllm.compat import NEEDED, UnknownVllmError, check_interface, installed_version

WHOLE = type("Scheduler", (), {name: lambda self: None for name in NEEDED})


@pytest.mark.parametrize("version", ["0.26.0", "0.26.0+cpu", "0.32.0", "0.32.1", "0.32.0+cpu"])
def test_a_known_version_with_all_methods_is_taken(version: str) -> None:
    check_interface(version, WHOLE, v2_runner=False)


@pytest.mark.parametrize("version", ["0.25.1", "0.27.0", "0.33.0", "0.260.0", "0.320.0", "1.0.0", ""])
@pytest.mark.parametrize("v2_runner", [False, True])
def test_another_version_is_refused_and_all_are_named(version: str, v2_runner: bool) -> None:
    with pytest.raises(UnknownVllmError) as error:
        check_interface(version, WHOLE, v2_runner)
    assert str(error.value) == f"per-request speculation is written for vLLM 0.26.x and 0.32.x, this is {version}"


def test_the_v2_model_runner_is_taken_where_it_drafts_as_deep_as_told() -> None:
    check_interface("0.32.0", WHOLE, v2_runner=True)


def test_the_v2_model_runner_of_0_26_is_refused_with_what_it_lacks_and_what_to_do() -> None:
    with pytest.raises(UnknownVllmError) as error:
        check_interface("0.26.0", WHOLE, v2_runner=True)
    assert str(error.value) == (
        "per-request speculation is written for vLLM 0.26.x and 0.32.x, this is 0.26.0, which lacks a V2 model runner "
        "that drafts no deeper than the scheduler says (it always drafts num_speculative_tokens); "
        "set VLLM_USE_V2_MODEL_RUNNER=0"
    )


@pytest.mark.parametrize("version", ["0.26.0", "0.32.0"])
def test_missing_methods_are_named_also_on_a_known_version(version: str) -> None:
    partly = type("Scheduler", (), {name: lambda self: None for name in NEEDED if not name.startswith("_")})
    with pytest.raises(UnknownVllmError, match=r"its scheduler lacks _update_after_schedule, _free_request$"):
        check_interface(version, partly, v2_runner=False)


def test_a_node_without_vllm_tells_the_version_that_replicas_need(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    assert installed_version().startswith("0.32.")
    monkeypatch.setattr(metadata, "version", version)
    assert installed_version() == "0.32.x"
