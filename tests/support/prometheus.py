"""A real Prometheus for tests, on loopback, with its data in a folder of the test."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from bench.load.client import HOST
from bench.load.servers import free_port
from tests.support.api import PATIENCE_S
from tests.support.tools import program


class Prometheus:
    """A running Prometheus."""

    def __init__(self, port: int) -> None:
        self._url = f"http://{HOST}:{port}"

    def query(self, promql: str) -> list[dict[str, Any]]:
        """The series of an instant query."""
        result: list[dict[str, Any]] = self._get("/api/v1/query", query=promql)["result"]
        return result

    def targets(self) -> dict[str, str]:
        """By address: `up`, or what went wrong."""
        active = self._get("/api/v1/targets")["activeTargets"]
        return {each["scrapeUrl"]: each["lastError"] or each["health"] for each in active}

    def rules(self) -> dict[str, str]:
        """By alert: its health, or what went wrong."""
        groups = self._get("/api/v1/rules")["groups"]
        return {rule["name"]: rule.get("lastError") or rule["health"] for group in groups for rule in group["rules"]}

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self._url}/-/ready", timeout=5):
            return True
        return False

    def _get(self, path: str, **arguments: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self._url}{path}?{urllib.parse.urlencode(arguments)}", timeout=30) as response:
            data: dict[str, Any] = json.load(response)["data"]
        return data


@contextlib.contextmanager
def prometheus(config: dict[str, Any], folder: Path) -> Iterator[Prometheus]:
    """Prometheus with a configuration. Skips the test where it is not installed."""
    binary = program("prometheus", package="prometheus")
    port = free_port()
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    address = f"--web.listen-address={HOST}:{port}"
    command = [str(binary), f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}", address]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            running, began_s = Prometheus(port), time.monotonic()
            while not running.is_ready():
                assert process.poll() is None, (folder / "prometheus.log").read_text()
                assert time.monotonic() - began_s < PATIENCE_S
                time.sleep(0.1)
            yield running
        finally:
            process.terminate()
            process.wait()
