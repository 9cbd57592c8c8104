"""Replicas and nodes follow demand, and nothing that began is lost: 32 streams across a scale-out and a scale-in, a new
version, and a node that is taken away with notice.
"""

from __future__ import annotations

from typing import Any

from tests.integration.gpu_nodes.conftest import IDLE_S, applications, types
from tests.support.api import Api
from tests.support.gpu_cluster import IDLE_MINUTES, NODE_UP_S, GpuCluster
from tests.support.many_streams import Streams

ALL = 32
SCALED_IN_S = 90.0
LONGEST_S = 240.0
"""Longer than any stream."""


def running(api: Api) -> int:
    count: int = api.tier("balanced")["replicas"]["running"]
    return count


def requests(lengths: list[int]) -> list[dict[str, Any]]:
    """A request of so many tokens each."""
    return [
        {"prompt": f"{number} stub:tokens={tokens}", "max_tokens": tokens, "mode": "manual", "power": 40}
        for number, tokens in enumerate(lengths)
    ]


def on_three_replicas(api: Api, lengths: list[int]) -> Streams:
    """Streams of so many tokens, under way; more of them than two replicas take."""
    streams = Streams(api.base_url)
    streams.start(requests(lengths))
    api.wait_for(lambda api: running(api) == 3, 2 * NODE_UP_S)
    return streams


def assert_whole(streams: Streams, lengths: list[int]) -> None:
    for answer, tokens in zip(streams.answers(LONGEST_S), lengths, strict=True):
        assert answer.kinds[-1] == "done", answer.events[-1]
        assert len(answer.all("token")) == tokens


def test_load_scales_out_and_a_scale_in_finishes_the_streams_of_the_replicas_that_it_takes(api: Api) -> None:
    # Every eighth stream is much longer, so that they are on all replicas. Four of them leave a replica free, also with
    # the headroom that the policy keeps for a burst such as the one that these streams are.
    lengths = [1200 if number % 8 == 7 else 300 for number in range(ALL)]
    streams = on_three_replicas(api, lengths)
    assert types(api) == {"A10G": 3}
    api.wait_for(lambda api: running(api) < 3, SCALED_IN_S)
    assert streams.under_way >= 3
    assert_whole(streams, lengths)


def test_a_new_version_finishes_the_streams_of_the_old_one_and_serves_new_ones(api: Api, cluster: GpuCluster) -> None:
    lengths = [1000] * ALL  # 50 s: a deploy takes 10 to 30 s
    streams = on_three_replicas(api, lengths)
    cluster.deploy(applications(stub={"tokens_per_s": 40.0}))
    assert streams.under_way >= 16
    late = Streams(cluster.url)
    late.start(requests([10] * 4))
    assert_whole(late, [10] * 4)
    assert_whole(streams, lengths)


def test_a_node_that_is_taken_away_with_notice_finishes_its_streams_and_gets_no_new_ones(
    api: Api, cluster: GpuCluster
) -> None:
    lengths = [1000] * ALL  # the new version is twice as fast
    streams = on_three_replicas(api, lengths)
    cluster.drain(next(iter(cluster.gpu_nodes())), deadline_s=90)
    late = Streams(cluster.url)
    late.start(requests([10] * 4))
    assert_whole(late, [10] * 4)
    assert_whole(streams, lengths)


def test_an_idle_application_gives_back_all_nodes_also_after_a_new_version(api: Api, cluster: GpuCluster) -> None:
    # The ingress and the pool view of the new version were started while there were GPU nodes.
    api.wait_for(lambda api: running(api) == 0, IDLE_S + 60)
    api.wait_for(lambda api: types(api) == {}, 60 * IDLE_MINUTES + 60)
    assert cluster.gpu_nodes() == {}
