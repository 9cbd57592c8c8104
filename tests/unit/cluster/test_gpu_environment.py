"""A GPU replica keeps what it compiles on the shared volume, if it may write there."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.gpu_environment import drop_unwritable_caches, gpu_environment


def test_caches_are_made_on_the_first_start_and_kept_for_the_next(tmp_path: Path) -> None:
    environ = gpu_environment(tmp_path)
    assert drop_unwritable_caches(environ) == []
    assert environ == gpu_environment(tmp_path)
    assert Path(environ["TRITON_CACHE_DIR"]).is_dir()


def test_what_cannot_be_written_is_left_to_vllms_default_and_named(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.write_text("a file where the folder should be: no process can write below it", encoding="utf-8")
    environ = gpu_environment(models)
    assert drop_unwritable_caches(environ) == [f"{models}/vllm-caches", f"{models}/vllm-caches/triton"]
    assert not environ.keys() & {"VLLM_CACHE_ROOT", "TRITON_CACHE_DIR"}
    assert environ["VLLM_USE_FLASHINFER_SAMPLER"] == "0"


@pytest.mark.parametrize("environ", [{}, {"HOME": "/root"}])
def test_a_cpu_engine_has_no_such_caches(environ: dict[str, str]) -> None:
    assert drop_unwritable_caches(dict(environ)) == []
