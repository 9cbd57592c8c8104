"""`power-lever COMMAND`, also as `python -m serve_app COMMAND`. Each command lives in its own room."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final, NamedTuple

from router.errors import ConfigError


class Command(NamedTuple):
    """A command of the command line."""

    module: str
    """Has `main(arguments)`, which returns the exit code. Imported on use: some commands import Ray, some must not."""
    help: str


COMMANDS: Final = {
    "serve": Command("serve_app.lifecycle.serve", "serve a `serve_config.yaml` until Ctrl-C or SIGTERM, then drain"),
    "weights": Command("cluster.weights.command", "seed, list and verify a profile's models, or make a draft"),
    "profile": Command("cluster.planner.command", "write a profile for the GPUs that you have"),
    "check": Command("serve_app.check_config", "check a `serve_config.yaml` or a profile before Ray starts anything"),
    "calibrate": Command("router.calibration.command", "refit auto mode to your own models' outcomes"),
    "plan": Command("router.plan_command", "say which tier a prompt would get, and what each tier would take"),
    "settings": Command("serve_app.settings_doc", "print every setting as Markdown, for docs/settings.md"),
    "mcp": Command("router.agent.mcp_server", "offer the router's tools to an MCP client, over stdio"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code: 1 if a file or setting is wrong, or stdout cannot be written, which one line
    on stderr explains."""
    parser = argparse.ArgumentParser(
        prog="power-lever",
        usage="power-lever COMMAND ...",
        description="\n".join(f"{name:10}{command.help}" for name, command in COMMANDS.items()),
        epilog="`power-lever COMMAND --help` lists a command's arguments.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", metavar="COMMAND", choices=COMMANDS, help=argparse.SUPPRESS)
    parser.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    try:
        code = int(import_module(COMMANDS[given.command].module).main(given.arguments))
        sys.stdout.flush()
        return code
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        if not _stdout_is_broken():
            raise
        print(f"error: stdout cannot be written: {error.strerror}", file=sys.stderr)
        # What is still in its buffer goes nowhere, or Python would try once more when it exits, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _stdout_is_broken() -> bool:
    """Return whether nothing more can be written: the disk is full, or the reader of a pipe has left."""
    try:
        print(flush=True)
    except OSError:
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
