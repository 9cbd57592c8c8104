"""The application's command line.

python -m serve_app check FILE...   is a `serve_config.yaml` right? Answers before Ray starts anything
python -m serve_app settings        every setting as a Markdown table, for README.md
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from cluster.profiles import read_yaml
from router.errors import ConfigError
from serve_app.config import load_config
from serve_app.settings_doc import settings_table

IMPORT_PATH = "serve_app.app:build"


def check(path: Path) -> list[str]:
    """One line for each of our applications in the file: its name and profile.

    Raises:
        ConfigError: the file or the args of one of them are wrong.
    """
    lines = []
    for application in read_yaml(path).get("applications", []):
        if application.get("import_path") == IMPORT_PATH:
            # With `auto` the cluster decides later; the overrides must fit whichever it picks, so both are tried.
            wanted = (application.get("args") or {}).get("profile", "auto")
            for profile in ("local", "gpu") if wanted == "auto" else (wanted,):
                args = {**(application.get("args") or {}), "profile": profile}
                load_config(args, os.environ, choose_profile=lambda: ("local", ""))
                lines.append(f"{path}: {application.get('name')}: valid with profile {profile}")
    if not lines:
        raise ConfigError(f"{path}: applications: none has import_path {IMPORT_PATH}")
    return lines


def main(arguments: list[str]) -> int:
    """The command line; returns the exit code."""
    if arguments == ["settings"]:
        print(settings_table())
        return 0
    if len(arguments) < 2 or arguments[0] != "check":
        print("usage: python -m serve_app check FILE... | settings", file=sys.stderr)
        return 2
    try:
        for name in arguments[1:]:
            print("\n".join(check(Path(name))))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
