"""The calibration prompts: a target answers them, and its draft is fitted on the answers."""

from __future__ import annotations

from pathlib import Path

_FILE = Path(__file__).with_name("prompts.txt")

HELD_OUT_EVERY = 6
"""Every sixth prompt is held out: its answer tells how good a draft is that was fitted on the others."""


def calibration_prompts() -> list[str]:
    """The prompts, in the file's order."""
    lines = _FILE.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]
