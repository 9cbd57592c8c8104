"""What a Ray that is started on this machine offers, asked of Ray's own code with pretended cards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from ray._private.thirdparty import pynvml

from cluster.profiles import this_machine
from cluster.profiles.auto import name_of_auto

OVERRIDE = "RAY_OVERRIDE_RESOURCES"


@contextmanager
def cards(name: str, count: int, gib: int) -> Iterator[None]:
    with patch.multiple(
        pynvml,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: count,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: name,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=gib * 2**30),
    ):
        yield


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (OVERRIDE, "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("name", "gib", "named"),
    [
        ("NVIDIA A100-SXM4-80GB", 80, {"accelerator_type:A100-80G": 1}),
        ("NVIDIA A100 80GB PCIe", 80, {"accelerator_type:A100-80G": 1}),
        ("NVIDIA A100-SXM4-40GB", 40, {"accelerator_type:A100-40G": 1}),
        ("NVIDIA H100 80GB HBM3", 80, None),
    ],
)
def test_an_a100_is_named_by_its_memory(name: str, gib: int, named: dict[str, int] | None) -> None:
    environ: dict[str, str] = {}
    with cards(name, 1, gib):
        this_machine.name_a100(environ)
    assert (json.loads(environ[OVERRIDE]) if OVERRIDE in environ else None) == named


def test_what_the_operator_says_of_resources_stays() -> None:
    environ = {OVERRIDE: "{}"}
    with cards("NVIDIA A100-SXM4-80GB", 1, 80):
        this_machine.name_a100(environ)
    assert environ == {OVERRIDE: "{}"}


@pytest.mark.parametrize(
    ("name", "count", "gib", "profile"),
    [
        ("NVIDIA L4", 1, 22, "plan:L4:1"),
        ("NVIDIA A100-SXM4-80GB", 8, 80, "plan:A100-80G:8"),
        ("NVIDIA A100-SXM4-40GB", 2, 40, "plan:A100-40G:2"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 1, 95, "plan:RTX-PRO-6000:1"),
        ("NVIDIA L4", 0, 22, "local"),
    ],
)
def test_auto_is_here_what_a_ray_that_starts_here_would_be_planned_for(
    name: str, count: int, gib: int, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OVERRIDE, "")  # restored afterwards
    monkeypatch.delenv(OVERRIDE)
    with cards(name, count, gib), patch("ray.init", side_effect=ConnectionError):
        assert name_of_auto()[0] == profile
