"""The shipped Prometheus configuration, rules and dashboard on the metrics of a server under test."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from bench.load.client import HOST
from bench.load.servers import Server
from bench.reporting.report import REPOSITORY
from cluster.observability.dashboard import RATE_WINDOW
from tests.support.api import PATIENCE_S
from tests.support.prometheus import Prometheus, prometheus
from tests.support.scrape import DISCOVERY

FOLDER: Final = REPOSITORY / "cluster" / "observability" / "prometheus"
_WINDOW: Final = "1m"


def shipped(file: str) -> dict[str, Any]:
    """One of the shipped YAML files."""
    content: dict[str, Any] = yaml.safe_load((FOLDER / file).read_text(encoding="utf-8"))
    return content


def alert_expressions() -> list[str]:
    """The PromQL of each alert."""
    return [rule["expr"] for group in shipped("rules.yaml")["groups"] for rule in group["rules"]]


@contextlib.contextmanager
def observed(server: Server, folder: Path) -> Iterator[Prometheus]:
    """Prometheus as `make observe` starts it, but that it looks at this server, and every two seconds."""
    assert server.scratch is not None
    config = shipped("prometheus.yml")
    # A scrape may take as long: Ray's agent took more than a second for the series of five applications.
    config["global"] = {"scrape_interval": "2s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(FOLDER / name) for name in config["rule_files"]]
    ray, ours = config["scrape_configs"]
    ray["file_sd_configs"][0]["files"] = [str(server.scratch / "ray" / DISCOVERY)]
    ours["static_configs"][0]["targets"] = [f"{HOST}:{server.port}"]
    with prometheus(config, folder) as running:
        yield running


def without_series(running: Prometheus, expressions: list[str], traffic: Callable[[], object]) -> list[str]:
    """Those that give no series, however long one waits while there is traffic."""
    began_s, left = time.monotonic(), expressions
    while left and time.monotonic() - began_s < PATIENCE_S:
        traffic()
        left = [promql for promql in left if not running.query(promql.replace(RATE_WINDOW, _WINDOW))]
        time.sleep(1)
    return left


def selectors(promql: str) -> list[str]:
    """The selectors of series in PromQL, each with its labels."""
    return re.findall(r"ray_\w+(?:\{[^}]*\})?", promql)
