"""The output of all processes of the application: it goes to a file; errors are shown too."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TextIO

from ray._private import worker
from ray._private.ray_logging import global_worker_stdstream_dispatcher

FILE_NAME: Final = "power-lever.log"
_RAYS_HANDLER: Final = "ray_print_logs"
"""Name of the handler that prints what the processes write (`ray/_private/worker.py`)."""
_ERROR: Final = re.compile(r"(\([^)]*\) )?(ERROR|CRITICAL) ")
"""How a line of an error begins, in Serve's logs and in vLLM's (`(EngineCore pid=7) ERROR 11-30 ...`)."""
_ESCAPE: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
"""What colours a line on a terminal."""
_SHOWN_CHARACTERS: Final = 200
_LOGGERS: Final = ("ray", "ray.serve")
_TOKEN_LOGGER: Final = "ray._private.authentication.authentication_token_setup"


@contextmanager
def without_advice_against_tokens() -> Iterator[None]:
    """Drop Ray's warning that token authentication is on, which says how to turn it off. That it is off is shown."""
    logger = logging.getLogger(_TOKEN_LOGGER)
    logger.addFilter(_is_no_advice)
    try:
        yield
    finally:
        logger.removeFilter(_is_no_advice)


def _is_no_advice(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Token authentication is enabled for this Ray cluster.")


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
        self._print_to_stdstream = worker.print_to_stdstream

    def __enter__(self) -> ProcessLog:
        self._file = self.path.open("a", encoding="utf-8", buffering=1)
        global_worker_stdstream_dispatcher.remove_handler(_RAYS_HANDLER)
        global_worker_stdstream_dispatcher.add_handler(_RAYS_HANDLER, self.take)
        # The raylet's messages, for example that a worker died, do not come by the dispatcher.
        worker.print_to_stdstream = lambda batch, ignore_prefix: self.take(batch)
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
        worker.print_to_stdstream = self._print_to_stdstream
        global_worker_stdstream_dispatcher.remove_handler(_RAYS_HANDLER)
        if self._handler is not None:
            for name in _LOGGERS:
                logging.getLogger(name).removeHandler(self._handler)
        if self._file is not None:
            self._file.close()

    def take(self, batch: Mapping[str, Any]) -> None:
        """Write the lines that one process printed, with its name and without colours.

        Those that begin an error are shown, and all of the raylet, each cut to 200 characters.
        """
        assert self._file is not None
        name = batch.get("actor_name") or batch.get("task_name") or ""
        of_raylet = batch["pid"] == "raylet"  # such a batch has no `ip`
        origin = "raylet" if of_raylet else f"{name} pid={batch['pid']} ip={batch['ip']}"
        for line in (_ESCAPE.sub("", coloured) for coloured in batch["lines"]):
            self._file.write(f"({origin}) {line}\n")
            if of_raylet or _ERROR.match(line):
                self._show(f"{_cut(line)} (more in {self.path})")


def _cut(line: str) -> str:
    first = line.strip().split("\n", 1)[0]  # a message of the raylet may be several
    return first if len(first) <= _SHOWN_CHARACTERS else f"{first[: _SHOWN_CHARACTERS - 3]}..."
