"""Replicas and nodes follow demand, and nothing that began is lost: 32 streams across a scale-out and a scale-in, a new
version, and a node that is taken away with notice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from tests.integration.gpu_nodes.conftest import applications, types
from tests.support.api import PATIENCE_S, Api
from tests.support.gpu_cluster import GpuCluster
from tests.support.many_streams import Streams

ALL = 32
LONGEST_S = 240.0 + PATIENCE_S
"""Longer than any stream."""


def running(api: Api) -> int:
    count: int = api.tier("balanced")["replicas"]["running"]
    return count


def requests(lengths: Iterable[int]) -> Iterator[dict[str, Any]]:
    """A request of so many tokens each."""
    for number, tokens in enumerate(lengths):
        yield {"prompt": f"{number} stub:tokens={tokens}", "max_tokens": tokens, "mode": "manual", "power": 40}


def on_three_replicas(api: Api, lengths: Iterable[int]) -> Streams:
    """Streams of so many tokens, under way; more of them than two replicas take.

    For each that ends before the third replica runs, another one begins, however long that takes.
    """
    streams, more = Streams(api.base_url), requests(lengths)
    streams.start(list(itertools.islice(more, ALL)))

    def run(api: Api) -> bool:
        if ended := ALL - streams.under_way:
            streams.start(list(itertools.islice(more, ended)))
        return running(api) == 3

    api.wait_for(run)
    return streams


def assert_whole(streams: Streams) -> None:
    for answer, body in zip(streams.answers(LONGEST_S), streams.bodies, strict=True):
        assert answer.kinds[-1] == "done", answer.events[-1]
        assert len(answer.all("token")) == body["max_tokens"]


def test_load_scales_out_and_a_scale_in_finishes_the_streams_of_the_replicas_that_it_takes(api: Api) -> None:
    # Every eighth stream is much longer, so that they are on all replicas. Four of them leave a replica free, also with
    # the headroom that the policy keeps for a burst such as the one that these streams are.
    streams = on_three_replicas(api, itertools.cycle([300] * 7 + [1200]))
    assert types(api) == {"A10G": 3}
    api.wait_for(lambda api: running(api) < 3)
    assert streams.under_way >= 3
    assert_whole(streams)


def test_a_new_version_finishes_the_streams_of_the_old_one_and_serves_new_ones(api: Api, cluster: GpuCluster) -> None:
    streams = on_three_replicas(api, itertools.repeat(1000))  # 50 s: a deploy takes 10 to 30 s
    cluster.deploy(applications(stub={"tokens_per_s": 40.0}))
    assert streams.under_way >= 16
    late = Streams(cluster.url)
    late.start(list(requests([10] * 4)))
    assert_whole(late)
    assert_whole(streams)


def test_a_node_that_is_taken_away_with_notice_finishes_its_streams_and_gets_no_new_ones(
    api: Api, cluster: GpuCluster
) -> None:
    streams = on_three_replicas(api, itertools.repeat(1000))  # the new version is twice as fast: 25 s
    cluster.drain(next(iter(cluster.gpu_nodes())), deadline_s=90)
    late = Streams(cluster.url)
    late.start(list(requests([10] * 4)))
    assert_whole(late)
    assert_whole(streams)


def test_an_idle_application_gives_back_all_nodes_also_after_a_new_version(api: Api, cluster: GpuCluster) -> None:
    # The ingress and the pool view of the new version were started while there were GPU nodes.
    api.wait_for(lambda api: running(api) == 0)
    api.wait_for(lambda api: types(api) == {})
    assert cluster.gpu_nodes() == {}
