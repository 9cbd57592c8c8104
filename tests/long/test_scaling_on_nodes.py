"""The scaling simulation is true: recorded traffic, compressed, against stub engines on a cluster of fake GPU nodes.

Ten minutes of real requests, real replicas, and nodes that are processes; then the simulation of the same requests with
replicas as fast as the stubs, and the measured cold start. It prints both.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from bench.load.client import fetch, request_for
from bench.load.sse import EventReader
from bench.reporting.report import REPOSITORY
from bench.scaling.hardware import Hardware
from bench.scaling.policies import FAMILIES, OURS, Tier
from bench.scaling.simulation import Trace, simulate
from bench.scaling.traffic import Recording, read_recording, scaled
from cluster.cpu_environment import cpu_environment
from tests.support.api import Api
from tests.support.gpu_cluster import gpu_cluster

RECORDED: Final = REPOSITORY.parent / "shared" / "data" / "traffic" / "azure_2023_code.csv"
COMPRESSED: Final = 6.0
"""An hour in ten minutes."""
MOST: Final = 3
SLOTS: Final = 8
TOKENS_PER_S: Final = 5.0
FIRST_S: Final = 0.05
TTFT_TARGET_S: Final = 2.0
COLD_START_S: Final = 20.0
"""Expected by the policy until one was measured."""
MISS_SHARE: Final = 0.01
CONFIG: Final[dict[str, Any]] = {
    "profile": "gpu",
    "inference_mode": "mock",
    "stub": {"tokens_per_s": TOKENS_PER_S},
    "tiers": {
        "balanced": {
            "cpus": 1,
            "max_ongoing_requests": SLOTS,
            "replicas": {"min": 1, "max": MOST},
            "cold_start_s": COLD_START_S,
        }
    },
}


def hardware(cold_start_s: float) -> Hardware:
    """Return a replica with a stub engine: every request has the same speed, and prompts take next to nothing."""
    none = (0.0,) * (SLOTS + 1)
    return Hardware(
        slots=SLOTS,
        cold_start_s=cold_start_s,
        gpus=1.0,
        prompts_s=((1.0, FIRST_S), (1e5, FIRST_S)),
        batched_tokens=100_000,
        host_s=none,
        pass_s=(1 / TOKENS_PER_S,) * (SLOTS + 1),
    )


def traffic() -> Trace:
    """Return the recording in a sixth of its time, for all replicas; answers of at most 100 tokens (20 s)."""
    read = read_recording(RECORDED)
    short = np.minimum(read.completion_tokens, 100.0)
    return scaled(
        Recording(read.name, read.arrivals_s / COMPRESSED, np.ones(len(short)), short),
        hardware(COLD_START_S),
        MOST,
        101,
    )


class Watch:
    """Counts replica-seconds and node-seconds while traffic runs."""

    def __init__(self, url: str) -> None:
        self.replica_s = self.node_s = self.starting_s = 0.0
        self.starts = 0
        self.changes: list[str] = []
        """Seconds since the beginning, and the replicas that run and that start, whenever those change."""
        self._url = url
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        with Api(self._url) as api:
            began_s = before_s = time.monotonic()
            last: tuple[int, int] | None = None
            while not self._done.wait(1.0):
                seen = api.get("/api/tiers").json()
                [tier] = [tier for tier in seen["tiers"] if tier["name"] == "balanced"]
                now_s = time.monotonic()
                running = tier["replicas"]["running"]
                starting = tier["replicas"]["starting"] + tier["replicas"]["pending"]  # for which a node is to come
                if last is not None:
                    self.starts += max(0, running - last[0])
                if (running, starting) != last:
                    self.changes.append(f"{now_s - began_s:.0f} s: {running}+{starting}")
                    last = (running, starting)
                self.replica_s += (now_s - before_s) * (running + starting)
                self.starting_s += (now_s - before_s) * starting
                self.node_s += (now_s - before_s) * seen["gpus"]["types"].get("A10G", {"nodes": 0})["nodes"]
                before_s = now_s


async def replayed(trace: Trace, port: int) -> list[float]:
    """Send every request at its time; return the times to the first text, infinite where there was none."""
    loop = asyncio.get_running_loop()
    begin_s = loop.time()

    async def ask(arrival_s: float, tokens: int) -> float:
        await asyncio.sleep(max(0.0, begin_s + arrival_s - loop.time()))
        prompt = f"stub:tokens={tokens} stub:first={FIRST_S}"
        reader = EventReader("inference")
        # Without drafts the stub's first text comes one step after `first`.
        body = request_for("inference", port, prompt, tokens, mode="manual", power=40, spec={"enabled": False})
        outcome = await fetch(body, reader)
        return float("inf") if reader.first_text_s is None else reader.first_text_s - outcome.start_s

    pairs = zip(trace.arrivals_s.tolist(), trace.completion_tokens.astype(int).tolist(), strict=True)
    return list(await asyncio.gather(*(ask(*pair) for pair in pairs)))


@pytest.mark.skipif(not RECORDED.exists(), reason=f"{RECORDED} is not here")
def test_the_simulation_misses_and_costs_what_the_cluster_does(capsys: pytest.CaptureFixture[str]) -> None:
    trace = traffic()
    with gpu_cluster({"/": CONFIG}, cpu_environment(Path(sys.prefix))) as cluster, Api(cluster.url) as api:
        api.wait_for(lambda api: api.tier("balanced")["replicas"]["running"] == 1)
        with Watch(cluster.url) as watch:
            ttft_s = asyncio.run(replayed(trace, cluster.http_port))
        learned_s = api.tier("balanced")["cold_start_s"]
    # What a start took, node and all. What the tier has learned counts the wait for a node only in part.
    cold_start_s = watch.starting_s / max(1, watch.starts)
    missed = sum(first_s > TTFT_TARGET_S for first_s in ttft_s) / len(ttft_s)
    # What a request that does not wait takes besides its prompt: the first step, and everything around the engine.
    around_s = float(np.percentile(ttft_s, 10)) - FIRST_S

    like_it = hardware(cold_start_s)
    policy = FAMILIES[OURS].make(Tier(trace, like_it, MOST), MISS_SHARE)
    simulated = simulate(trace, like_it, policy, ttft_target_s=TTFT_TARGET_S - around_s, initial=1)
    told = (
        f"\n{len(ttft_s)} requests, cold start {cold_start_s:.1f} s (learned: {learned_s:.1f} s), "
        f"{around_s:.2f} s around the engine\n"
        f"cluster: missed {missed:.3f}, replica-s {watch.replica_s:.0f}, node-s {watch.node_s:.0f}\n"
        f"replicas: {', '.join(watch.changes)}\n"
        f"simulated: missed {simulated.miss_share:.3f}, replica-s {3600 * simulated.gpu_hours:.0f}\n"
    )
    with capsys.disabled():
        sys.stdout.write(told)
    assert missed == pytest.approx(simulated.miss_share, abs=0.05)
    assert watch.replica_s == pytest.approx(3600 * simulated.gpu_hours, rel=0.15)
