"""This machine: its GPUs, their driver, and the versions of what runs on them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_QUERY: Final = "name,memory.total,driver_version,power.limit"


@dataclass(frozen=True, slots=True)
class Cards:
    """The GPUs of this machine, which are taken to be all alike."""

    name: str | None
    """As the driver says it; None: there is no GPU."""
    count: int
    memory_gib: float
    """Of one; 0: not known."""
    driver: str | None
    watts: str | None
    """Power limit, with its unit."""

    def machine(self, made_by: Mapping[str, Any]) -> dict[str, Any]:
        """Return what results are of: card, driver, versions."""
        return {
            "card": self.name or f"no GPU: {made_by['machine']['cpu']}, {made_by['machine']['cores']} cores",
            "cards": self.count,
            "memory_gib": self.memory_gib,
            "power_limit": self.watts,
            "driver": self.driver,
            "versions": made_by["versions"],
        }


NO_CARDS: Final = Cards(None, 0, 0.0, None, None)


def read_cards() -> Cards:
    """Ask the driver's `nvidia-smi`."""
    if shutil.which("nvidia-smi") is None:
        return NO_CARDS
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return parse_cards(done.stdout) if done.returncode == 0 else NO_CARDS


def parse_cards(text: str) -> Cards:
    """Return the cards from the output of `nvidia-smi`."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    if not rows:
        return NO_CARDS
    name, memory, driver, watts = rows[0]
    mib = memory.split()[0]  # "[N/A]" where the card shares the machine's memory
    return Cards(name, len(rows), round(float(mib) / 1024, 1) if mib.isdecimal() else 0.0, driver, watts)
