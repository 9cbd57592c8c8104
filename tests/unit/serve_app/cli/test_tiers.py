"""`power-lever tiers` shows the tiers of a running application."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest
from rich.console import Console
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from router.observation import Observation, TierState
from serve_app.__main__ import main
from serve_app.api.views import tiers_view
from serve_app.cli.tiers import shown
from tests.support.app_config import app_config
from tests.support.served import served
from tests.support.terminal import on_a_terminal

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
    monkeypatch.setenv("COLUMNS", "40")  # of the terminal; what goes into a pipe is as wide as it must be
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


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (89, "tier state GPU model up/most run+wait TTFT s tokens/s drafts"),
        (88, "tier state GPU model up/most run+wait TTFT s tokens/s"),
        (62, "tier state GPU model up/most"),
        (36, "tier state model"),
    ],
)
def test_a_narrow_terminal_leaves_columns_out_from_the_right(width: int, columns: str) -> None:
    view = tiers_view(app_config(), Observation(STATES))  # type: ignore[arg-type]
    file = io.StringIO()
    console = Console(width=width, file=file)
    console.print(shown(view, console))
    _, head, eco, *rest = file.getvalue().splitlines()
    assert " ".join(head.split()) == columns
    assert eco.split()[:2] == ["eco", "busy"]
    assert "small" in eco
    assert [row.split()[0] for row in rest[:3]] == ["balanced", "performance", "ultra"]


COLOUR = re.compile(r"\x1b\[(\d+;)*[349][0-7]m")


@pytest.mark.parametrize(("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_no_color_leaves_no_colour(env: dict[str, str], coloured: bool) -> None:
    with served(application(tiers_view(app_config(), Observation(STATES)))) as url:  # type: ignore[arg-type]
        said = on_a_terminal(["tiers", "--once", "--url", url], env | {"COLUMNS": "60"})
    assert bool(COLOUR.search(said)) is coloured
    assert "drafts" not in said


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
