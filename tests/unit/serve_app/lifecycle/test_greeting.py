"""What `power-lever serve` tells a person."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from router.observation import Observation, TierState
from serve_app.api.views import tiers_view
from serve_app.lifecycle.greeting import command_here, leaves, may_leave, tier_changes, welcome
from tests.support.app_config import app_config


def view(**tiers: TierState) -> dict[str, Any]:
    return tiers_view(app_config(), Observation(tiers))  # type: ignore[arg-type]


def test_the_first_lines_say_where_the_page_is_how_to_ask_and_how_to_stop() -> None:
    said = welcome("http://localhost:8000", "http://127.0.0.1:8265", ".venv/bin/ray get-auth-token")
    assert said.splitlines()[1:] == [
        "  page   http://localhost:8000/",
        "  ask    curl -N http://localhost:8000/api/inference -H 'content-type: application/json' "
        """-d '{"prompt": "What is the capital of France?"}'""",
        "  Ray    http://127.0.0.1:8265, which asks for a token: .venv/bin/ray get-auth-token",
        "  stop   Ctrl-C drains, a second one stops at once",
    ]


def test_where_a_key_is_needed_the_line_to_ask_sends_the_one_of_the_environment_and_not_as_an_argument() -> None:
    said = welcome("http://localhost:8000", None, None, asks_for_key=True)
    sends = 'echo "authorization: Bearer $POWER_LEVER_KEY" | curl -N http://localhost:8000/api/inference -H @- -H '
    assert sends in said


def test_nothing_is_said_to_leave_where_nothing_does() -> None:
    assert leaves(view()) == []
    assert may_leave(None) == []


def test_no_dashboard_and_no_token_are_not_spoken_of() -> None:
    assert "token" not in welcome("http://localhost:8000", "http://127.0.0.1:8265", None)
    assert "Ray" not in welcome("http://localhost:8000", None, None)


def test_a_command_is_named_as_it_can_be_called_from_here() -> None:
    program = Path("/here/.venv/bin/python")
    assert command_here("ray", program, Path("/here")) == ".venv/bin/ray"
    assert command_here("ray", program, Path("/elsewhere")) == "/here/.venv/bin/ray"


def test_a_tier_is_followed_from_cold_to_warm_and_back() -> None:
    states = [
        TierState(),
        TierState(pending=1, reason="no L4 is free"),
        TierState(starting=1, cold_start_s=42),
        TierState(running=1, active_entry="small-alone"),
        TierState(running=1, engine_waiting=3),
        TierState(),
    ]
    views = [view(eco=state) for state in states]
    said = [tier_changes(before, after) for before, after in pairwise(views)]
    assert [line for lines in said for line in lines] == [
        "eco is to start: no L4 is free",
        "eco loads small, about 42 s",
        "eco is warm: small",
        "eco is cold: it starts when it is asked",
    ]


def test_a_warm_tier_that_loses_or_gains_a_replica_says_how_many_it_has() -> None:
    one, two = TierState(running=1), TierState(running=2, engine_waiting=3)
    less = TierState(running=1, pending=1, reason="no L4 is free")
    states = [one, two, less, less, two]
    said = [tier_changes(view(eco=before), view(eco=after)) for before, after in pairwise(states)]
    assert said == [
        ["eco has 2 of at most 2 replicas"],
        ["eco has 1 of at most 2 replicas: no L4 is free"],
        [],
        ["eco has 2 of at most 2 replicas"],
    ]


def test_an_entry_that_a_tier_left_is_told_once_with_the_reason() -> None:
    left = view(ultra=TierState(starting=1, entry_failures=(("huge-alone", "out of memory"),)))
    name = left["tiers"][3]["chain"][0]["name"]
    left = view(ultra=TierState(starting=1, entry_failures=((name, "out of memory"),)))
    assert tier_changes(None, left)[0] == f"ultra left {name}: out of memory"
    assert tier_changes(left, left) == []


def test_a_tier_that_cannot_start_says_why() -> None:
    assert tier_changes(None, view(ultra=TierState(failed=True, reason="no node has an H100"))) == [
        "ultra cannot start: no node has an H100"
    ]
