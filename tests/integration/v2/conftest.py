"""vLLM's V2 model runner by Triton's interpreter (`tests/support/v2_on_cpu`), engines one after another in one process.

Each test file has an engine. Most of the time goes into starting it, so the tests of a file share its answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.v2_on_cpu.engine import Host, v2_host
from tests.support.v2_on_cpu.weights import write_models


@pytest.fixture(scope="session")
def tiny_models(vllm_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with `target`, `draft` and `eagle3`."""
    folder = tmp_path_factory.mktemp("tiny")
    write_models(folder)
    return folder


@pytest.fixture(scope="session")
def host(vllm_installed: None) -> Iterator[Host]:
    with v2_host() as running:
        yield running
