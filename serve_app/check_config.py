"""`power-lever check FILE...`: check config files before Ray starts anything."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cluster.catalogue.memory import memory_problems
from cluster.profiles.reading import read_yaml
from router.errors import ConfigError
from serve_app.config import load_config

IMPORT_PATH: Final = "serve_app.app:build"
"""How a config file names our application."""


def check(path: Path) -> list[str]:
    """Return a line for each of our applications in the file, its name and profile, and its warnings.

    Raises:
        ConfigError: the file or the args of an application are wrong.
    """
    lines = []
    applications = read_yaml(path).get("applications", [])
    if not isinstance(applications, list) or not all(isinstance(each, dict) for each in applications):
        raise ConfigError(f"{path}: applications: got {applications!r}, allowed is a list of mappings")
    for application in applications:
        if application.get("import_path") == IMPORT_PATH:
            given = application.get("args") or {}
            if not isinstance(given, dict):
                raise ConfigError(f"{path}: args: got {given!r}, allowed is a mapping")
            # With `auto` the cluster decides later, so the args must fit both profiles.
            named = given.get("profile", "auto")
            for profile in ("local", "gpu") if named == "auto" else (named,):
                config = load_config({**given, "profile": profile}, os.environ, choose_profile=lambda: ("local", ""))
                lines.append(f"{path}: {application.get('name', 'default')}: valid with profile {profile}")
                # Not an error: the budget is arithmetic, and a card may have more memory than the catalogue says.
                lines += [f"warning: {problem}" for problem in memory_problems(config)]
    if not lines:
        raise ConfigError(f"{path}: applications: none has import_path {IMPORT_PATH}")
    return lines


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(prog="power-lever check", description="Check config files.")
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path)
    for path in parser.parse_args(arguments).files:
        print("\n".join(check(path)))
    return 0
