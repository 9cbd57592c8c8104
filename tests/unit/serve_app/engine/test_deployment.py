"""What an engine replica measures of its engine's energy, and what it says of an engine that it cannot even try to
start."""

from __future__ import annotations

import sys
from unittest.mock import AsyncMock, Mock

import pytest

from router.registry import ChainEntry
from serve_app.engine.deployment import EngineDeployment
from serve_app.engine.energy.meter import EnergyMeter, Share
from serve_app.engine.interface import EngineStartError
from sustainability.shares import Totals
from tests.support.app_config import app_config


def deployment(**tier: object) -> Mock:
    """A replica of eco on such hardware, whose engine is up."""
    config = app_config()
    eco = config.tiers["eco"].model_copy(update={"idle_watts": 30.0, **tier})
    replica = Mock(spec=EngineDeployment)
    replica._config = config.model_copy(update={"tiers": config.tiers | {"eco": eco}})
    replica._tier_name, replica._replica_id, replica._engine = "eco", "r1", Mock()
    replica._engine.busy_now_s.return_value = 0.5
    replica._engine.totals.return_value = Totals(0.5)
    return replica


@pytest.mark.parametrize(
    ("gpus", "part", "idle_watts"), [(1.0, 1.0, 30.0), (0.25, 0.25, 120.0), (2.0, 1.0, 15.0)]
)  # of one whole card
def test_an_engine_on_gpus_bills_by_its_cards_counters(gpus: float, part: float, idle_watts: float) -> None:
    replica = deployment(gpus=gpus)
    meter = EngineDeployment._energy_meter(replica)
    assert isinstance(meter, EnergyMeter)
    assert meter._share == Share("eco/r1", part, idle_watts)
    replica._engine.use_meter.assert_called_once_with(meter)


def test_an_engine_on_a_cpu_and_a_stub_have_no_meter() -> None:
    assert EngineDeployment._energy_meter(deployment(gpu=None, gpus=0.0)) is None
    stub = deployment()
    stub._config = stub._config.model_copy(update={"inference_mode": "mock"})
    assert EngineDeployment._energy_meter(stub) is None
    stub._engine.use_meter.assert_not_called()


async def test_a_replica_measures_what_its_engine_did_up_to_now(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = deployment()
    replica._energy = AsyncMock()
    replica._engine.busy_now_s.return_value = 12.5
    replica._engine.totals.return_value = Totals(12.0, left_s=1.5, late_s=-0.25)
    await EngineDeployment._measure_energy(replica)
    replica._energy.round.assert_awaited_once_with(12.5, 1.25)


def test_a_vllm_that_cannot_be_imported_fails_the_entry_and_names_the_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "serve_app.engine.vllm.engine", None)
    with pytest.raises(EngineStartError, match=r"written for vLLM 0\.32\.x: .*vllm\.engine"):
        EngineDeployment._start_vllm(Mock(spec=EngineDeployment), Mock(spec=ChainEntry))
