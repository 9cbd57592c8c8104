"""`power-lever tiers` shows the tiers of a running application."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from router.observation import Observation, TierState
from serve_app.__main__ import main
from serve_app.api.views import tiers_view
from tests.support.app_config import app_config
from tests.support.served import served

STATES = {
    "eco": TierState(running=1, engine_running=3, engine_waiting=2, queue_wait_ms=1500, active_entry="small-alone"),
    "performance": TierState(starting=1, cold_start_s=42, entry_failures=(("large-eagle", "out of memory"),)),
    "ultra": TierState(failed=True, reason="no node has an H100"),
}


def application(body: Any) -> Starlette:
    async def tiers(_: Request) -> JSONResponse:
        return JSONResponse(body)

    return Starlette(routes=[Route("/api/tiers", tiers)])


def test_each_tier_is_a_row_and_what_is_wrong_stands_below(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    with served(application(tiers_view(app_config(), Observation(STATES)))) as url:  # type: ignore[arg-type]
        assert main(["tiers", "--url", url]) == 0
    title, head, *rows = capsys.readouterr().out.splitlines()
    assert title.strip() == "profile small"
    columns = "tier state GPU model up/most run+wait TTFT s tokens/s drafts"
    assert " ".join(head.split()) == columns
    assert " ".join(rows[0].split()) == "eco busy L4 small 1/2 3+2 - - -"
    assert rows[1].split()[:2] == ["balanced", "cold"]
    assert rows[2].split()[:4] == ["performance", "loading,", "42", "s"]
    assert rows[3].split()[:2] == ["ultra", "failed"]
    assert [row.strip() for row in rows[4:]] == [
        "performance: left large-eagle: out of memory",
        "ultra: no node has an H100",
    ]


def test_json_is_the_answer_itself(capsys: pytest.CaptureFixture[str]) -> None:
    view = tiers_view(app_config(), Observation())
    with served(application(view)) as url:
        assert main(["tiers", "--json", "--url", f"{url}/"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(view))


def test_the_url_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POWER_LEVER_URL", "http://127.0.0.1:9")
    assert main(["tiers"]) == 1
    assert capsys.readouterr().err.startswith("error: http://127.0.0.1:9/api/tiers cannot be read: ")


@pytest.mark.parametrize("body", [{"hello": 1}, [], {"tiers": 7}])
def test_another_application_is_an_error(body: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with served(application(body)) as url:
        assert main(["tiers", "--url", url]) == 1
    assert "is not that of Power Lever" in capsys.readouterr().err
