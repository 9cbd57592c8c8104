"""`power-lever usage`: what requests took, summed up from the request logs. No server is needed."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from router.errors import ConfigError
from router.words import number
from serve_app.usage.log_files import LogReader, log_files, this_machines_logs
from serve_app.usage.sums import PROPERTIES, GroupKey, Property, Sums, Usage, Wanted, key_words, summed

_WIDE: Final = 10_000
_COUNTS: Final = ("requests", "errors", "left", "estimated", "prompt_tokens", "completion_tokens")
_AMOUNTS: Final = ("engine_s", "energy_wh", "cost_usd", "agent_usd")
_SHARES: Final = {"ttft_ms_median": 0.5, "ttft_ms_p95": 0.95}
_HEADS: Final = (
    *("requests", "errors", "left", "prompt tok.", "compl. tok.", "engine s", "Wh", "USD", "agent USD"),
    *("TTFT ms", "p95"),
)
_TOTAL: Final = "total"


class Properties(click.ParamType[tuple[Property, ...]]):
    """A list of properties of requests, with commas."""

    name = "PROPERTIES"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Property, ...]:
        """Return the properties; wrong usage where one is none, or is there twice."""
        given = [one.strip() for one in str(value).split(",")]
        known = [one for word in given for one in PROPERTIES if one == word]
        if len(known) != len(given) or len(set(given)) != len(given):
            self.fail(f"got {value!r}, must be one or more, each once, of {', '.join(PROPERTIES)}", param, ctx)
        return tuple(known)


@click.command()
@click.option(
    "--by",
    type=Properties(),
    default="key",
    show_default=True,
    help=f"what to sum by, in this order: {', '.join(PROPERTIES)}, with commas between them",
)
@click.option("--since", type=click.DateTime(("%Y-%m-%d",)), metavar="DATE", help="first day, UTC: 2027-01-31")
@click.option("--until", type=click.DateTime(("%Y-%m-%d",)), metavar="DATE", help="last day, UTC")
@click.option("--key", metavar="NAME|ID", help="only its requests; `-`: those without a key")
@click.option(
    "--logs",
    "places",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="PATH",
    help="a file, or a folder with files below it; again for more. Without it: Ray's logs on this machine",
)
@click.option("--json", "form", flag_value="json", help="print the sums as JSON")
@click.option("--csv", "form", flag_value="csv", help="print them as CSV, without the total")
@click.argument("more", nargs=-1, type=click.Path(path_type=Path), metavar="[PATH]...")
def command(
    by: tuple[Property, ...],
    since: datetime | None,
    until: datetime | None,
    key: str | None,
    places: tuple[Path, ...],
    more: tuple[Path, ...],
    form: str | None,
) -> int:
    """Sum up what requests took, from the request logs: tokens, engine seconds, energy, cost, errors, latency.

    A request counts at the tier that began it, what each tier did for it at that tier. Paths after the first need no
    second --logs.

    \f
    Raises:
        ConfigError: a path cannot be read, or no line is there.
    """
    if more and not places:
        raise click.UsageError(f"got {more[0]}: paths go after --logs")
    if since is not None and until is not None and until < since:
        raise click.UsageError(f"--until {until:%Y-%m-%d} is before --since {since:%Y-%m-%d}")
    wanted = Wanted(since.date() if since else None, until.date() if until else None, key)
    folders = [*places, *more] or this_machines_logs()
    files = log_files(folders)
    if not files:
        raise ConfigError(f"no request log is in {', '.join(map(str, folders)) or 'the logs of Ray on this machine'}")
    reader = LogReader()
    usage = summed((entry for entry in reader.entries(files) if wanted.has(entry)), by)
    for line in _remarks(reader, len(files), usage):
        click.echo(line, err=True)
    if form == "json":
        click.echo(json.dumps(_as_json(usage, wanted), indent=2))
    elif form == "csv":
        click.echo(_as_csv(usage), nl=False)
    elif usage.total.requests:
        (Console() if sys.stdout.isatty() else Console(width=_WIDE)).print(_table(usage))
    return 1 if reader.broken else 0


def _remarks(reader: LogReader, files: int, usage: Usage) -> list[str]:
    """Return what a reader of the sums must know."""
    lines = [f"error: {broken}" for broken in reader.broken]
    if reader.skipped:
        lines.append(f"skipped {reader.skipped} lines that are none of a request log")
    if reader.repeated:
        lines.append(f"{reader.repeated} lines were there twice, and count once")
    if not usage.total.requests:
        lines.append(f"no request matches, in {files} files")
    if usage.total.estimated:
        lines.append(
            f"of {usage.total.estimated} requests (the client left, they failed, or a replica was lost) what an engine "
            "did since its last token is estimated"
        )
    return lines


def _figures(sums: Sums) -> dict[str, Any]:
    figures = {name: getattr(sums, name) for name in (*_COUNTS, *_AMOUNTS)}
    return figures | {name: sums.ttft_ms(share) for name, share in _SHARES.items()}


def _properties(usage: Usage, key: GroupKey) -> dict[str, str]:
    """Return the values of a group's properties, with a key's name beside its id."""
    values: dict[str, str] = {}
    for one, value in zip(usage.by, key, strict=True):
        values[one] = value
        if one == "key":
            values["key_name"] = usage.names.get(value, value)
    return values


def _as_json(usage: Usage, wanted: Wanted) -> Mapping[str, Any]:
    return {
        "by": usage.by,
        "since": wanted.since.isoformat() if wanted.since else None,
        "until": wanted.until.isoformat() if wanted.until else None,
        "groups": [_properties(usage, key) | _figures(sums) for key, sums in usage.groups.items()],
        "total": _figures(usage.total),
    }


def _as_csv(usage: Usage) -> str:
    names = [name for one in usage.by for name in ((one, "key_name") if one == "key" else (one,))]
    text = io.StringIO()
    writer = csv.DictWriter(text, (*names, *_COUNTS, *_AMOUNTS, *_SHARES), lineterminator="\n")
    writer.writeheader()
    for key, sums in usage.groups.items():
        writer.writerow(_properties(usage, key) | _figures(sums))
    return text.getvalue()


def _table(usage: Usage) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for one in usage.by:
        table.add_column(one, no_wrap=True)
    for head in _HEADS:
        table.add_column(head, justify="right", no_wrap=True)
    for key, sums in usage.groups.items():
        words = [
            key_words(value, usage.names) if one == "key" else value for one, value in zip(usage.by, key, strict=True)
        ]
        table.add_row(*map(Text, words), *_cells(sums))
    if len(usage.groups) > 1:
        table.add_row(_TOTAL, *[""] * (len(usage.by) - 1), *_cells(usage.total))
    return table


def _cells(sums: Sums) -> list[str]:
    counts = (sums.requests, sums.errors, sums.left, sums.prompt_tokens, sums.completion_tokens)
    amounts = (sums.engine_s, sums.energy_wh, sums.cost_usd, sums.agent_usd)
    times = (sums.ttft_ms(share) for share in _SHARES.values())
    return [
        *map(str, counts),
        *map(number, amounts),
        *("-" if time is None else number(time) for time in times),
    ]
