"""The autoscaling benchmark's engines give the same result as machine code and as plain Python."""

from __future__ import annotations

import pytest

from bench.scaling import simulation
from bench.scaling.hardware import hardware_of
from bench.scaling.policies import FAMILIES, OURS, Tier
from bench.scaling.traffic import made


def test_the_compiled_engines_do_what_the_plain_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    hardware = hardware_of("eco")
    trace = made("bursty", hardware, 4, 1800.0, seed=1)
    outcomes = []
    for compiled_from in (0, len(trace.arrivals_s)):
        monkeypatch.setattr(simulation, "_COMPILED_FROM", compiled_from)
        policy = FAMILIES[OURS].make(Tier(trace, hardware, 4), 0.01)
        outcomes.append(simulation.simulate(trace, hardware, policy, ttft_target_s=2.0, initial=4))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0].scale_actions > 0
