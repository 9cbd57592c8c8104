"""What the tests of the routes share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def slow_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ping only every 2 s, as often as a `status`, so that tests can count them."""
    for module in ("inference", "v1.exchange"):
        monkeypatch.setattr(f"serve_app.api.{module}.PING_EVERY_S", 2.0)


@pytest.fixture(autouse=True)
def _logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of Ray, Serve's folder of logs would be the working folder."""
    monkeypatch.setattr("serve_app.api.ingress.get_serve_logs_dir", lambda: str(tmp_path))
