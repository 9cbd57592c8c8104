"""The processes' output goes to a file, and errors to the terminal too."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from ray._private import worker
from ray._private.authentication import authentication_token_setup
from ray._private.ray_logging import global_worker_stdstream_dispatcher

from serve_app.lifecycle.process_log import ProcessLog, without_advice_against_tokens


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


def test_what_the_raylet_says_is_shown_cut_and_whole_in_the_file_without_colours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []
    path = tmp_path / "power-lever.log"
    died = "A worker died or was killed. " + 300 * "x"
    with ProcessLog(path, shown.append):
        # As `listen_error_messages` does when a replica is dead.
        batch = {"lines": [f"\x1b[33m{died}\x1b[0m\nsecond line"], "pid": "raylet", "is_err": False}
        worker.print_to_stdstream(batch, ignore_prefix=False)
    assert path.read_text(encoding="utf-8") == f"(raylet) {died}\nsecond line\n"
    assert shown == [f"{died[:197]}... (more in {path})"]
    assert capsys.readouterr().out == ""


def test_a_long_coloured_error_is_shown_cut_and_without_colours(tmp_path: Path) -> None:
    shown: list[str] = []
    path = tmp_path / "power-lever.log"
    with ProcessLog(path, shown.append):
        global_worker_stdstream_dispatcher.emit(batch("\x1b[1;31mERROR " + 300 * "x" + "\x1b[0m"))
    assert path.read_text(encoding="utf-8").endswith(") ERROR " + 300 * "x" + "\n")
    assert shown == ["ERROR " + 191 * "x" + f"... (more in {path})"]


def test_that_tokens_can_be_turned_off_is_not_advised_and_that_they_are_off_is_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger = authentication_token_setup.logger
    logger.addHandler(caplog.handler)  # Ray's loggers do not propagate
    try:
        with without_advice_against_tokens():
            authentication_token_setup._warn_token_auth_enabled()
            assert caplog.messages == []
            authentication_token_setup._warn_token_auth_disabled()
        assert any(said.startswith("Token authentication is disabled") for said in caplog.messages)
        caplog.clear()
        authentication_token_setup._warn_token_auth_enabled()
        assert any("=disabled to opt out" in said for said in caplog.messages)
    finally:
        logger.removeHandler(caplog.handler)


def test_after_it_nothing_is_written_any_more(tmp_path: Path) -> None:
    path = tmp_path / "power-lever.log"
    with ProcessLog(path, pytest.fail):
        pass
    global_worker_stdstream_dispatcher.emit(batch("ERROR late"))
    logging.getLogger("ray.serve").warning("late")
    assert path.read_text(encoding="utf-8") == ""
