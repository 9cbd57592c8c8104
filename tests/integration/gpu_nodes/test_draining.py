"""Replicas and nodes follow demand, and nothing that began is lost: 32 streams across a scale-out and a scale-in, a new
version, and a node that is taken away with notice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from tests.integration.gpu_nodes.conftest import applications, types
from tests.support.api import PATIENCE_S, Api
from tests.support.gpu_cluster import GpuCluster
from tests.support.many_streams import Streams

ALL: Final = 32
TOKENS: Final = 8000
"""Most of a stream that the test ends: longer than it waits for anything."""
LONGEST_S: Final = 240.0 + PATIENCE_S
"""Longer than any stream."""


def running(api: Api) -> int:
    count: int = api.tier("balanced")["replicas"]["running"]
    return count


def request(prompt: str, tokens: int) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": tokens, "mode": "manual", "power": 40}


def on_three_replicas(api: Api, ends: Iterable[Path]) -> Streams:
    """Streams under way, more of them than two replicas take. Each ends soon after its file is there."""
    streams = Streams(api.base_url)
    held = enumerate(itertools.islice(ends, ALL))
    streams.start([request(f"{number} stub:until={end}", TOKENS) for number, end in held])
    api.wait_for(lambda api: running(api) == 3)
    assert streams.under_way == ALL
    return streams


def assert_new_ones_are_served(url: str) -> None:
    late = Streams(url)
    late.start([request(str(number), 10) for number in range(4)])
    assert_whole(late)


def assert_whole(streams: Streams) -> None:
    for answer in streams.answers(LONGEST_S):
        assert answer.kinds[-1] == "done", answer.events[-1]
        assert len(answer.all("token")) == answer.one("metrics")["completion_tokens"] > 0


def test_load_scales_out_and_a_scale_in_finishes_the_streams_of_the_replicas_that_it_takes(
    api: Api, tmp_path: Path
) -> None:
    # Every eighth stream is longer, so that they are on all replicas. Four of them leave a replica free, also with the
    # headroom that the policy keeps for a burst such as the one that these streams are.
    short, long = tmp_path / "short", tmp_path / "long"
    streams = on_three_replicas(api, itertools.cycle([short] * 7 + [long]))
    assert types(api) == {"A10G": 3}
    short.touch()
    api.wait_for(lambda api: running(api) < 3)
    assert streams.under_way == ALL / 8
    long.touch()
    assert_whole(streams)


def test_a_new_version_finishes_the_streams_of_the_old_one_and_serves_new_ones(
    api: Api, cluster: GpuCluster, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    streams = on_three_replicas(api, itertools.repeat(end))
    cluster.deploy(applications(stub={"tokens_per_s": 25.0}))
    assert_new_ones_are_served(cluster.url)
    assert streams.under_way == ALL
    end.touch()
    assert_whole(streams)


def test_a_node_that_is_taken_away_with_notice_finishes_its_streams_and_gets_no_new_ones(
    api: Api, cluster: GpuCluster, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    streams = on_three_replicas(api, itertools.repeat(end))
    cluster.drain(next(iter(cluster.gpu_nodes())), deadline_s=90)
    api.wait_for(lambda api: running(api) < 3)
    assert_new_ones_are_served(cluster.url)
    assert streams.under_way == ALL
    end.touch()
    assert_whole(streams)


def test_an_idle_application_gives_back_all_nodes_also_after_a_new_version(api: Api, cluster: GpuCluster) -> None:
    # The ingress and the pool view of the new version were started while there were GPU nodes.
    api.wait_for(lambda api: running(api) == 0)
    api.wait_for(lambda api: types(api) == {})
    assert cluster.gpu_nodes() == {}
