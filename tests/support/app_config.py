"""A config of the application on a small invented profile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster.profiles.reading import merge
from router.observation import Observation, TierState
from router.registry import TierName
from serve_app.config import AppConfig
from serve_app.pool.view import PoolView
from tests.unit.router.profiles import profile_data


def app_config(**over: Any) -> AppConfig:
    """The small profile as a config, with any field laid over it."""
    own = {"profile": "small", "profile_reason": "for tests", "models_dir": "/models"}
    return AppConfig.model_validate(merge(profile_data() | own, over))


class FixedPool(PoolView):
    """A pool view that shows what the test set; tiers that it did not set are cold."""

    def __init__(self, tiers: Mapping[TierName, TierState] | None = None) -> None:
        super().__init__(pool=None)
        self.observation = Observation(tiers or {})

    def set(self, name: TierName, state: TierState) -> None:
        self.observation = Observation({**self.observation.tiers, name: state})
