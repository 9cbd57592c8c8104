"""`power-lever tiers`: what each tier is doing, as a table that follows it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from router.words import number
from serve_app.cli.application import read_tiers_view, url_option

_EVERY_S: Final = 1.0
_STYLES: Final = {"warm": "green", "busy": "yellow", "failed": "red", "loading": "cyan", "provisioning": "cyan"}
_LEFT: Final = ("tier", "state", "GPU", "model")
_COLUMNS: Final = (*_LEFT, "up/most", "run+wait", "TTFT s", "tokens/s", "drafts")


@click.command()
@click.option("--once", is_flag=True, help="print the table once, as without a terminal")
@click.option("--json", "as_json", is_flag=True, help="print the answer of /api/tiers once")
@url_option
def command(url: str, once: bool, as_json: bool) -> None:
    """Watch the tiers of a running application, until Ctrl-C.

    \f
    Raises:
        ConfigError: it does not answer.
    """
    view = read_tiers_view(url)
    console = Console(soft_wrap=not sys.stdout.isatty())
    if as_json:
        click.echo(json.dumps(view, indent=2))
    elif once or not console.is_terminal:
        console.print(shown(view))
    else:
        _watch(url, view, console)


def _watch(url: str, view: Mapping[str, Any], console: Console) -> None:
    try:
        with Live(shown(view), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(_EVERY_S)
                live.update(shown(read_tiers_view(url)), refresh=True)
    except KeyboardInterrupt:
        return  # that is how one ends it


def shown(view: Mapping[str, Any]) -> Group:
    """Return a table with a row for each tier, and below it why a tier is not fully up and which entries it left."""
    table = Table(title=f"profile {view['profile']}", title_justify="left", box=None, pad_edge=False, padding=(0, 1))
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name in _LEFT else "right", no_wrap=True, overflow="fold")
    for tier in view["tiers"]:
        table.add_row(*_row(tier))
    notes = [Text(f"{tier['name']}: {line}", style="dim") for tier in view["tiers"] for line in notes_of(tier)]
    return Group(table, *notes)


def _row(tier: Mapping[str, Any]) -> list[str | Text]:
    replicas, requests, recent = tier["replicas"], tier["requests"], tier["recent"]
    state = tier["state"]
    words = f"{state}, {number(tier['cold_start_s'])} s" if state in ("loading", "provisioning") else state
    acceptance = recent["acceptance_rate"]
    return [
        tier["name"],
        Text(words, style=_STYLES.get(state, "dim")),
        tier["gpu"] if tier["gpus"] in (0, 1) else f"{tier['gpus']:g} x {tier['gpu']}",
        _entry(tier)["target"],
        f"{replicas['running']}/{replicas['max']}",
        f"{requests['running']}+{requests['waiting']}",
        _mean(recent["ttft_ms"], 1e-3),
        _mean(recent["tokens_per_sec"]),
        "-" if acceptance is None else f"{acceptance:.0%}",
    ]


def notes_of(tier: Mapping[str, Any]) -> list[str]:
    """Return why a tier is not fully up, and why it left entries."""
    left = [f"left {entry['name']}: {entry['failure']}" for entry in tier["chain"] if entry["failure"]]
    return left if tier["reason"] is None else [tier["reason"], *left]


def _entry(tier: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the chain entry that the tier serves, or would try first."""
    chain: list[Mapping[str, Any]] = tier["chain"]
    return next((entry for entry in chain if entry["name"] == tier["active_entry"]), chain[0])


def _mean(recent: Mapping[str, float] | None, factor: float = 1.0) -> str:
    return "-" if recent is None else number(recent["mean"] * factor)
