"""README.md's table of settings is the one that the code prints."""

from __future__ import annotations

from pathlib import Path

from serve_app.settings_doc import settings_table

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_readme_holds_the_table_that_python_m_serve_app_settings_prints() -> None:
    assert settings_table() in README.read_text(encoding="utf-8")
