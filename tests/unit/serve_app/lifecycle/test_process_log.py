"""The processes' output goes to a file, and errors to the terminal too."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from ray._private.ray_logging import global_worker_stdstream_dispatcher

from serve_app.lifecycle.process_log import ProcessLog


def batch(*lines: str) -> dict[str, object]:
    return {"pid": 7, "ip": "192.0.2.1", "actor_name": "ServeReplica:lever:eco", "is_err": True, "lines": list(lines)}


def test_what_the_processes_print_is_in_the_file_and_errors_are_shown(tmp_path: Path) -> None:
    shown: list[str] = []
    path = tmp_path / "power-lever.log"
    with ProcessLog(path, shown.append):
        global_worker_stdstream_dispatcher.emit(
            batch(
                "INFO 2026-11-30 05:00:00,000 eco -- loading",
                "WARNING 2026-11-30 05:00:01,000 eco -- slow, no ERROR yet",
                "ERROR 2026-11-30 05:00:02,000 eco -- tier eco: the engine has died",
                "Traceback (most recent call last):",
                "(EngineCore pid=9) CRITICAL 11-30 05:00:03 [core.py:1] out of memory",
            )
        )
        logging.getLogger("ray.serve").info("an application is deployed")
    written = path.read_text(encoding="utf-8").splitlines()
    assert written[0] == "(ServeReplica:lever:eco pid=7 ip=192.0.2.1) INFO 2026-11-30 05:00:00,000 eco -- loading"
    assert len(written) == 6
    assert written[-1].endswith("ray.serve: an application is deployed")
    assert shown == [
        f"ERROR 2026-11-30 05:00:02,000 eco -- tier eco: the engine has died (more in {path})",
        f"(EngineCore pid=9) CRITICAL 11-30 05:00:03 [core.py:1] out of memory (more in {path})",
    ]


def test_after_it_nothing_is_written_any_more(tmp_path: Path) -> None:
    path = tmp_path / "power-lever.log"
    with ProcessLog(path, pytest.fail):
        pass
    global_worker_stdstream_dispatcher.emit(batch("ERROR late"))
    logging.getLogger("ray.serve").warning("late")
    assert path.read_text(encoding="utf-8") == ""
