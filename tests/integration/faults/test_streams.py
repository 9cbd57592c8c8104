"""The short form of `bench.soak`: each kind of fault once, but for those that another one is made of, under streams on
stub engines, on a cluster of three nodes.

`tests/long/test_soak.py` is the long one, with real engines.
"""

from __future__ import annotations

import asyncio
import random
import sys

import pytest

from bench.load.nodes import cluster
from bench.soak.faults import CPUS, WORKERS, Faults
from bench.soak.run import PARTS, figures, soaked

STREAMS = 12
PAUSE_S = 1.0


def test_no_stream_is_lost_doubled_or_changed_whatever_dies(capsys: pytest.CaptureFixture[str]) -> None:
    with cluster(WORKERS, 2 * CPUS) as nodes:
        faults = Faults(nodes, stub=True, draw=random.Random(1))
        soak = asyncio.run(soaked(faults, STREAMS, PAUSE_S, seconds=None))
    with capsys.disabled():
        sys.stdout.write(f"\n{figures(soak)}; {', '.join(soak.log)}; without {dict(faults.missing)}\n")
    tally = soak.tally
    assert (tally.lost, tally.doubled, tally.differing) == (0, 0, 0), tally.errors
    assert dict(soak.kills) == dict.fromkeys(set(faults.kinds) - PARTS, 1)
    assert tally.resumed > 0
    assert tally.v1_streams > 0
