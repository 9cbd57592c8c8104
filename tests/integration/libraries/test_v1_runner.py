"""vLLM's V1 model runner, as the drafts in both ways need it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest


def test_an_unsupported_model_runner_is_refused_by_name(vllm_installed: None) -> None:
    from serve_app.engine.vllm.composite_drafts import compose_drafts

    with pytest.raises(RuntimeError, match=r"V1 model runner .* got SimpleNamespace with NoneType"):
        compose_drafts(SimpleNamespace(drafter=None))
