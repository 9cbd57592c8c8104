"""The nodes on which the application's parts may run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray._raylet import node_labels_match_selector  # type: ignore[attr-defined]

from cluster.profiles.reading import load_profile
from router.errors import ConfigError
from serve_app.app import actor_options, build, engine_deployment, off_gpu_nodes
from tests.support.app_config import app_config


@pytest.mark.parametrize("gpu", ["L4", "A10G", "A100", "A100-80G", "H100"])
def test_ray_keeps_cpu_only_actors_off_every_gpu_node_of_the_profile(gpu: str) -> None:
    selector = off_gpu_nodes(load_profile("gpu"))["label_selector"]
    assert not node_labels_match_selector({"ray.io/accelerator-type": gpu}, selector)


def test_ray_prefers_a_node_without_a_gpu_and_falls_back_to_any() -> None:
    options = off_gpu_nodes(load_profile("gpu"))
    assert node_labels_match_selector({}, options["label_selector"])
    assert options["fallback_strategy"] == [{"label_selector": {}}]


def test_a_profile_without_gpus_needs_no_label() -> None:
    assert off_gpu_nodes(load_profile("local")) == {}


MODELS = Path("/mnt/models")


def test_a_replica_asks_ray_for_its_share_of_a_card() -> None:
    tier = load_profile("gpu").tiers["eco"].model_copy(update={"gpus": 0.4})
    options = actor_options(tier, MODELS)
    assert (options["num_cpus"], options["num_gpus"], options["accelerator_type"]) == (tier.cpus, 0.4, tier.gpu)


def test_gpu_replicas_need_no_cuda_compiler_and_keep_what_they_compile_on_the_shared_volume() -> None:
    environment = actor_options(load_profile("gpu").tiers["eco"], MODELS)["runtime_env"]["env_vars"]
    assert environment["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
    assert environment["VLLM_CACHE_ROOT"] == "/mnt/models/vllm-caches"
    assert environment["TRITON_CACHE_DIR"] == "/mnt/models/vllm-caches/triton"


def test_no_engine_reports_to_vllms_makers() -> None:
    for profile in ("gpu", "local"):
        for tier in load_profile(profile).tiers.values():
            assert actor_options(tier, MODELS)["runtime_env"]["env_vars"]["VLLM_NO_USAGE_STATS"] == "1"


def test_a_cpu_replica_asks_for_no_gpu_and_has_no_gpu_environment() -> None:
    options = actor_options(load_profile("local").tiers["eco"], MODELS)
    assert "num_gpus" not in options
    assert not [name for name in options["runtime_env"]["env_vars"] if "CACHE" in name]


def test_a_replica_may_finish_its_streams_for_as_long_as_its_tier_says() -> None:
    config = app_config()
    for name, tier in config.tiers.items():
        assert engine_deployment(name, config)._deployment_config.graceful_shutdown_timeout_s == tier.drain_s


@pytest.mark.parametrize(
    ("host", "auth", "refused"),
    [
        ("0.0.0.0", {}, True),
        ("127.0.0.1", {}, False),
        ("0.0.0.0", {"allow_anonymous": True}, False),
        ("0.0.0.0", {"mode": "keys"}, False),
    ],
)
def test_an_application_that_asks_nobody_is_not_built_where_serve_listens_beyond_this_machine(
    host: str, auth: dict[str, Any], monkeypatch: pytest.MonkeyPatch, *, refused: bool
) -> None:
    running = SimpleNamespace(http_config=SimpleNamespace(host=host))
    monkeypatch.setattr("serve_app.app.ray.is_initialized", lambda: True)
    monkeypatch.setattr("serve_app.app._get_global_client", lambda **_: running)
    args = {"profile": "local", "auth": auth}
    if refused:
        with pytest.raises(ConfigError, match=r"^http_options.host of the running Serve: got '0.0.0.0', where anybody"):
            build(args)
    else:
        build(args)
