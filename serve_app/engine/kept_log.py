"""Serve's log outlives an engine that configures logging for itself."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from logging.handlers import MemoryHandler


@contextlib.contextmanager
def serves_log_kept() -> Iterator[None]:
    """Give the handlers of Serve's logger their files back at the end of the block.

    `logging.config.dictConfig`, which vLLM calls for a new engine, closes all handlers of the process. Serve's one
    holds records back for a file, and closed, it has no file any more: what the replica logs is lost, and Serve's
    controller, which asks for the file's name when it has restarted, gives up the replica with all its streams.
    """
    handlers = [each for each in logging.getLogger("ray.serve").handlers if isinstance(each, MemoryHandler)]
    files = [(handler, handler.target) for handler in handlers]
    try:
        yield
    finally:
        for handler, file in files:
            if file is not None:
                handler.setTarget(file)
