"""Programs that come with Debian's and npm's packages (`make tools`): where they are, or a reason to skip a test."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import pytest

from bench.reporting.report import REPOSITORY

_NPM: Final = REPOSITORY / ".venv" / "npm" / "node_modules"


def program(name: str, *, package: str) -> Path:
    """Return where a program of one of Debian's packages is. Skips the test where there is none; under CI it fails."""
    found = shutil.which(name)
    return Path(found) if found else _missing(f"{name} is not installed (Debian's package {package}; `make tools`)")


def npm_file(path: str) -> Path:
    """Return a file of an npm package, `PACKAGE/PATH`. Skips the test where it is not there; under CI it fails."""
    found = _NPM / path
    return found if found.exists() else _missing(f"npm's {path} is not installed (`make tools`, with node)")


def _missing(reason: str) -> Path:
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
