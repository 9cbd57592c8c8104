"""`power-lever tiers`: what each tier is doing, as a table that follows it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from router.words import number
from serve_app.cli.application import read_tiers_view, served_entry, url_option

_EVERY_S: Final = 1.0
_STYLES: Final = {"warm": "green", "busy": "yellow", "failed": "red", "loading": "cyan", "provisioning": "cyan"}
_LEFT: Final = ("tier", "state", "GPU", "model")
_COLUMNS: Final = (*_LEFT, "up/most", "run+wait", "TTFT s", "tokens/s", "drafts")
_KEPT: Final = ("tier", "state", "model")
"""Columns of which no terminal is too narrow; there the last one wraps."""
_NO_LIMIT: Final = 10_000


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
    on_terminal = sys.stdout.isatty()
    console = Console() if on_terminal else Console(width=_NO_LIMIT)
    if as_json:
        click.echo(json.dumps(view, indent=2))
    elif once or not on_terminal:
        console.print(shown(view, console))
    else:
        _watch(url, view, console)


def _watch(url: str, view: Mapping[str, Any], console: Console) -> None:
    try:
        with Live(shown(view, console), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(_EVERY_S)
                live.update(shown(read_tiers_view(url), console), refresh=True)
    except KeyboardInterrupt:
        return  # that is how one ends it


def shown(view: Mapping[str, Any], console: Console) -> Group:
    """Return a table with a row for each tier, and below it why a tier is not fully up and which entries it left.

    Where the console is too narrow for all columns, the last ones that may be missed are left out.
    """
    table = _table(view, _COLUMNS)
    columns = list(_COLUMNS)
    unlimited = console.options.update(max_width=_NO_LIMIT)
    for spare in reversed([name for name in _COLUMNS if name not in _KEPT]):
        if console.measure(table, options=unlimited).maximum <= console.width:
            break
        columns.remove(spare)
        table = _table(view, columns)
    notes = [Text(f"{tier['name']}: {line}", style="dim") for tier in view["tiers"] for line in notes_of(tier)]
    return Group(table, *notes)


def _table(view: Mapping[str, Any], columns: Sequence[str]) -> Table:
    title = f"profile {view['profile']}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1))
    for name in columns:
        justify: Literal["left", "right"] = "left" if name in _LEFT else "right"
        table.add_column(name, justify=justify, no_wrap=name != "model", overflow="fold")
    for tier in view["tiers"]:
        cells = dict(zip(_COLUMNS, _row(tier), strict=True))
        table.add_row(*(cells[name] for name in columns))
    return table


def _row(tier: Mapping[str, Any]) -> list[str | Text]:
    replicas, requests, recent = tier["replicas"], tier["requests"], tier["recent"]
    state = tier["state"]
    words = f"{state}, {number(tier['cold_start_s'])} s" if state in ("loading", "provisioning") else state
    acceptance = recent["acceptance_rate"]
    return [
        tier["name"],
        Text(words, style=_STYLES.get(state, "dim")),
        tier["gpu"] if tier["gpus"] in (0, 1) else f"{tier['gpus']:g} x {tier['gpu']}",
        served_entry(tier)["target"],
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


def _mean(recent: Mapping[str, float] | None, factor: float = 1.0) -> str:
    return "-" if recent is None else number(recent["mean"] * factor)
