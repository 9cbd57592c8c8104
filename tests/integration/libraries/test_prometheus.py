"""Prometheus takes our rules and configuration, the alerts fire when they should, and `make observe` runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from bench.load.servers import free_port
from cluster.observability import observe
from tests.support.dashboards import FOLDER
from tests.support.tools import program

OBSERVE = [sys.executable, "-m", "cluster.observability.observe"]


@pytest.mark.parametrize(
    "arguments", [("check", "config", "prometheus.yml"), ("test", "rules", "rules_test.yaml")], ids=" ".join
)
def test_promtool_finds_nothing_wrong(arguments: tuple[str, ...]) -> None:
    promtool = program("promtool", package="prometheus")
    done = subprocess.run([promtool, *arguments], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("was", "is_now"),
    [
        ("drift) == 1", "drift) == 2"),
        ("> on (tier)", "< on (tier)"),
        ("tier_failed) == 1", "tier_failed) == 0"),
        ("> 0.05", "> 0.15"),
        ("chain_position) > 0", "chain_position) > 2"),
        ("open_requests) > 0", "open_requests) > 9"),
        ("absent(", "count("),
        ("for: 5m", "for: 50m"),
    ],
)
def test_the_tests_of_the_alerts_notice_a_rule_that_is_wrong(was: str, is_now: str, tmp_path: Path) -> None:
    promtool = program("promtool", package="prometheus")
    rules = (FOLDER / "rules.yaml").read_text(encoding="utf-8")
    assert was in rules
    (tmp_path / "rules.yaml").write_text(rules.replace(was, is_now), encoding="utf-8")
    (tmp_path / "rules_test.yaml").write_text((FOLDER / "rules_test.yaml").read_text(encoding="utf-8"))
    done = subprocess.run(
        [promtool, "test", "rules", "rules_test.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0


def test_make_observe_starts_prometheus_says_where_it_is_and_ends_it_on_ctrl_c() -> None:
    program("prometheus", package="prometheus")
    port = free_port()
    process = subprocess.Popen(
        [*OBSERVE, "--port", str(port)], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"}
    )
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "Ctrl-C" in line:
                break
        assert f"http://127.0.0.1:{port}" in lines[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/rules", timeout=30) as response:
            assert b"PowerLeverTierFailing" in response.read()
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(60)
    assert code == 0
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5)


def test_without_prometheus_make_observe_says_how_to_get_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert observe.main([], {"PATH": str(tmp_path)}) == 1
    assert "apt-get install prometheus" in capsys.readouterr().err


def test_a_port_that_is_taken_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    program("prometheus", package="prometheus")
    monkeypatch.setattr(observe, "_is_taken", lambda port: True)
    assert observe.main(["--port", "19090"]) == 1
    assert "Port 19090 is taken" in capsys.readouterr().err


def test_grafana_gets_our_dashboard_and_source_and_asks_nobody_outside(tmp_path: Path) -> None:
    command, env = observe.grafana_command("/bin/grafana-server", tmp_path / "g", "http://127.0.0.1:9090", {"A": "b"})
    assert command[0] == "/bin/grafana-server"
    sources = (tmp_path / "g" / "provisioning" / "datasources" / "power-lever.yaml").read_text()
    assert 'url: "http://127.0.0.1:9090"' in sources
    boards = (tmp_path / "g" / "provisioning" / "dashboards" / "power-lever.yaml").read_text()
    assert str(observe.HERE / "grafana") in boards
    assert env["A"] == "b"
    assert env["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
    assert env["GF_ANALYTICS_CHECK_FOR_UPDATES"] == env["GF_ANALYTICS_REPORTING_ENABLED"] == "false"


def test_the_configuration_with_a_key_sends_it_and_prometheus_takes_it(tmp_path: Path) -> None:
    promtool = program("promtool", package="prometheus")
    config = observe.prometheus_config(tmp_path, {"POWER_LEVER_KEY": " pl_key \n"})
    done = subprocess.run([promtool, "check", "config", str(config)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = {job["job_name"]: job for job in yaml.safe_load(config.read_text(encoding="utf-8"))["scrape_configs"]}
    key_file = Path(jobs["power-lever"]["authorization"]["credentials_file"])
    assert key_file.read_text(encoding="utf-8") == "pl_key"
    assert key_file.stat().st_mode & 0o077 == 0
    assert "authorization" not in jobs["ray"]


def test_without_a_key_the_shipped_configuration_is_used(tmp_path: Path) -> None:
    assert observe.prometheus_config(tmp_path, {}) == FOLDER / "prometheus.yml"
    assert list(tmp_path.iterdir()) == []
