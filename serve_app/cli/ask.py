"""`power-lever ask`: the answer on stdout, who gave it, why and what it took on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, get_args

import click
from rich.console import Console
from rich.status import Status
from rich.text import Text

from router.registry import Escalate
from router.words import number
from serve_app.cli.application import answer_events, url_option
from serve_app.cli.numbers import FiniteRange
from serve_app.cli.request_options import request_body, request_options

INTERRUPTED: Final = 130
_ACCEPTED: Final = "underline"
_QUIET: Final = "dim"
_KEEP: Final = {"\n", "\t"}


@click.command()
@request_options
@click.option("--temperature", type=FiniteRange(0, 2), metavar="X", help="sampling temperature, 0-2")
@click.option("--k", metavar="K", help="most draft tokens a step, 0-32, or auto")
@click.option("--escalate", type=click.Choice(get_args(Escalate)), help="what happens where the answer goes wrong")
@click.option("--json", "as_json", is_flag=True, help="print the events, one JSON object a line")
@click.option("--quiet", is_flag=True, help="print the answer only")
@url_option
def command(url: str, k: str | None, as_json: bool, quiet: bool, **given: Any) -> int:
    """Ask a running application; without PROMPT, or with -, the prompt is read from stdin.

    The answer goes to stdout, all else to stderr. On a terminal, tokens that were drafted and accepted are underlined.
    Ctrl-C ends the request on the server too. Exit code 0: answered; 1: refused or cut off; 130: Ctrl-C.
    """
    if k is not None:
        given["spec"] = {"k": int(k) if k.isdecimal() else k}
    body = request_body(**given)
    try:
        with answer_events(url, body) as events:
            return print_events(events) if as_json else Transcript(quiet=quiet).show(events)
    except KeyboardInterrupt:
        click.echo("\nstopped", err=True)
        return INTERRUPTED


def print_events(events: Iterator[Mapping[str, Any]]) -> int:
    """Print each event as one JSON object a line; return the exit code."""
    code = 0
    for event in events:
        click.echo(json.dumps(event, ensure_ascii=False))
        code = int(event["type"] == "error")
    return code


@dataclass(slots=True)
class Transcript:
    """Shows a stream as it comes.

    Args:
        quiet: show the answer and errors only.
    """

    quiet: bool = False
    _out: Console = field(default_factory=lambda: Console(highlight=False, soft_wrap=True), init=False)
    _err: Console = field(default_factory=lambda: Console(stderr=True, highlight=False, soft_wrap=True), init=False)
    _waiting: Status | None = field(default=None, init=False)
    _in_line: bool = field(default=False, init=False)
    """Whether the answer's last line has no end yet."""
    _later: list[str] = field(default_factory=list, init=False)
    """What is to be said after the answer's line, or at its end."""

    def show(self, events: Iterator[Mapping[str, Any]]) -> int:
        """Show all events; return the exit code."""
        try:
            for event in events:
                data = event["data"]
                match event["type"]:
                    case "config":
                        self._note(_who(data))
                    case "reasoning":
                        self._note(data["text"])
                    case "status":
                        self._wait(data)
                    case "token":
                        self._token(data)
                    case "trace":
                        self._later += _advice(data)
                    case "escalation":
                        self._show_seam(data)
                    case "metrics":
                        self._end_answer()
                        self._note(_took(data))
                    case "error":
                        self._end_answer()
                        self._err.print(Text(f"error: {printable(data['message'])} ({data['code']})", style="red"))
                        return 1
            self._end_answer()
            return 0
        finally:
            self._end_wait()

    def _note(self, line: str, *, always: bool = False) -> None:
        """Say it on stderr, after the answer's line; with `quiet` only what is `always` said."""
        if self._in_line:
            self._later.append(line)
        elif always or not self.quiet:
            self._end_wait()
            self._err.print(Text(printable(line), style=_QUIET))

    def _show_seam(self, seam: Mapping[str, Any]) -> None:
        if seam["rewrite"]:
            # What is on stdout cannot be taken back, so its reader must know, and see where the other answer begins.
            self._end_line()
            self._note(f"{seam['to_tier']} begins anew, the text above is withdrawn: {seam['reason']}", always=True)
        else:
            self._note(f"{seam['to_tier']} went on at token {seam['at_token']}: {seam['reason']}")

    def _wait(self, data: Mapping[str, Any]) -> None:
        line = waiting_line(data)
        if self.quiet:
            return
        if self._in_line or not self._err.is_terminal:
            self._note(line)
        elif self._waiting is None:
            self._waiting = self._err.status(line)
            self._waiting.start()
        else:
            self._waiting.update(line)

    def _token(self, data: Mapping[str, Any]) -> None:
        self._end_wait()
        text = data["text"]
        if not text:
            return
        if self._out.is_terminal:
            self._out.print(Text(printable(text), style=_ACCEPTED if data["spec_accepted"] else ""), end="")
        else:
            sys.stdout.write(text)
        sys.stdout.flush()
        self._in_line = not text.endswith("\n")

    def _end_wait(self) -> None:
        if self._waiting is not None:
            self._waiting.stop()
            self._waiting = None

    def _end_answer(self) -> None:
        self._end_line()
        for line in self._later:
            self._note(line)
        self._later.clear()

    def _end_line(self) -> None:
        self._end_wait()
        if self._in_line:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._in_line = False


def printable(text: str) -> str:
    """Return the text without what a terminal would obey: a model's answer could move the cursor or set a title."""
    return "".join(sign for sign in text if sign in _KEEP or not (ord(sign) < 32 or 127 <= ord(sign) < 160))


def waiting_line(status: Mapping[str, Any]) -> str:
    """Return a `status` event in words."""
    line = f"{printable(status['reason'] or status['state'])}: {status['waited_s']:.0f} s"
    return f"{line}, about {status['estimate_s']:.0f} s more" if status["estimate_s"] > 0 else line


def _who(config: Mapping[str, Any]) -> str:
    return f"{config['tier']}: {config['target_model']} on {config['gpu']}"


def _advice(trace: Mapping[str, Any]) -> list[str]:
    """Return what a trace step says of another tier in mid-stream, if it does."""
    result = trace["result"]
    if trace["step"] != "escalate" or result.get("at_token") is None:
        return []
    return [f"advice: {result['to_tier']} should go on: {result['reason']}"]


def _took(metrics: Mapping[str, Any]) -> str:
    """Return the `metrics` event in words."""
    parts = [f"{metrics['completion_tokens']} tokens in {number(metrics['total_ms'] / 1000)} s"]
    if metrics["ttft_ms"] is not None:
        parts.append(f"the first after {number(metrics['ttft_ms'] / 1000)} s")
    if metrics["tokens_per_sec"]:
        parts.append(f"{number(metrics['tokens_per_sec'])} tokens/s")
    spec = metrics["spec"]
    if spec["draft_tokens"]:
        parts.append(f"{spec['accepted_tokens']} of {spec['draft_tokens']} drafts accepted")
    energy = metrics["energy"]
    parts.append(f"{number(energy['wh'])} Wh {energy['source']}")
    parts += [f"{number(metrics['water_l'] * 1000)} mL water", f"{number(metrics['co2_g'])} g CO2"]
    parts.append(f"{number(metrics['cost_usd'])} USD")
    return ", ".join(parts)
