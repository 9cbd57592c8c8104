"""Command-line options that all benchmarks share, and modules that only some of them need."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

NEEDS: Final[Mapping[str, Sequence[str]]] = {
    "bench.autoscaling": ("matplotlib",),
    "bench.fuzz": ("hypothesis",),
    "bench.routing": ("matplotlib",),
    "bench.speculation": ("matplotlib",),
}
"""Modules of requirements/dev.txt that a benchmark imports."""


class _Parser(argparse.ArgumentParser):
    """Checks for missing modules first, as an import error after the measurement would lose it."""

    def __init__(self, module: str, **options: Any) -> None:
        super().__init__(prog=f"python -m {module}", **options)
        self._needs = NEEDS.get(module, ())

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        parsed = super().parse_args(args, namespace)
        missing = [name for name in self._needs if find_spec(name) is None]
        if missing:
            self.exit(1, f"{self.prog} needs {', '.join(missing)}, which `make install-dev` installs\n")
        return parsed


def parser(module: str, description: str | None, quick: str) -> argparse.ArgumentParser:
    """Return a parser with `--json` and `--quick`; `quick` is the help of the latter."""
    made = _Parser(module, description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=Path, metavar="FILE", help="write the results and their provenance here")
    made.add_argument("--quick", action="store_true", help=quick)
    return made
