"""Nothing that began is lost: 32 streams across a scale-in, a new version, a node that is taken away with notice."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.profiles import merge
from tests.integration.gpu_nodes.conftest import ELSEWHERE, MAIN
from tests.support.api import Answer, Api
from tests.support.gpu_cluster import GpuCluster
from tests.support.many_streams import Streams

BALANCED = {"mode": "manual", "power": 40}
ALL = 32
START_S = 120.0


def running(api: Api) -> int:
    count: int = api.tier("balanced")["replicas"]["running"]
    return count


def asked(count: int, tokens: int) -> list[dict[str, Any]]:
    return [{"prompt": f"{n} stub:tokens={tokens}", "max_tokens": tokens, **BALANCED} for n in range(count)]


def assert_whole(answers: list[Answer], tokens: int) -> None:
    for answer in answers:
        assert answer.kinds[-1] == "done", answer.events[-1]
        assert len(answer.all("token")) == tokens


@pytest.fixture
def streams(cluster: GpuCluster, api: Api) -> Streams:
    """On three replicas, all of them under way."""
    streams = Streams(cluster.url)
    streams.start(asked(ALL, 1))
    api.wait_for(lambda api: running(api) == 3, START_S)
    streams.answers(START_S)
    return Streams(cluster.url)


def test_a_scale_in_finishes_what_it_takes_the_replicas_from(streams: Streams, api: Api) -> None:
    streams.start(asked(20, 100) + asked(4, 900))
    api.wait_for(lambda api: running(api) == 1, START_S)
    assert streams.under_way == 4
    answers = streams.answers(START_S)
    assert_whole(answers[:20], 100)
    assert_whole(answers[20:], 900)


def test_a_new_version_finishes_what_the_old_one_began_and_serves_what_comes(
    streams: Streams, api: Api, cluster: GpuCluster
) -> None:
    streams.start(asked(ALL, 600))
    api.wait_for(lambda api: api.tier("balanced")["requests"]["running"] >= 20, START_S)
    cluster.deploy({"/": merge(MAIN, {"stub": {"tokens_per_s": 40.0}}), "/elsewhere": ELSEWHERE})
    assert streams.under_way == ALL
    late = Streams(cluster.url)
    late.start(asked(4, 10))
    assert_whole(late.answers(START_S), 10)
    assert_whole(streams.answers(START_S), 600)


def test_a_node_that_is_taken_away_with_notice_finishes_its_streams_and_gets_no_new_ones(
    streams: Streams, api: Api, cluster: GpuCluster
) -> None:
    streams.start(asked(ALL, 600))
    api.wait_for(lambda api: api.tier("balanced")["requests"]["running"] >= 20, START_S)
    cluster.drain(next(iter(cluster.gpu_nodes())), deadline_s=90)
    late = Streams(cluster.url)
    late.start(asked(4, 10))
    assert_whole(late.answers(START_S), 10)
    assert_whole(streams.answers(START_S), 600)
