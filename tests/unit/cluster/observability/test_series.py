"""The catalogue follows the conventions, and has what the code can say."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics

from cluster.autoscaling import PUBLISHED, Reason, Signals
from cluster.observability.series import CATALOGUE, CODES, LABELS, ROUTES, SCALING_GAUGES, Series
from router.needs import NoTierError

ROOT = Path(__file__).parents[4]
UNITS = {"s": "seconds", "J": "joules", "L": "liters", "g": "grams", "USD": "usd", "0-1": "ratio"}
"""Suffix of a name (before `_total`) by unit; counts have none."""
by_name = pytest.mark.parametrize("series", CATALOGUE, ids=lambda series: series.name)


@by_name
def test_a_name_ends_with_its_base_unit_and_only_a_counter_in_total(series: Series) -> None:
    assert series.name.endswith("_total") == (series.kind == "counter")
    if series.unit in UNITS:
        assert series.name.removesuffix("_total").endswith(f"_{UNITS[series.unit]}")
    assert not re.search(r"_(ms|milliseconds|wh|kwh|percent)(_|$)", series.name)


@by_name
def test_every_label_has_a_closed_set_of_values_and_nothing_of_a_request(series: Series) -> None:
    assert set(series.labels) <= set(LABELS)
    combinations = 1
    for label in series.labels:
        combinations *= len(LABELS[label])
    assert combinations < 10_000


@by_name
def test_only_a_histogram_has_buckets_and_they_rise(series: Series) -> None:
    assert bool(series.buckets) == (series.kind == "histogram")
    assert list(series.buckets) == sorted(set(series.buckets))


def test_names_are_there_once() -> None:
    names = [series.name for series in CATALOGUE]
    assert len(set(names)) == len(names)


def test_what_opentelemetry_has_a_name_for_has_that_name() -> None:
    theirs = {
        f"{name.replace('.', '_')}{unit}"
        for name, unit in (
            (gen_ai_metrics.GEN_AI_SERVER_REQUEST_DURATION, "_seconds"),
            (gen_ai_metrics.GEN_AI_SERVER_TIME_TO_FIRST_TOKEN, "_seconds"),
            (gen_ai_metrics.GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN, "_seconds"),
            (gen_ai_metrics.GEN_AI_CLIENT_TOKEN_USAGE, ""),
        )
    }
    assert {series.name for series in CATALOGUE if series.name.startswith("gen_ai")} == theirs


def test_every_error_code_of_the_source_is_a_value_of_the_label() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "serve_app").rglob("*.py")))
    calls = re.findall(r"(?:ApiError|EngineError|Failure|bad_request)\(\s*\"([a-z_]+)\"", text)
    named = re.findall(r"\bcode=\"([a-z_]+)\"", text)
    # Of routes that are not counted.
    elsewhere = {"not_found", "method_not_allowed", "no_choice"}
    codes = set(calls) | set(named)
    assert len(codes) > 15
    assert codes - elsewhere - set(CODES) == set()
    assert set(re.findall(r'"([a-z_]+)"', str(NoTierError.__init__.__annotations__["code"]))) <= set(CODES)


def test_every_reason_of_scaling_is_a_value_of_the_label() -> None:
    assert LABELS["reason"] == tuple(Reason)


def test_every_signal_of_scaling_has_a_gauge() -> None:
    assert set(PUBLISHED) == set(SCALING_GAUGES) - {"wanted", "ttft_target_ms"}
    assert set(PUBLISHED) - {"offered_load", "cold_start_s"} <= {each.name for each in fields(Signals)}


def test_every_route_that_answers_prompts_is_counted() -> None:
    from serve_app.api.ingress import _V1

    assert set(ROUTES) == {"/api/inference", *_V1}
