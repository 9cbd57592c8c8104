"""Nothing that began is lost: 32 streams across a scale-in, a new version, a node that is taken away with notice."""

from __future__ import annotations

from typing import Any

from cluster.profiles.reading import merge
from tests.integration.gpu_nodes.conftest import ELSEWHERE, IDLE_S, MAIN, types
from tests.support.api import Answer, Api
from tests.support.gpu_cluster import IDLE_MINUTES, GpuCluster
from tests.support.many_streams import Streams

BALANCED = {"mode": "manual", "power": 40}
ALL = 32
START_S = 120.0
LONGEST_S = 240.0
"""Longer than any stream."""


def running(api: Api) -> int:
    count: int = api.tier("balanced")["replicas"]["running"]
    return count


def asked(count: int, tokens: int) -> list[dict[str, Any]]:
    return [{"prompt": f"{n} stub:tokens={tokens}", "max_tokens": tokens, **BALANCED} for n in range(count)]


def assert_whole(answers: list[Answer], tokens: int) -> None:
    for answer in answers:
        assert answer.kinds[-1] == "done", answer.events[-1]
        assert len(answer.all("token")) == tokens


def on_three_replicas(api: Api, lengths: list[int]) -> Streams:
    """Streams of so many tokens, under way; more of them than two replicas take."""
    streams = Streams(api.base_url)
    streams.start([body for tokens in lengths for body in asked(1, tokens)])
    api.wait_for(lambda api: running(api) == 3, START_S)
    return streams


def assert_all_whole(streams: Streams, lengths: list[int]) -> None:
    for answer, tokens in zip(streams.answers(LONGEST_S), lengths, strict=True):
        assert_whole([answer], tokens)


LONG = [900] * ALL


def test_a_scale_in_finishes_what_it_takes_the_replicas_from(api: Api) -> None:
    # Every eighth stream is much longer, so that they are on all replicas. Four of them leave a replica free, also with
    # the room that the policy keeps for a burst such as the one that these streams are.
    lengths = [2400 if number % 8 == 7 else 800 for number in range(ALL)]
    streams = on_three_replicas(api, lengths)
    api.wait_for(lambda api: running(api) < 3, START_S)
    assert streams.under_way >= 3
    assert_all_whole(streams, lengths)


def test_a_new_version_finishes_what_the_old_one_began_and_serves_what_comes(api: Api, cluster: GpuCluster) -> None:
    streams = on_three_replicas(api, LONG)
    cluster.deploy({"/": merge(MAIN, {"stub": {"tokens_per_s": 40.0}}), "/elsewhere": ELSEWHERE})
    assert streams.under_way >= 16
    late = Streams(cluster.url)
    late.start(asked(4, 10))
    assert_all_whole(late, [10] * 4)
    assert_all_whole(streams, LONG)


def test_a_node_that_is_taken_away_with_notice_finishes_its_streams_and_gets_no_new_ones(
    api: Api, cluster: GpuCluster
) -> None:
    streams = on_three_replicas(api, LONG)
    cluster.drain(next(iter(cluster.gpu_nodes())), deadline_s=90)
    late = Streams(cluster.url)
    late.start(asked(4, 10))
    assert_all_whole(late, [10] * 4)
    assert_all_whole(streams, LONG)


def test_what_a_new_version_started_keeps_no_gpu_node_from_going(api: Api, cluster: GpuCluster) -> None:
    # The ingress and the pool view of the new version were started while there were GPU nodes.
    api.wait_for(lambda api: types(api) == {}, IDLE_S + 60 * IDLE_MINUTES + 60)
    assert cluster.gpu_nodes() == {}
