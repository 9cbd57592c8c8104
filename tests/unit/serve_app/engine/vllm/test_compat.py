"""The scheduler starts on the vLLM that it is written for, and on no other."""

from __future__ import annotations

from importlib import metadata

import pytest

from serve_app.engine.vllm.compat import check_version, installed_version


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
