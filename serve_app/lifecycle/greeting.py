"""What `power-lever serve` tells a person: where to go, which tier is warm, and what changes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from router.agent.leaving import KEY_VARIABLE as LEAVING_KEY_VARIABLE
from router.agent.leaving import Leaving, leaving_words
from router.application_key import KEY_VARIABLE
from serve_app.cli.application import served_entry

_EXAMPLE: Final = '{"prompt": "What is the capital of France?"}'
WITHOUT_KEY: Final = (
    f"what the tiers do is not shown here: the application asks for a key, and {KEY_VARIABLE} has no valid one"
)
_IF_SO: Final = f"where {LEAVING_KEY_VARIABLE} is in the ingress's environment, as it is in this one, "
_TOLD: Final = frozenset({"provisioning", "loading", "warm", "failed"})
"""States of a tier whose beginning is told; that a tier is busy changes with each request."""


def starting(file: Path, log: Path) -> str:
    """Return the line while nothing answers yet."""
    return f"starting {file}; the engines write to {log}"


def welcome(url: str, dashboard: str | None, token: str | None, *, asks_for_key: bool = False) -> str:
    """Return the lines for when the application answers.

    Args:
        url: of the application, without a slash at its end.
        dashboard: URL of Ray's dashboard; None: it has none.
        token: the command that prints the token that it asks for; None: it asks for none.
        asks_for_key: whether the application asks for a key.
    """
    # Through a pipe, since every user of the machine sees a program's arguments; `echo` is the shell's own.
    pipe, key = (f'echo "authorization: Bearer ${KEY_VARIABLE}" | ', " -H @-") if asks_for_key else ("", "")
    ask = f"{pipe}curl -N {url}/api/inference{key} -H 'content-type: application/json' -d {shlex.quote(_EXAMPLE)}"
    lines = [f"  page   {url}/", f"  ask    {ask}"]
    if dashboard is not None:
        lines.append(f"  Ray    {dashboard}" + ("" if token is None else f", which asks for a token: {token}"))
    return "\n".join(["", *lines, "  stop   Ctrl-C drains, a second one stops at once", ""])


def leaves(view: Mapping[str, Any]) -> list[str]:
    """Return the line that says what leaves the cluster, for the key of this environment; none if nothing does.

    Args:
        view: a body of `/api/tiers`.
    """
    leaving = view["leaves_cluster"]
    return [] if leaving is None else [_leaves(leaving_words(leaving))]


def may_leave(leaving: Leaving | None) -> list[str]:
    """Return the same line where the application tells nothing without a key, from the file and this environment."""
    return [] if leaving is None else [_leaves(_IF_SO + leaving_words(leaving.view()))]


def _leaves(words: str) -> str:
    return f"  leaves {words}"


def command_here(name: str, program: Path, folder: Path) -> str:
    """Return the path of a command that lies beside a program, relative to the folder if it is below it."""
    path = program.parent / name
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def tier_changes(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> list[str]:
    """Return a line for each tier that began something else or has more or fewer replicas, and for each chain entry
    that one has left.

    Args:
        before: an earlier body of `/api/tiers`; None: there was none.
        after: a later one.
    """
    earlier = {tier["name"]: tier for tier in before["tiers"]} if before is not None else {}
    lines = []
    for tier in after["tiers"]:
        was = earlier.get(tier["name"], {"state": "cold", "chain": ()})
        left = {entry["name"] for entry in was["chain"] if entry["failure"]}
        lines += [
            f"{tier['name']} left {entry['name']}: {entry['failure']}"
            for entry in tier["chain"]
            if entry["failure"] and entry["name"] not in left
        ]
        state = _state(tier)
        if state != _state(was) and (state in _TOLD or _state(was) in _TOLD):
            lines.append(f"{tier['name']} {_words(state, tier)}")
        elif state == "warm" and tier["replicas"]["running"] != was["replicas"]["running"]:
            lines.append(f"{tier['name']} has {_replicas(tier)}")
    return lines


def _state(tier: Mapping[str, Any]) -> str:
    return "warm" if tier["state"] == "busy" else str(tier["state"])


def _because(tier: Mapping[str, Any]) -> str:
    return "" if tier["reason"] is None else f": {tier['reason']}"


def _replicas(tier: Mapping[str, Any]) -> str:
    replicas = tier["replicas"]
    return f"{replicas['running']} of at most {replicas['max']} replicas{_because(tier)}"


def _words(state: str, tier: Mapping[str, Any]) -> str:
    model = served_entry(tier)["target"]
    match state:
        case "warm":
            return f"is warm: {model}"
        case "loading":
            return f"loads {model}, about {tier['cold_start_s']:.0f} s"
        case "provisioning":
            return f"is to start{_because(tier)}"
        case "failed":
            return f"cannot start{_because(tier)}"
    return "is cold: it starts when it is asked"
