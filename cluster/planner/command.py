"""`power-lever profile`: write a profile for the GPUs that are there."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from cluster.planner.plan import plan
from cluster.planner.render import render
from cluster.planner.supply import FORM, Cards, parse
from router.errors import ConfigError


@click.command()
@click.option("--gpus", metavar="TYPE:COUNT", help=f"{FORM}; default: what the running Ray cluster has")
@click.option("--output", metavar="FILE", type=click.Path(path_type=Path), help="write there instead of to stdout")
@click.option("--force", is_flag=True, help="replace the FILE of --output if it exists")
def command(gpus: str | None, output: Path | None, force: bool) -> None:
    """Write a profile (YAML): four tiers that fit your GPUs, and why."""
    if output is not None and output.is_file() and not force:
        raise ConfigError(f"--output: {output} exists: --force replaces it")
    text = render(plan(parse(gpus) if gpus is not None else _of_the_cluster()))
    if output is None:
        sys.stdout.write(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--output: {output}: cannot be written: {error.strerror}") from error


def _of_the_cluster() -> tuple[Cards, ...]:
    """Return the cards of the running cluster, and those that its autoscaler can add.

    Raises:
        ConfigError: no cluster runs here, or it has no GPU that the catalogue knows.
    """
    from cluster.profiles.auto import count_gpus_of_running_cluster  # imports Ray

    try:
        found = count_gpus_of_running_cluster()
    except ConnectionError as error:
        raise ConfigError(f"no Ray cluster here ({_first_line(error)}): name your GPUs, as in --gpus L4:1") from error
    if not found.cards:
        has = f", but {', '.join(found.unknown)}" if found.unknown else ""
        raise ConfigError(
            f"the running cluster has no GPU of a type that is known here{has}: name your GPUs, as in --gpus L4:1; "
            "docs/operations.md says how to plan for another card"
        )
    if found.unknown:
        sys.stderr.write(f"left out, as the catalogue lacks them: {', '.join(found.unknown)}\n")
    return found.cards


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
