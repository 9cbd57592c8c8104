"""`make observe`: Prometheus with our rules beside a running application; and Grafana with our dashboard, if installed.

Nothing is downloaded. Both listen on 127.0.0.1, keep their data in a folder that is removed, and end on Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import yaml

from router.application_key import application_key
from router.errors import ConfigError

HERE: Final = Path(__file__).parent
CONFIG: Final = HERE / "prometheus" / "prometheus.yml"
OUR_JOB: Final = "power-lever"
"""Name of the job that scrapes the application, which may ask for a key."""
HOST: Final = "127.0.0.1"
PROMETHEUS_PORT: Final = 9090
GRAFANA_PORT: Final = 3000
NO_PROMETHEUS: Final = (
    "Prometheus is not installed. On Debian and Ubuntu: `apt-get install prometheus`; else put its binary from "
    "https://prometheus.io/download/ on PATH. Then `make observe` again."
)
NO_GRAFANA: Final = (
    "Grafana is not installed (grafana-server is not on PATH): Prometheus alone. Elsewhere, import "
    f"{HERE / 'grafana' / 'power-lever.json'}."
)
_READY_WITHIN_S: Final = 30.0
_STOP_WITHIN_S: Final = 10.0
_GRAFANA_HOMES: Final = ("/usr/share/grafana", "/opt/grafana")
_SOURCES: Final = """\
apiVersion: 1
datasources:
  - {{name: Prometheus, type: prometheus, access: proxy, url: "{url}", isDefault: true}}
"""
_DASHBOARDS: Final = """\
apiVersion: 1
providers:
  - name: power-lever
    type: file
    options: {{path: {folder}}}
"""


def prometheus_config(data: Path, env: Mapping[str, str]) -> Path:
    """Return the configuration of Prometheus: the shipped one, or a copy that sends the key of the environment.

    Args:
        data: folder for the copy, and for a file with the key, which only its owner may read.
        env: of this process; POWER_LEVER_KEY is read.

    Raises:
        ConfigError: it can be no key.
    """
    key = application_key(env)
    if not key:
        return CONFIG
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    key_file = data / "key"
    key_file.touch(mode=0o600)
    key_file.write_text(key, encoding="utf-8")
    for job in config["scrape_configs"]:
        if job["job_name"] == OUR_JOB:
            job["authorization"] = {"credentials_file": str(key_file)}
    config["rule_files"] = [str(CONFIG.parent / name) for name in config["rule_files"]]
    copy = data / CONFIG.name
    copy.write_text(yaml.safe_dump(config), encoding="utf-8")
    return copy


def prometheus_command(program: str, config: Path, data: Path, port: int) -> list[str]:
    """Return the command line of Prometheus with a configuration."""
    return [
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={data}",
        f"--web.listen-address={HOST}:{port}",
        "--log.level=warn",
    ]


def grafana_command(program: str, data: Path, source: str, env: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment of Grafana with our dashboard; anybody on this machine may look.

    Args:
        program: of grafana-server.
        data: folder for its files; the provisioning is written there.
        source: address of Prometheus.
        env: of this process.
    """
    sources, boards = data / "provisioning" / "datasources", data / "provisioning" / "dashboards"
    for folder in (sources, boards):
        folder.mkdir(parents=True)
    (sources / "power-lever.yaml").write_text(_SOURCES.format(url=source), encoding="utf-8")
    (boards / "power-lever.yaml").write_text(_DASHBOARDS.format(folder=HERE / "grafana"), encoding="utf-8")
    command = [program]
    if home := next((home for home in _GRAFANA_HOMES if Path(home).is_dir()), None):
        command.append(f"--homepath={home}")
    return command, {
        **env,
        "GF_PATHS_DATA": str(data),
        "GF_PATHS_LOGS": str(data / "logs"),
        "GF_PATHS_PROVISIONING": str(data / "provisioning"),
        "GF_SERVER_HTTP_ADDR": HOST,
        "GF_SERVER_HTTP_PORT": str(GRAFANA_PORT),
        "GF_AUTH_ANONYMOUS_ENABLED": "true",
        # Grafana looks for updates and sends statistics unless it is told not to.
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
        "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
        "GF_PLUGINS_PREINSTALL_DISABLED": "true",
        "GF_LOG_LEVEL": "error",
    }


def main(arguments: Sequence[str] | None = None, env: Mapping[str, str] = os.environ) -> int:
    """Run until Ctrl-C or SIGTERM; return the exit code: 1 if Prometheus is not there or does not start."""
    parser = argparse.ArgumentParser(prog="make observe", description="Prometheus, and Grafana if it is installed.")
    parser.add_argument("--port", type=int, default=PROMETHEUS_PORT, help="of Prometheus, on 127.0.0.1")
    port = parser.parse_args(arguments).port
    try:
        application_key(env)
    except ConfigError as error:
        return _failed(f"error: {error}")
    address = f"http://{HOST}:{port}"
    prometheus = shutil.which("prometheus", path=env.get("PATH"))
    if prometheus is None:
        return _failed(NO_PROMETHEUS)
    if _is_taken(port):
        return _failed(f"Port {port} is taken: is Prometheus running already? {address}")
    for number in (signal.SIGINT, signal.SIGTERM):  # a job in the background is started with SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as stack:
        data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="power-lever-observe-")))
        config = prometheus_config(data, env)
        started = [_start(stack, prometheus_command(prometheus, config, data / "prometheus", port), env)]
        if not _wait_ready(started[0], f"{address}/-/ready"):
            return _failed("Prometheus did not start; its reason is above.")
        print(f"Prometheus  {address}  (alerts: {address}/alerts, what it scrapes: {address}/targets)")
        if grafana := shutil.which("grafana-server", path=env.get("PATH")):
            started.append(_start(stack, *grafana_command(grafana, data / "grafana", address, env)))
            print(f"Grafana     http://{HOST}:{GRAFANA_PORT}/d/power-lever")
        else:
            print(NO_GRAFANA)
        print(
            "It scrapes Ray's metrics ports and http://localhost:8000/metrics: start `make serve` in another terminal."
        )
        print("Ctrl-C stops.", flush=True)
        while all(process.poll() is None for process in started):
            time.sleep(0.5)
        return _failed("A program ended by itself; its reason is above.")
    return 0


def _start(stack: contextlib.ExitStack, command: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # Its own session: Ctrl-C in the terminal reaches this process only, which then stops it.
    process = subprocess.Popen(command, env=dict(env), stdin=subprocess.DEVNULL, start_new_session=True)
    stack.callback(_stop, process)
    return process


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_ready(process: subprocess.Popen[bytes], url: str) -> bool:
    deadline_s = time.monotonic() + _READY_WITHIN_S
    while process.poll() is None and time.monotonic() < deadline_s:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=1):
            return True
        time.sleep(0.1)
    return False


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def _failed(reason: str) -> int:
    print(reason, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
