"""What the tests of weights share: a fake hub with a model, and a models folder that is seeded from it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from cluster.profiles.reading import read_profile
from cluster.weights.hub import HubAccess
from cluster.weights.seeding import Seeder
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
    "original/consolidated.00.pth": b"another duplicate",
}
NEEDED = sorted(name for name in FILES if name.endswith((".safetensors", ".json")))
SOURCE = ModelSource(source="hub", repo=REPO)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as running:
        running.add(REPO, FILES)
        yield running


@pytest.fixture
def free_bytes(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how many bytes every disk has free."""
    return lambda free: monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))


@dataclass
class World:
    """A models folder, the hub that it is seeded from, and the lines that the seeder reported."""

    hub: FakeHub
    models_dir: Path
    lines: list[str] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.models_dir / "m"

    @property
    def partial(self) -> Path:
        return self.models_dir / "m.partial"

    def seed(self, source: ModelSource = SOURCE, *, token: str | None = None, endpoint: str | None = None) -> str:
        return self.seeder(token=token, endpoint=endpoint).seed("m", source)

    def seeder(self, *, token: str | None = None, endpoint: str | None = None) -> Seeder:
        access = HubAccess(endpoint or self.hub.url, token or False)
        return Seeder(self.models_dir, access, self.lines.append)


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
            for entry in tier["chain"]:
                entry["target"] = next(iter(models))
                entry.pop("speculation", None)  # it may name a draft
        path = tmp_path / "profile.yaml"
        path.write_text(yaml.safe_dump(raw, sort_keys=False), encoding="utf-8")
        return str(path)

    return write
