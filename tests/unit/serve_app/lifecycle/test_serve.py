"""`power-lever serve`: errors are one plain line; the first signal drains, the second kills."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import ray
from ray.exceptions import RaySystemError
from ray.serve.schema import ServeApplicationSchema

from router.agent.leaving import Leaving
from router.agent.settings import AgentSettings
from router.errors import ConfigError
from router.observation import Observation
from serve_app.__main__ import main
from serve_app.api.views import tiers_view
from serve_app.cli.application import KeyNeededError
from serve_app.lifecycle.serve import _may_leave, _watch, build_failure, raise_if_taken
from tests.support.app_config import app_config


def status(**over: Any) -> Any:
    return SimpleNamespace(**{"status": "DEPLOYING", "deployments": {}, "message": ""} | over)


def valid_file(folder: Path) -> Path:
    """A config file whose port is free."""
    path = folder / "serve.yaml"
    path.write_text(
        "http_options: {host: 127.0.0.1, port: 18234}\n"
        "applications: [{name: lever, import_path: 'serve_app.app:build', args: {profile: local}}]\n"
    )
    return path


def test_a_wrong_file_is_an_error_before_ray_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.init", lambda **_: pytest.fail("Ray was started"))
    path = tmp_path / "serve.yaml"
    path.write_text(
        "http_options: {port: eighty}\n"
        "applications: [{name: lever, import_path: 'serve_app.app:build', args: {profile: local}}]\n"
    )
    assert main(["serve", str(path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {path}: http_options.port: ")
    assert "got 'eighty'" in error


def test_wrong_settings_are_an_error_before_ray_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.init", lambda **_: pytest.fail("Ray was started"))
    path = tmp_path / "serve.yaml"
    path.write_text("applications: [{name: lever, import_path: 'serve_app.app:build', args: {demo: true}}]")
    assert main(["serve", str(path)]) == 1
    assert "demo: unknown key, allowed are" in capsys.readouterr().err


def test_a_port_that_another_process_shares_counts_as_taken() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1 is in use"):
            raise_if_taken("127.0.0.1", port)
    raise_if_taken("127.0.0.1", port)


def test_an_address_of_another_machine_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 203\.0\.113\.1:8000: "):
        raise_if_taken("203.0.113.1", 8000)


def test_an_application_whose_code_raises_is_reported_with_its_error() -> None:
    message = "Deploying app 'lever' failed with exception:\nTraceback (most recent call last):\n  ...\nKeyError: 'x'\n"
    applications = {"lever": status(status="DEPLOY_FAILED", message=message)}
    assert build_failure(applications) == "application lever: KeyError: 'x'"


def test_a_deployment_that_does_not_start_is_no_build_failure() -> None:
    failed = status(status="DEPLOY_FAILED", deployments={"eco": None}, message="no weights")
    assert build_failure({"lever": failed, "other": status()}) is None


SCRIPT = """
    import subprocess, sys, time
    from serve_app.lifecycle.signals import StopSignals

    # As in Ray, the child starts a process whose parent ends: an orphan in its own session.
    child = subprocess.Popen(["sh", "-c", "setsid sleep 600 & echo $!; sleep 600"], stdout=subprocess.PIPE, text=True)
    signals = StopSignals()
    signals.listen()
    print(child.pid, child.stdout.readline().strip(), flush=True)
    signals.received.wait()
    print("signal received", flush=True)
    if sys.argv[1] == "orphan":
        child.kill()
        child.wait()
        print("orphaned", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("case", "first", "second"),
    [("child", signal.SIGTERM, signal.SIGINT), ("orphan", signal.SIGINT, signal.SIGTERM)],
)
def test_the_second_signal_kills_all_descendants_also_orphans_in_other_sessions(
    case: str, first: signal.Signals, second: signal.Signals
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), case],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[4])},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        process.send_signal(first)
        assert process.stdout.readline() == "signal received\n"
        if case == "orphan":
            assert process.stdout.readline() == "orphaned\n"
        process.send_signal(second)
        assert process.wait(10) == 128 + second
    for pid in pids:
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("raised", "starts"),
    [("The current node timed out during startup. This could happen because", 2), ("no space left on device", 1)],
)
def test_only_a_ray_that_was_too_slow_is_started_once_more(
    raised: str, starts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    def init(**given: Any) -> None:
        started.append(given["address"])
        raise Exception(raised)  # as Ray does

    monkeypatch.setattr("ray.init", init)
    path = valid_file(tmp_path)
    with pytest.raises(Exception, match=raised):
        main(["serve", "--address", "local", str(path)])
    assert started == ["local"] * starts


def test_no_thread_starts_ray_again_when_it_was_shut_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str | None] = []

    def init(**given: Any) -> None:
        started.append(given.get("address"))
        raise ConnectionError("no such cluster")  # the command ends at once

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("ray._private.auto_init_hook.enable_auto_connect", True)
    path = valid_file(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        address = f"127.0.0.1:{somebody.getsockname()[1]}"
        assert main(["serve", "--address", address, str(path)]) == 1
    with pytest.raises(RaySystemError, match="not been started"):
        ray.get_actor("anything")  # as Serve's threads do: without the guard this calls `ray.init`
    assert started == [address]


class Stop:
    """An event that is set after so many looks."""

    def __init__(self, looks: int) -> None:
        self._looks = looks

    def wait(self, timeout_s: float) -> bool:
        self._looks -= 1
        return self._looks < 0


def test_an_application_that_asks_for_a_key_is_greeted_once_and_its_tiers_are_not_followed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(url: str) -> dict[str, Any]:
        raise KeyNeededError("it asks for a key")

    monkeypatch.setattr("serve_app.lifecycle.serve.read_tiers_view", refuse)
    monkeypatch.setattr("serve_app.lifecycle.serve._dashboard", lambda: (None, None))
    leaves = Leaving.of(AgentSettings(), "single_shot", {})
    _watch({"http://localhost:8000": leaves}, Stop(3))  # type: ignore[arg-type]
    said = capsys.readouterr().out
    assert said.count("page   http://localhost:8000/") == 1
    assert said.count("the application asks for a key, and POWER_LEVER_KEY has no valid one") == 1
    assert said.count("leaves where ANTHROPIC_API_KEY is in the ingress's environment") == 1


def test_what_leaves_the_cluster_is_said_with_the_greeting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    leaves = Leaving.of(AgentSettings(), "single_shot", {})
    view = tiers_view(app_config(), Observation(), leaves)
    monkeypatch.setattr("serve_app.lifecycle.serve.read_tiers_view", lambda url: view)
    monkeypatch.setattr("serve_app.lifecycle.serve._dashboard", lambda: (None, None))
    _watch({"http://localhost:8000": None}, Stop(3))  # type: ignore[arg-type]
    said = capsys.readouterr().out
    assert said.count("leaves to api.anthropic.com go, with requests (those of /api/inference): up to 4,000 char") == 1


@pytest.mark.parametrize(
    ("args", "env", "leaves"),
    [
        ({}, {"ANTHROPIC_API_KEY": "k"}, True),
        ({}, {}, False),
        ({"agent": {"mode": "off"}}, {"ANTHROPIC_API_KEY": "k"}, False),
        ({"inference_mode": "mock"}, {"ANTHROPIC_API_KEY": "k"}, False),
        ({}, {"ANTHROPIC_API_KEY": "k", "INFERENCE_MODE": "mock"}, False),
        ({"inference_mode": "mock", "agent": {"mode": "multi_turn"}}, {"ANTHROPIC_API_KEY": "k"}, True),
    ],
)
def test_what_may_leave_is_read_from_the_file_and_the_environment(
    args: dict[str, Any], env: dict[str, str], leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    application = ServeApplicationSchema(import_path="serve_app.app:build", args=args)
    assert (_may_leave(application) is not None) == leaves
