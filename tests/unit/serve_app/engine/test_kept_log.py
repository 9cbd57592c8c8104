"""Serve's log keeps its file whatever configures logging."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from logging.config import dictConfig
from logging.handlers import MemoryHandler
from pathlib import Path

import pytest

from serve_app.engine.kept_log import serves_log_kept


@pytest.fixture
def serves_log(tmp_path: Path) -> Iterator[MemoryHandler]:
    """A handler as Serve gives a replica's logger: records wait in memory for a file."""
    logger = logging.getLogger("ray.serve")
    handler = MemoryHandler(capacity=1, target=logging.FileHandler(tmp_path / "replica.log"))
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    handler.close()


def configure_as_vllm_does() -> None:
    dictConfig({"version": 1, "disable_existing_loggers": False, "loggers": {"a_library": {"level": "INFO"}}})


def test_records_reach_serves_file_after_a_library_configured_logging(
    serves_log: MemoryHandler, tmp_path: Path
) -> None:
    file = serves_log.target
    with serves_log_kept():
        configure_as_vllm_does()
        assert serves_log.target is None  # else nothing has to be kept
        logging.getLogger("ray.serve").warning("meanwhile")
    assert serves_log.target is file
    logging.getLogger("ray.serve").warning("afterwards")
    assert (tmp_path / "replica.log").read_text().split() == ["meanwhile", "afterwards"]


def test_the_file_is_kept_also_if_the_library_cannot_be_imported(serves_log: MemoryHandler) -> None:
    file = serves_log.target
    with contextlib.suppress(ImportError), serves_log_kept():
        configure_as_vllm_does()
        raise ImportError
    assert serves_log.target is file
