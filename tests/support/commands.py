"""Run one command of the program in this process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from unittest.mock import patch

import click


def run_command(command: click.Command, arguments: Sequence[str], env: Mapping[str, str] | None = None) -> int:
    """Return the command's exit code.

    Args:
        env: added to the environment while it runs.

    Raises:
        SystemExit: wrong usage, as the program ends then.
    """
    with patch.dict(os.environ, env or {}):
        try:
            return int(command.main(list(arguments), prog_name="power-lever", standalone_mode=False) or 0)
        except click.UsageError as error:
            error.show()
            raise SystemExit(error.exit_code) from error
