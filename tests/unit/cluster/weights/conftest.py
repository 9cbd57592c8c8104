"""What the tests of weights share: a fake hub, a model on it, a seeder that looks there."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.profiles import read_profile
from cluster.weights.hub import HubAccess
from cluster.weights.seeding import Seeder
from cluster.weights.space import FreeSpace, free_bytes
from router.registry import ModelSource
from tests.support.fake_hub import FakeHub

REPO = "org/model"
FILES = {
    "model-00001-of-00002.safetensors": random.Random(1).randbytes(300_000),
    "model-00002-of-00002.safetensors": random.Random(2).randbytes(200_000),
    "model.safetensors.index.json": b'{"weight_map": {}}',
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "README.md": b"not needed",
    "pytorch_model.bin": b"a duplicate of the weights",
    "original/consolidated.00.pth": b"another one",
}
WANTED = sorted(name for name in FILES if name.endswith((".safetensors", ".json")))
SOURCE = ModelSource(source="hub", repo=REPO)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as running:
        running.add(REPO, FILES)
        yield running


@dataclass
class World:
    """A models folder, the hub it is filled from, and what the seeder said."""

    hub: FakeHub
    models_dir: Path
    said: list[str] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.models_dir / "m"

    @property
    def partial(self) -> Path:
        return self.models_dir / "m.partial"

    def seeder(self, *, token: str | None = None, endpoint: str | None = None, free: FreeSpace = free_bytes) -> Seeder:
        return Seeder(
            self.models_dir,
            HubAccess(endpoint or self.hub.url, token or False, retries=1, retry_wait_s=0.05),
            self.said.append,
            free,
        )

    def seed(self, source: ModelSource = SOURCE, **how: Any) -> str:
        return self.seeder(**how).seed("m", source)


@pytest.fixture
def world(hub: FakeHub, tmp_path: Path) -> World:
    return World(hub, tmp_path / "models")


@pytest.fixture
def profile_file(tmp_path: Path) -> Callable[[dict[str, dict[str, Any]]], str]:
    """Writes a profile whose tiers all use the first of the given models; returns its path."""

    def write(models: dict[str, dict[str, Any]]) -> str:
        raw = read_profile("local")
        raw["models"] = models
        for tier in raw["tiers"].values():
            for step in tier["chain"]:
                step["target"] = next(iter(models))
                step.pop("speculation", None)  # it may name a draft
        path = tmp_path / "profile.yaml"
        path.write_text(yaml.safe_dump(raw, sort_keys=False), encoding="utf-8")
        return str(path)

    return write
