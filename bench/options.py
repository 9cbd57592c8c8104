"""Command-line options that every benchmark shares."""

from __future__ import annotations

import argparse
from pathlib import Path


def parser(module: str, description: str | None, quick: str) -> argparse.ArgumentParser:
    """A parser with `--json` and `--quick`; `quick` says what the latter leaves out."""
    made = argparse.ArgumentParser(
        prog=f"python -m {module}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write the results and their provenance here")
    made.add_argument("--quick", action="store_true", help=quick)
    return made
