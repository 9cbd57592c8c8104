"""Run the program on a terminal of its own."""

from __future__ import annotations

import os
import pty
import subprocess
import sys


def on_a_terminal(arguments: list[str], env: dict[str, str]) -> str:
    """Return what the program shows on a terminal.

    Args:
        arguments: of `power-lever`.
        env: added to the environment; COLUMNS is the terminal's width.
    """
    reads, writes = pty.openpty()
    command = [sys.executable, "-m", "serve_app", *arguments]
    with os.fdopen(writes, "wb") as terminal:
        process = subprocess.Popen(
            command, stdout=terminal, stderr=terminal, stdin=terminal, env=os.environ | {"TERM": "xterm-256color"} | env
        )
    shown = b""
    try:
        while piece := os.read(reads, 4096):
            shown += piece
    except OSError:  # how a terminal ends
        pass
    finally:
        os.close(reads)
    process.wait(30)
    return shown.decode()
