"""The application's command line.

python -m serve_app check FILE...   is a `serve_config.yaml` right? Answers before Ray starts anything
python -m serve_app serve FILE      serve it until Ctrl-C or SIGTERM, then drain
python -m serve_app settings        every setting as Markdown, for docs/settings.md
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from cluster.profiles.reading import read_yaml
from router.errors import ConfigError
from serve_app.config import load_config
from serve_app.lifecycle.serve import IMPORT_PATH, serve_file
from serve_app.settings_doc import settings_page


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
    parser = argparse.ArgumentParser(prog="python -m serve_app")
    commands = parser.add_subparsers(dest="command", required=True)
    checking = commands.add_parser("check", help="is a `serve_config.yaml` right? Answers before Ray starts anything")
    checking.add_argument("files", metavar="FILE", nargs="+", type=Path)
    serving = commands.add_parser("serve", help="serve a `serve_config.yaml` until Ctrl-C or SIGTERM, then drain")
    serving.add_argument("file", metavar="FILE", type=Path)
    serving.add_argument("--address", help="of a Ray cluster, else one that Ray finds; `local`: always an own one")
    commands.add_parser("settings", help="every setting as Markdown, for docs/settings.md")
    given = parser.parse_args(arguments)
    try:
        if given.command == "settings":
            print(settings_page(), end="")
        elif given.command == "check":
            for path in given.files:
                print("\n".join(check(path)))
        else:
            check(given.file)
            return serve_file(given.file, given.address)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
