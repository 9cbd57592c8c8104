"""`power-lever plan` prints a decision for a profile or a running application."""

from __future__ import annotations

import io
import json
from functools import partial
from pathlib import Path

import httpx2
import pytest
import yaml

from router.decision import Decision
from router.errors import ConfigError
from router.observation import Observation, TierState
from router.registry import TIER_NAMES
from serve_app.api.views import tiers_view
from serve_app.cli.plan import command
from tests.support.agent_cases import PROMPTS
from tests.support.app_config import app_config
from tests.support.commands import run_command
from tests.unit.router.profiles import profile_data

main = partial(run_command, command)

HARD = PROMPTS["ultra"]


@pytest.fixture
def profile(tmp_path: Path) -> list[str]:
    """The arguments that name the small profile."""
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(profile_data(), sort_keys=False))
    return ["--profile", str(path)]


def test_the_table_has_a_row_for_each_tier_and_marks_the_one_taken(
    profile: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([HARD, *profile]) == 0
    out = capsys.readouterr().out
    assert out.startswith("This looks like a simple question prompt")
    rows = out.splitlines()[-4:]
    assert [row.removeprefix("->").split()[0] for row in rows] == list(TIER_NAMES)
    assert [row.startswith("->") for row in rows] == [False, False, False, True]
    assert "weaker than the ultra tier" in rows[0]


def test_json_is_the_decision_record_of_a_prompt_from_stdin(
    profile: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(HARD))
    assert main(["--json", "--goal", "better", *profile]) == 0
    record = Decision.model_validate(json.loads(capsys.readouterr().out))
    assert (record.tier, record.goal) == ("ultra", "better")


def test_the_shipped_profile_for_gpus_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["Hi"]) == 0
    assert "eco" in capsys.readouterr().out


def test_a_running_application_is_planned_with_as_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    down = Observation({"ultra": TierState(failed=True, reason="no H100"), "performance": TierState(running=1)})
    body = tiers_view(app_config(), down)

    def read(url: str, timeout: float, headers: dict[str, str]) -> httpx2.Response:
        assert (url, headers) == ("http://here/api/tiers", {})
        return httpx2.Response(200, json=body, request=httpx2.Request("GET", url))

    monkeypatch.delenv("POWER_LEVER_KEY", raising=False)
    monkeypatch.setattr(httpx2, "get", read)
    assert main([HARD, "--url", "http://here/", "--json"]) == 0
    record = Decision.model_validate(json.loads(capsys.readouterr().out))
    assert record.tier == "performance"
    assert record.verdict("ultra").why_not == "it cannot start: no H100"
    assert record.verdict("performance").warm


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["Hi", "--max-tokens", "99999"], "which comes nearest"),
        (["Hi", "--max-tokens", "0"], "max_tokens"),
    ],
)
def test_what_no_tier_can_answer_is_an_error(arguments: list[str], problem: str, profile: list[str]) -> None:
    with pytest.raises(ConfigError, match=problem):
        main([*arguments, *profile])


def test_an_application_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        main(["Hi", "--url", "http://127.0.0.1:9"])
