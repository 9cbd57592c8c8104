"""docs/metrics.md is the page that the code prints."""

from __future__ import annotations

from pathlib import Path

from cluster.observability.page import metrics_page

PAGE = Path(__file__).parents[4] / "docs" / "metrics.md"


def test_the_page_of_metrics_is_made_of_the_catalogue() -> None:
    assert PAGE.read_text(encoding="utf-8") == metrics_page()
