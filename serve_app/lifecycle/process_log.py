"""The output of all processes of the application: it goes to a file; errors are shown too."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TextIO

from ray._private.ray_logging import global_worker_stdstream_dispatcher

FILE_NAME: Final = "power-lever.log"
_RAYS_HANDLER: Final = "ray_print_logs"
"""Name of the handler that prints what the processes write (`ray/_private/worker.py`)."""
_ERROR: Final = re.compile(r"(\([^)]*\) )?(ERROR|CRITICAL) ")
"""How a line of an error begins, in Serve's logs and in vLLM's (`(EngineCore pid=7) ERROR 11-30 ...`)."""
_LOGGERS: Final = ("ray", "ray.serve")


class ProcessLog:
    """Takes what Ray would print of the application's processes, and what Ray and Serve log in this one. Warnings and
    errors of this one are shown as before.

    Use it when Ray has started and until it is shut down.

    Args:
        path: of the file; it is added to.
        show: shows a line of an error.
    """

    def __init__(self, path: Path, show: Callable[[str], None]) -> None:
        self.path = path
        self._show = show
        self._file: TextIO | None = None
        self._handler: logging.Handler | None = None

    def __enter__(self) -> ProcessLog:
        self._file = self.path.open("a", encoding="utf-8", buffering=1)
        global_worker_stdstream_dispatcher.remove_handler(_RAYS_HANDLER)
        global_worker_stdstream_dispatcher.add_handler(_RAYS_HANDLER, self.take)
        self._handler = logging.StreamHandler(self._file)
        self._handler.setFormatter(logging.Formatter("%(levelname)s %(asctime)s %(name)s: %(message)s"))
        for logger in map(logging.getLogger, _LOGGERS):
            for shown in logger.handlers:
                shown.setLevel(max(shown.level, logging.WARNING))
            logger.addHandler(self._handler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global_worker_stdstream_dispatcher.remove_handler(_RAYS_HANDLER)
        if self._handler is not None:
            for name in _LOGGERS:
                logging.getLogger(name).removeHandler(self._handler)
        if self._file is not None:
            self._file.close()

    def take(self, batch: Mapping[str, Any]) -> None:
        """Write the lines that one process printed, with its name; show those that begin an error."""
        assert self._file is not None
        name = batch.get("actor_name") or batch.get("task_name") or ""
        for line in batch["lines"]:
            self._file.write(f"({name} pid={batch['pid']} ip={batch['ip']}) {line}\n")
            if _ERROR.match(line):
                self._show(f"{line} (more in {self.path})")
