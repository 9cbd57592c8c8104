"""The scheduler adapter starts on the vLLM that it knows, and nowhere else."""

from __future__ import annotations

import pytest

from serve_app.engine.known_vllm import NEEDED, UnknownVllmError, check_interface

WHOLE = type("Scheduler", (), {name: lambda self: None for name in NEEDED})


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1", "0.32.0+cpu"])
def test_a_known_version_with_all_methods_is_taken(version: str) -> None:
    check_interface(version, WHOLE)


@pytest.mark.parametrize("version", ["0.26.0", "0.33.0", "0.320.0", "1.0.0", ""])
def test_another_version_is_refused_and_both_are_named(version: str) -> None:
    with pytest.raises(UnknownVllmError) as error:
        check_interface(version, WHOLE)
    assert str(error.value) == f"per-request speculation is written for vLLM 0.32.x, this is {version}"


def test_missing_methods_are_named_also_on_a_known_version() -> None:
    partly = type("Scheduler", (), {name: lambda self: None for name in NEEDED if not name.startswith("_")})
    with pytest.raises(UnknownVllmError, match=r"its scheduler lacks _update_after_schedule, _free_request$"):
        check_interface("0.32.0", partly)
