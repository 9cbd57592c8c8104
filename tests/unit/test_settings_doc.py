"""docs/settings.md is the page that the code prints."""

from __future__ import annotations

from pathlib import Path

from serve_app.settings_doc import settings_page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"


def test_the_settings_page_is_what_power_lever_settings_prints() -> None:
    assert PAGE.read_text(encoding="utf-8") == settings_page()
