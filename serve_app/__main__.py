"""`power-lever COMMAND`, also as `python -m serve_app COMMAND`. Each command lives in its own room."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final, NamedTuple

import click

from router.errors import ConfigError


class CommandPlace(NamedTuple):
    """Where a command is, and what it does."""

    module: str
    """Has `command`, a click command. Imported on use: some commands import Ray, some must not."""
    help: str


COMMANDS: Final = {
    "serve": CommandPlace("serve_app.lifecycle.serve", "Serve a config file until Ctrl-C or SIGTERM, then drain."),
    "ask": CommandPlace("serve_app.cli.ask", "Ask a running application; the answer streams."),
    "tiers": CommandPlace("serve_app.cli.tiers", "Watch the tiers of a running application."),
    "plan": CommandPlace("serve_app.cli.plan", "Say which tier a prompt would get, and what each tier would take."),
    "profile": CommandPlace("cluster.planner.command", "Write a profile for the GPUs that you have."),
    "check": CommandPlace("serve_app.check_config", "Check config files and profiles before Ray starts anything."),
    "keys": CommandPlace("serve_app.auth.command", "Make, list, revoke and rotate API keys."),
    "usage": CommandPlace("serve_app.usage.command", "Sum up what requests took, by key, tier or day."),
    "weights": CommandPlace("cluster.weights.command", "Seed, list and verify a profile's models, or make a draft."),
    "calibrate": CommandPlace("router.calibration.command", "Refit auto mode to your own models' outcomes."),
    "settings": CommandPlace("serve_app.settings_doc", "Print every setting as Markdown, for docs/settings.md."),
    "mcp": CommandPlace("router.agent.mcp_server", "Offer the router's tools to an MCP client, over stdio."),
}


class Program(click.Group):
    """The program: its commands are imported only when they run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, the most used first."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, or None where there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        found: click.Command = import_module(COMMANDS[cmd_name].module).command
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what the commands do, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.help) for name, place in COMMANDS.items()])


@click.group(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="`power-lever COMMAND --help` lists a command's arguments.",
)
@click.version_option(package_name="power-lever")
def program() -> None:
    """Inference as a dial: each prompt on the smallest GPU tier that is good enough."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code.

    0: done. 1: it failed, as one line on stderr explains (a file or setting is wrong, the application does not answer,
    stdout cannot be written). 2: wrong usage. 130: Ctrl-C.
    """
    try:
        code = program.main(arguments, prog_name="power-lever", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return 130
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
