"""What an engine replica says when it cannot even try to start an engine."""

from __future__ import annotations

import sys
from unittest.mock import Mock

import pytest

from router.registry import ChainEntry
from serve_app.engine.deployment import EngineDeployment
from serve_app.engine.interface import EngineStartError


def test_a_vllm_that_cannot_be_imported_fails_the_entry_and_names_the_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "serve_app.engine.vllm.engine", None)
    with pytest.raises(EngineStartError, match=r"written for vLLM 0\.32\.x: .*vllm\.engine"):
        EngineDeployment._start_vllm(Mock(spec=EngineDeployment), Mock(spec=ChainEntry))
