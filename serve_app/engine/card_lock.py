"""Engines that share a card start and stop one at a time.

vLLM measures a starting engine by the card's free memory, before and after. It fails if another process gave memory
back meanwhile, and counts what another took as its own, at the cost of its KV cache
(`v1/worker/gpu_worker.py: determine_available_memory`, `utils/mem_utils.py: memory_profiling`). So a replica with a
share of a card holds a lock file of the card, on its node, from before its engine starts until it has answered, and
while it stops. The kernel drops the lock of a process that dies.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import IO, Final

logger = logging.getLogger("ray.serve")
_POLL_S: Final = 0.2


def visible_cards(environment: Mapping[str, str]) -> list[str]:
    """Return the cards that Ray gave this process, as `CUDA_VISIBLE_DEVICES` names them: indexes or UUIDs, sorted."""
    return sorted(card for card in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if card)


@asynccontextmanager
async def card_to_itself(
    gpus: float,
    *,
    at_most_s: float = float("inf"),
    environment: Mapping[str, str] = os.environ,
    folder: Path | None = None,
) -> AsyncIterator[None]:
    """Hold the lock of a shared card; a replica with whole cards, or with none, has nobody to wait for.

    Args:
        gpus: the tier's, a share below 1.
        at_most_s: goes on without the lock after that time, s.
        environment: names the cards.
        folder: of the lock files, the same for all replicas on the node; None: one of the user's in the system's
            folder for temporary files.
    """
    with ExitStack() as held:
        if 0 < gpus < 1:
            folder = folder or Path(tempfile.gettempdir()) / f"power-lever-cards-{os.getuid()}"
            folder.mkdir(mode=0o700, exist_ok=True)
            deadline = time.monotonic() + at_most_s
            for card in visible_cards(environment):
                file = held.enter_context((folder / card.replace("/", "-")).open("w"))
                await _lock(file, card, deadline)
                # Unlocked, not only closed: a forked engine process has the same open file.
                held.callback(fcntl.flock, file, fcntl.LOCK_UN)
        yield


async def _lock(file: IO[str], card: str, deadline: float) -> None:
    waited = False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                logger.warning("another engine on card %s still starts; going on without waiting", card)
                return
            if not waited:
                logger.info("waiting for another engine on card %s to start or stop", card)
            waited = True
            await asyncio.sleep(_POLL_S)
        else:
            return
