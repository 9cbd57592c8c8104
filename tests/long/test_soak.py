"""Ten minutes of faults under 32 streams on real engines: nothing is lost, doubled or changed."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

import pytest

from bench.load.nodes import cluster
from bench.soak.faults import CPUS, WORKERS, Faults
from bench.soak.run import figures, soaked

STREAMS = 32
PAUSE_S = 10.0
SECONDS = 600.0


def test_no_stream_is_lost_doubled_or_changed_in_ten_minutes(
    bundled_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with cluster(WORKERS, 2 * CPUS) as nodes:
        faults = Faults(nodes, stub=False, draw=random.Random(1))
        soak = asyncio.run(soaked(faults, STREAMS, PAUSE_S, SECONDS))
    with capsys.disabled():
        sys.stdout.write(
            f"\n{figures(soak)}; largest tie: {soak.tally.largest_tie}; {', '.join(soak.log)}; "
            f"without {dict(faults.missing)}\n"
        )
    tally = soak.tally
    assert (tally.lost, tally.doubled, tally.differing) == (0, 0, tally.ties), tally.errors
    assert set(soak.kills) == set(faults.kinds)
    assert tally.resumed > 0
    asked = soak.exercises
    assert min(asked.stopped, asked.parts, asked.accepted) > 0
