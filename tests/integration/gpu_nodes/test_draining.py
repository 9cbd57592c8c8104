"""Replicas and nodes follow demand, and nothing that began is lost: 32 streams across a scale-out and a scale-in, a new
version, and a node that is taken away with notice.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.integration.gpu_nodes.conftest import applications, types
from tests.support.api import PATIENCE_S, Api
from tests.support.gpu_cluster import GpuCluster
from tests.support.many_streams import Streams

ALL = 32
MAX_TOKENS = 8000
"""Of a stream that a test ends: more than any has by then."""

LEAVING = {"PENDING_MIGRATION", "STOPPING"}
"""Serve's states of a replica that goes when its streams have ended."""


def running(api: Api) -> int:
    count: int = api.tier("balanced")["replicas"]["running"]
    return count


def requests(*ends: Path) -> Iterator[dict[str, Any]]:
    """A request each whose answer ends when that file exists."""
    for number, end in enumerate(ends):
        yield {"prompt": f"{number} stub:until={end}", "max_tokens": MAX_TOKENS, "mode": "manual", "power": 40}


def one_leaves(cluster: GpuCluster) -> bool:
    """Whether Serve sends a replica no new requests any more, and waits for its streams."""
    return not LEAVING.isdisjoint(cluster.replica_states("power-lever", "balanced"))


def on_three_replicas(api: Api, cluster: GpuCluster, *ends: Path) -> Streams:
    """Streams under way, each until its file exists; more of them than two replicas take."""
    streams = Streams(api.base_url)
    streams.start(list(requests(*ends)))
    api.wait_for(lambda api: running(api) == 3 and not one_leaves(cluster))
    return streams


def assert_whole(streams: Streams) -> None:
    """All end by themselves, with as many tokens as the engine made."""
    for answer in streams.answers(PATIENCE_S):
        assert answer.kinds[-1] == "done", answer.events[-1]
        metrics = answer.one("metrics")
        assert len(answer.all("token")) == metrics["completion_tokens"] > 0
        assert metrics["finish_reason"] == "stop"


def late_ones(url: str) -> Streams:
    """Some more streams, of ten tokens each."""
    streams = Streams(url)
    streams.start([{"prompt": f"{number} stub:tokens=10", "mode": "manual", "power": 40} for number in range(4)])
    return streams


def assert_served(late: Streams) -> None:
    assert_whole(late)
    assert [len(answer.all("token")) for answer in late.answers(0)] == [10] * 4


def test_load_scales_out_and_a_scale_in_finishes_the_streams_of_the_replicas_that_it_takes(
    api: Api, cluster: GpuCluster, tmp_path: Path
) -> None:
    # Every eighth stream goes on, so that they are on all replicas. Four of them leave a replica free, also with the
    # headroom that the policy keeps for a burst such as the one that these streams are.
    short, long = tmp_path / "short", tmp_path / "long"
    streams = on_three_replicas(api, cluster, *[*[short] * 7, long] * (ALL // 8))
    assert types(api) == {"A10G": 3}
    assert streams.under_way == ALL
    short.touch()
    api.wait_for(lambda api: running(api) < 3)
    assert streams.under_way >= 3
    long.touch()
    assert_whole(streams)


def test_a_new_version_finishes_the_streams_of_the_old_one_and_serves_new_ones(
    api: Api, cluster: GpuCluster, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    streams = on_three_replicas(api, cluster, *[end] * ALL)
    cluster.deploy(applications(stub={"tokens_per_s": 40.0}))
    api.wait_for(lambda _: one_leaves(cluster))
    late = late_ones(cluster.url)
    assert streams.under_way == ALL
    end.touch()  # the old replicas hold all cards
    assert_served(late)
    assert_whole(streams)


def test_a_node_that_is_taken_away_with_notice_finishes_its_streams_and_gets_no_new_ones(
    api: Api, cluster: GpuCluster, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    streams = on_three_replicas(api, cluster, *[first, second] * (ALL // 2))
    cluster.drain(next(iter(cluster.gpu_nodes())), deadline_s=90)
    api.wait_for(lambda _: one_leaves(cluster))
    assert streams.under_way == ALL
    first.touch()
    assert_served(late_ones(cluster.url))
    assert streams.under_way == ALL // 2
    second.touch()
    assert_whole(streams)


def test_an_idle_application_gives_back_all_nodes_also_after_a_new_version(api: Api, cluster: GpuCluster) -> None:
    # The ingress and the pool view of the new version were started while there were GPU nodes.
    api.wait_for(lambda api: running(api) == 0)
    api.wait_for(lambda api: types(api) == {})
    assert cluster.gpu_nodes() == {}
