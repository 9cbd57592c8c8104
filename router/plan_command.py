"""What the router would decide for a prompt, and what each tier would take. Nothing is generated.

power-lever plan "Prove that 2 is prime."                     on the profile for GPUs, with no tier running
power-lever plan --url http://localhost:8000 < prompt.txt     with the tiers of a running application
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, get_args

import httpx2
from pydantic import ValidationError

from router.agent.application_state import ApplicationStateError, read_tiers
from router.agent.sources import profile_context
from router.agent.tools import ToolContext
from router.decision import Decision, Expected, TierVerdict
from router.errors import ConfigError
from router.needs import NoTierError
from router.plan import Plan, plan
from router.request import Goal, InferenceRequest
from router.words import number

_READ_WITHIN_S: Final = 10.0
_DEFAULT_PROFILE: Final = Path(__file__).parents[1] / "cluster" / "profiles" / "gpu.yaml"
_COLUMNS: Final = ("", "tier", "TTFT s", "total s", "USD", "Wh", "CO2 g", "good for", "why not")


def main(arguments: Sequence[str]) -> int:
    """Run `power-lever plan`; return the exit code.

    Raises:
        ConfigError: the profile is wrong, the application does not answer, or no tier can serve the prompt.
    """
    parser = argparse.ArgumentParser(
        prog="power-lever plan", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prompt", nargs="?", help="the prompt; without one it is read from stdin")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--url", help="a running application")
    source.add_argument("--profile", type=Path, metavar="FILE", default=_DEFAULT_PROFILE, help="a profile's YAML")
    parser.add_argument("--goal", choices=get_args(Goal), help="what matters most")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="most completion tokens")
    parser.add_argument("--json", action="store_true", help="print the decision record as JSON")
    given = parser.parse_args(arguments)
    prompt = sys.stdin.read() if given.prompt is None else given.prompt
    context = profile_context(given.profile) if given.url is None else _application(given.url.rstrip("/"))
    try:
        request = InferenceRequest(prompt=prompt, goal=given.goal, max_tokens=given.max_tokens)
        made = plan(request, context.observation, context.profile)
    except ValidationError as error:
        raise ConfigError.of(error, InferenceRequest, "plan") from error
    except NoTierError as error:
        raise ConfigError(error.message) from error
    print(json.dumps(made.decision, indent=2) if given.json else shown(made))
    return 0


def _application(url: str) -> ToolContext:
    try:
        response = httpx2.get(f"{url}/api/tiers", timeout=_READ_WITHIN_S)
        response.raise_for_status()
        return read_tiers(response.json())
    except (httpx2.HTTPError, httpx2.InvalidURL, ApplicationStateError, json.JSONDecodeError) as error:
        raise ConfigError(f"{url}/api/tiers cannot be read: {error}") from error


def shown(made: Plan) -> str:
    """Return a decision for people: why, and a row for each tier."""
    decision = Decision.model_validate(made.decision)
    rows = [_COLUMNS, *(_row(verdict) for verdict in decision.tiers)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join((made.explain(), f"{_prompt_words(decision)}", "", *lines))


def _prompt_words(decision: Decision) -> str:
    return f"The prompt has {decision.prompt_tokens_least} to {decision.prompt_tokens_most} tokens by estimate."


def _row(verdict: TierVerdict) -> tuple[str, ...]:
    return (
        "->" if verdict.taken else "",
        verdict.tier,
        _range(verdict.ttft_ms, 1e-3),
        _range(verdict.total_ms, 1e-3),
        _range(verdict.cost_usd),
        _range(verdict.energy_wh),
        _range(verdict.co2_g),
        verdict.good_for,
        verdict.why_not or "",
    )


def _range(value: Expected, factor: float = 1.0) -> str:
    if value.expected is None or value.low is None or value.high is None:
        return "never"
    expected, low, high = (number(one * factor) for one in (value.expected, value.low, value.high))
    return f"{expected} ({low}-{high})"
