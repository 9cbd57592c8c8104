"""The dashboard and the alerts ask for series that exist. Whether they come out is tested on a running application."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cluster.observability.dashboard import ROWS, dashboard, queries
from cluster.observability.series import CATALOGUE, CODES, LABELS
from tests.support.dashboards import FOLDER, alert_expressions, selectors, shipped

FILE = Path(__file__).parents[4] / "cluster" / "observability" / "grafana" / "power-lever.json"
KNOWN = {series.in_ray: series for series in CATALOGUE}
PANELS = [panel for row in ROWS for panel in row.panels]


def test_the_file_is_what_the_code_makes() -> None:
    assert json.loads(FILE.read_text(encoding="utf-8")) == dashboard()


@pytest.mark.parametrize("promql", [*queries(needs_vllm=False), *alert_expressions()])
def test_a_query_asks_for_series_of_the_catalogue_and_for_no_approximate_sum(promql: str) -> None:
    names = [selector.partition("{")[0] for selector in selectors(promql)]
    assert names
    for name in names:
        series = KNOWN.get(name) or KNOWN[name.removesuffix("_bucket")]
        assert (series.kind == "histogram") == name.endswith("_bucket"), name


@pytest.mark.parametrize("promql", [*queries(needs_vllm=False), *alert_expressions()])
def test_a_query_names_labels_and_values_that_the_series_have(promql: str) -> None:
    for selector in selectors(promql):
        name, _, conditions = selector.partition("{")
        series = KNOWN.get(name) or KNOWN[name.removesuffix("_bucket")]
        for label, values in re.findall(r'(\w+)[=!]~?"([^"]*)"', conditions):
            assert label in series.labels
            assert set(values.split("|")) <= set(LABELS[label])
    for grouped in re.findall(r"\bby \(([^)]*)\)", promql):
        assert set(grouped.split(", ")) <= {"le", *(label for series in KNOWN.values() for label in series.labels)}


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_a_legend_shows_only_labels_that_its_query_keeps(panel: object) -> None:
    for query in next(each for each in PANELS if each is panel).queries:
        kept = {label for group in re.findall(r"\bby \(([^)]*)\)", query.promql) for label in group.split(", ")}
        assert set(re.findall(r"\{\{(\w+)\}\}", query.legend)) <= kept


def test_every_row_of_the_issue_is_there_and_panels_do_not_overlap() -> None:
    assert [row.title for row in ROWS][:5] == [
        "Traffic and tiers",
        "Latency",
        "Tokens and speculation",
        "Autoscaling",
        "Energy",
    ]
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_errors_that_alert_are_faults_of_ours() -> None:
    [listed] = re.findall(r'code=~"([^"]+)"', " ".join(alert_expressions()))
    ours = set(listed.split("|"))
    assert ours < set(CODES)
    assert not ours & {"ok", "client_left", "bad_request", "invalid_request", "overloaded", "stopping"}


def test_every_alert_says_what_is_wrong_and_what_to_do_and_has_a_test() -> None:
    alerts = [rule for group in shipped("rules.yaml")["groups"] for rule in group["rules"]]
    tested = {
        test["alertname"]
        for each in shipped("rules_test.yaml")["tests"]
        for test in each["alert_rule_test"]
        if test["exp_alerts"]
    }
    assert {alert["alert"] for alert in alerts} == tested
    for alert in alerts:
        assert set(alert["annotations"]) == {"summary", "description"}
        assert alert["labels"]["severity"] in ("warning", "critical")
    assert FOLDER.joinpath(shipped("prometheus.yml")["rule_files"][0]).is_file()
