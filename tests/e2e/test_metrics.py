"""vLLM's own metrics of real engines, where its benchmark and its users look for them."""

from __future__ import annotations

from pathlib import Path

from bench.load.servers import Server
from cluster.observability.dashboard import queries
from tests.e2e.conftest import QUESTION
from tests.support.api import Api
from tests.support.dashboards import observed, without_series
from tests.support.scrape import Line, parsed, total

ASKED = {"prompt": QUESTION, "mode": "manual", "power": 10, "max_tokens": 16, "spec": {"k": 3}}


def metrics(api: Api) -> list[Line]:
    return parsed(api.get("/metrics").text)


def test_the_counts_of_vllm_are_there_when_the_answer_is(api: Api) -> None:
    before = metrics(api)
    answer = api.infer(**ASKED)
    after = metrics(api)

    def grown(name: str) -> float:
        return total(after, name, tier="eco") - total(before, name, tier="eco")

    told = answer.one("metrics")
    assert grown("vllm:generation_tokens_total") == told["completion_tokens"]
    assert grown("vllm:prompt_tokens_total") == told["prompt_tokens"]
    assert grown("vllm:request_success_total") == 1
    assert grown("vllm:time_to_first_token_seconds_count") == 1
    assert grown("power_lever_completion_tokens_total") == told["completion_tokens"]


def test_the_dashboard_finds_vllms_series(api: Api, server: Server, tmp_path: Path) -> None:
    with observed(server, tmp_path) as prometheus:
        assert without_series(prometheus, queries(needs_vllm=True), lambda: api.infer(**ASKED)) == []
        assert prometheus.query('vllm:generation_tokens_total{tier="eco"}') != []
