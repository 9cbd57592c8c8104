"""What tests of several folders need: real models, where vLLM is installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from cluster.weights import missing_reason, models_dir
from cluster.weights.folder import model_path
from tests.support.e2e_app import EARLY_EXIT, MODEL


@pytest.fixture(scope="session")
def vllm_installed() -> None:
    """Skip where there is no vLLM."""
    if find_spec("vllm") is None:  # not imported here: that takes ten seconds
        pytest.skip("needs vLLM: pip install --no-deps -r requirements/cpu.txt")


@pytest.fixture(scope="session")
def bundled_model(vllm_installed: None) -> Path:
    """The bundled model's folder."""
    return _folder_of(MODEL)


@pytest.fixture(scope="session")
def early_exit_model(vllm_installed: None) -> Path:
    """The folder of its early-exit draft."""
    return _folder_of(EARLY_EXIT)


def _folder_of(model: str) -> Path:
    if reason := missing_reason(models_dir({}), model):
        pytest.skip(reason)
    return model_path(models_dir({}), model)
