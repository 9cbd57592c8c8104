"""What a running application shows to Prometheus: totals at `/metrics`, and every series at Ray's ports.

Near the end: it kills an ingress replica.
"""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

from bench.load.processes import command_of
from bench.load.servers import Server
from cluster.observability.dashboard import queries
from cluster.observability.series import CATALOGUE, GPU_ENERGY, LABELS, Series
from tests.support.api import PATIENCE_S, Api
from tests.support.dashboards import alert_expressions, observed, selectors, without_series
from tests.support.scrape import Line, parsed, scrape_ray, total

ASKED = {"prompt": "What is the capital of France? stub:tokens=5", "mode": "manual", "power": 10}
LIMITED = ASKED | {"constraints": {"max_cost_usd": 1e-12}}
POOR_DRAFT = {"prompt": "x stub:tokens=120", "mode": "manual", "power": 90, "max_tokens": 200}
REQUESTS = "power_lever_requests_total"
HERE = [series for series in CATALOGUE if series != GPU_ENERGY]
"""Without what only a GPU has."""
REQUESTS_OF_BOTH = 20
"""So many requests in a row reach both ingress replicas, but for one time in 500,000."""
RAYS_LABELS = {"Component", "NodeAddress", "SessionName", "Version", "WorkerId", "le"}
RAYS_PREFIX = "otel_scope_"


def metrics(api: Api) -> list[Line]:
    response = api.get("/metrics")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return parsed(response.text)


def sample_name(series: Series) -> str:
    return series.name + ("_count" if series.kind == "histogram" else "")


def ingress_processes(server: Server) -> set[int]:
    name = "ray::ServeReplica:power-lever-tight:ingress"
    return {process.pid for process in server.processes() if command_of(process).startswith(name)}


def test_totals_are_those_of_both_ingress_replicas_at_once_whichever_is_asked(tight: Api) -> None:
    before = total(metrics(tight), REQUESTS, code="ok", route="/api/inference")
    tokens = total(metrics(tight), "power_lever_completion_tokens_total")
    for number in range(1, REQUESTS_OF_BOTH + 1):
        assert tight.infer(**ASKED).kinds[-1] == "done"
        seen = metrics(tight)
        assert total(seen, REQUESTS, code="ok", route="/api/inference") == before + number
        assert total(seen, "power_lever_completion_tokens_total") == tokens + 5 * number
        assert total(seen, "gen_ai_server_time_to_first_token_seconds_count") == total(
            seen, "gen_ai_server_time_per_output_token_seconds_count"
        )


def test_an_error_counts_by_its_code(tight: Api) -> None:
    before = total(metrics(tight), REQUESTS, code="body_too_large")
    assert tight.post("/api/inference", {"prompt": "x" * 3000}).status_code == 413
    assert total(metrics(tight), REQUESTS, code="body_too_large", tier="none") == before + 1


def test_totals_do_not_fall_when_an_ingress_replica_dies(tight: Api, server: Server) -> None:
    for _ in range(5):
        tight.infer(**ASKED)
    before = total(metrics(tight), REQUESTS)
    processes = ingress_processes(server)
    assert len(processes) == 2
    os.kill(min(processes), signal.SIGKILL)
    tight.wait_for(lambda api: len(ingress_processes(server) - {min(processes)}) == 2 and api.get("/readyz").is_success)
    tight.wait_for(lambda api: api.get("/metrics").is_success)
    assert total(metrics(tight), REQUESTS) >= before
    now = total(metrics(tight), REQUESTS, code="ok")
    assert tight.infer(**ASKED).kinds[-1] == "done"
    assert total(metrics(tight), REQUESTS, code="ok") == now + 1


def test_every_series_of_the_catalogue_comes_out_with_its_labels_here_and_at_rays_ports(
    api: Api, tight: Api, broken: Api, planning: Api, server: Server
) -> None:
    # There alone is a tier with another model, which should go on.
    loops = {"prompt": "x stub:loop=0 stub:tokens=400", "mode": "manual", "power": 10, "escalate": "advise"}
    assert planning.infer(**loops).one("metrics")["escalation"]["applied"] is False
    # It wakes, and goes again: a change of scale.
    assert tight.infer(**ASKED | {"power": 70}).one("config")["tier"] == "performance"
    assert api.infer(**LIMITED).kinds[-1] == "done"
    assert broken.infer(**POOR_DRAFT).kinds[-1] == "done"
    lost = api.infer(prompt="x stub:die=2", mode="manual", power=95, max_tokens=8)  # its first replica
    assert lost.kinds[-1] == "done"
    here: dict[str, Line] = {}
    there: dict[str, Line] = {}

    def missing() -> list[str]:
        here.update({line.name: line for line in metrics(broken) + metrics(api) + metrics(planning)})
        there.update({line.name: line for line in scrape_ray(server)})
        names = [f"ray_{sample_name(series)}" for series in HERE if f"ray_{sample_name(series)}" not in there]
        return names + [series.name for series in HERE if series.in_metrics and sample_name(series) not in here]

    began_s = time.monotonic()
    while absent := missing():
        assert time.monotonic() - began_s < PATIENCE_S, absent
        time.sleep(1)
    for series in HERE:
        line = there["ray_" + sample_name(series)]
        labels = {name for name in line.labels if name not in RAYS_LABELS and not name.startswith(RAYS_PREFIX)}
        assert labels == set(series.labels), series.name
        assert all(line.labels[label] in LABELS[label] for label in series.labels), line
        if series.in_metrics:
            assert set(here[sample_name(series)].labels) == set(series.labels), series.name


def test_every_query_of_the_dashboard_and_of_the_alerts_finds_its_series_in_a_real_prometheus(
    api: Api, tight: Api, broken: Api, server: Server, tmp_path: Path
) -> None:
    def traffic() -> None:
        assert api.infer(**LIMITED).kinds[-1] == "done"
        assert broken.infer(**POOR_DRAFT).kinds[-1] == "done"
        assert tight.post("/v1/chat/completions", {"model": "gpt-9", "messages": []}).status_code == 404

    # An alert is not to fire: what it looks at is to be there.
    looked_at = [each for promql in alert_expressions() for each in selectors(promql) if "engine_failed" not in each]
    with observed(server, tmp_path) as prometheus:
        assert without_series(prometheus, [*queries(needs_vllm=False), *looked_at], traffic) == []
        assert set(prometheus.targets().values()) == {"up"}
        assert set(prometheus.rules().values()) == {"ok"}


def test_nothing_of_a_request_is_in_a_label(api: Api, server: Server) -> None:
    secret = "zebra-crossing-4711"
    api.post_as(
        "/api/inference", ASKED | {"prompt": secret}, {"x-request-id": secret, "authorization": f"Bearer {secret}"}
    )
    text = api.get("/metrics").text
    ours = [line for line in scrape_ray(server) if re.match(r"ray_(power_lever|gen_ai)_", line.name)]
    assert ours
    assert secret not in text + repr(ours)


def test_each_replica_is_counted_once_at_rays_ports(tight: Api, server: Server) -> None:
    # A series that no other test of the suite adds to: all its applications share Ray's ports.
    def counted() -> float:
        lines = scrape_ray(server)
        return total(lines, "ray_power_lever_requests_total", code="model_not_found", route="/v1/responses")

    before = counted()
    for _ in range(REQUESTS_OF_BOTH):
        assert tight.post("/v1/responses", {"model": "gpt-9", "input": "Hi"}).status_code == 404
    tight.wait_for(lambda _: counted() >= before + REQUESTS_OF_BOTH)
    assert counted() == before + REQUESTS_OF_BOTH
