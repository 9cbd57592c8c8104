"""The state of one card, in a file that all engines on it share.

A file for each card, by its UUID, in a folder of the user's in memory. An engine changes it under a lock of the
kernel's, which a process that dies gives back, and replaces it as a whole, so that it is never half written. A file
that cannot be understood, or is from before the machine's last start, begins anew.
"""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from serve_app.engine.energy.counters import CounterError
from sustainability.cards import Card

logger = logging.getLogger("ray.serve")
LOCK_WITHIN_S: Final = 2.0
"""Longest wait for the other engines on the card, s. Each needs well under a millisecond."""
_POLL_S: Final = 0.005
_MEMORY: Final = Path("/dev/shm")
_CARD: Final = TypeAdapter(Card)


def shared_folder() -> Path:
    """Return the folder of the user's cards on this machine, in memory where there is such a folder."""
    parent = _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    return parent / f"power-lever-energy-{os.getuid()}"


@contextmanager
def locked_card(folder: Path, card: str, now_s: float) -> Iterator[Card]:
    """Hold a card's state, and write it back unless the block raises.

    Args:
        folder: of the files, the same for all engines on the machine.
        card: its UUID.
        now_s: monotonic clock.

    Raises:
        CounterError: the file cannot be locked or written.
    """
    path = folder / f"{card.replace('/', '-')}.json"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        with path.with_suffix(".lock").open("w") as lock:
            _lock(lock.fileno(), card)
            state = _read(path, now_s)
            yield state
            new = path.with_suffix(".new")
            new.write_bytes(_CARD.dump_json(state))
            new.replace(path)
    except OSError as error:
        raise CounterError("the cards' energy cannot be shared among their engines", str(error)) from error


def _lock(descriptor: int, card: str) -> None:
    deadline = time.monotonic() + LOCK_WITHIN_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise CounterError("another engine holds the file of a card's energy", card) from None
            time.sleep(_POLL_S)
        else:
            return


def _read(path: Path, now_s: float) -> Card:
    try:
        state = _CARD.validate_json(path.read_bytes())
    except FileNotFoundError:
        return Card()
    except ValidationError as error:
        logger.warning("the energy file %s begins anew: %s", path, error)
        return Card()
    # The monotonic clock begins anew with the machine.
    return state if state.divided_s <= now_s else Card()
