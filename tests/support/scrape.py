"""What an application under test shows to Prometheus."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from bench.load.servers import Server

DISCOVERY = "prom_metrics_service_discovery.json"
"""Ray's list of its metrics ports, in the form of Prometheus's `file_sd_configs`."""


@dataclass(frozen=True, slots=True)
class Line:
    """One sample."""

    name: str
    labels: dict[str, str]
    value: float


def scrape(url: str) -> list[Line]:
    """All samples at an address."""
    with urllib.request.urlopen(url, timeout=30) as response:
        return parsed(response.read().decode())


def parsed(text: str) -> list[Line]:
    """The samples of an exposition."""
    return [
        Line(sample.name, dict(sample.labels), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


def ray_ports(server: Server) -> list[str]:
    """`host:port` of the metrics ports of a server's own Ray."""
    assert server.scratch is not None
    listed = json.loads((server.scratch / "ray" / DISCOVERY).read_text())
    return [target for entry in listed for target in entry["targets"]]


def scrape_ray(server: Server) -> list[Line]:
    """All samples at Ray's metrics ports."""
    return [line for port in ray_ports(server) for line in scrape(f"http://{port}/metrics")]


def total(lines: Iterable[Line], name: str, **labels: str) -> float:
    """The sum of the samples with this name and these labels among others."""
    return sum(line.value for line in lines if line.name == name and labels.items() <= line.labels.items())
