"""What the router would decide for a prompt, and what each tier would take. Nothing is generated.

\b
power-lever plan "Prove that 2 is prime."                     on the profile for GPUs, with no tier running
power-lever plan --url http://localhost:8000 < prompt.txt     with the tiers of a running application
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import click
from pydantic import ValidationError

from router.agent.application_state import ApplicationStateError, read_tiers
from router.agent.sources import profile_context
from router.agent.tools import ToolContext
from router.decision import Decision, Expected, TierVerdict
from router.errors import ConfigError
from router.needs import NoTierError
from router.plan import Plan, plan
from router.request import InferenceRequest
from router.words import number
from serve_app.cli.application import ApplicationUrl, read_tiers_view
from serve_app.cli.request_options import request_body, request_options

_DEFAULT_PROFILE: Final = Path(__file__).parents[2] / "cluster" / "profiles" / "gpu.yaml"
_COLUMNS: Final = ("", "tier", "TTFT s", "total s", "USD", "Wh", "CO2 g", "good for", "why not")


@click.command(help=__doc__)
@request_options
@click.option("--url", type=ApplicationUrl(), help="a running application, with its tiers as they are now")
@click.option("--profile", type=click.Path(path_type=Path), metavar="FILE", help="a profile's YAML, nothing running")
@click.option("--json", "as_json", is_flag=True, help="print the decision record as JSON")
def command(url: str | None, profile: Path | None, as_json: bool, **given: Any) -> None:
    """Run the command.

    Raises:
        ConfigError: the profile is wrong, the application does not answer, or no tier can serve the prompt.
    """
    if url is not None and profile is not None:
        raise click.UsageError("name one source: --url or --profile")
    body = request_body(**given)
    context = profile_context(profile or _DEFAULT_PROFILE) if url is None else _application(url)
    try:
        request = InferenceRequest.model_validate(body)
        made = plan(request, context.observation, context.profile)
    except ValidationError as error:
        raise ConfigError.of(error, InferenceRequest, "plan") from error
    except NoTierError as error:
        raise ConfigError(error.message) from error
    click.echo(json.dumps(made.decision, indent=2) if as_json else shown(made))


def _application(url: str) -> ToolContext:
    try:
        return read_tiers(read_tiers_view(url))
    except ApplicationStateError as error:
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
