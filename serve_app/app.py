"""Build the application: an ingress, the pool view, and an engine deployment for each tier."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any, Final

import ray
from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
from ray.serve.context import _get_global_client

from cluster.autoscaling import DemandPolicy
from cluster.catalogue.problems import profile_problems
from cluster.cpu_environment import cpu_environment
from cluster.gpu_environment import gpu_environment
from cluster.observability.series import SCALING_ACTIONS, SCALING_GAUGES
from cluster.pool.deployment import GpuPool
from cluster.profiles.auto import choose_profile, count_gpus
from router.agent.settings import never_asked
from router.registry import Profile, Tier, TierName
from serve_app.admission.open_requests import SPARE_REQUESTS
from serve_app.api.ingress import Ingress
from serve_app.auth.listening import raise_if_open
from serve_app.auth.settings import DEFAULT_CAP
from serve_app.config import AppConfig, load_config
from serve_app.engine.deployment import EngineDeployment

logger = logging.getLogger("ray.serve")
INGRESS_CPUS: Final = 0.1
POOL_CPUS: Final = 0.1
"""Ray CPUs of each replica: both mostly wait, and must fit on a laptop beside four engines."""
DRAIN_CHECK_S: Final = 0.2
"""Interval at which a draining replica checks whether its requests are done, s."""


def build(args: dict[str, Any]) -> Application:
    """Build the application. `serve_config.yaml` names this function.

    Raises:
        ConfigError: before anything starts, naming the key, what it got and what it allows.
    """
    config = load_config(args, os.environ, lambda: choose_profile(count_gpus() if ray.is_initialized() else None))
    if ray.is_initialized() and (client := _get_global_client(raise_if_no_controller_running=False)) is not None:
        # The host in a config file has no effect where Serve runs already.
        raise_if_open(config.auth, client.http_config.host, "http_options.host of the running Serve")
    logger.info("profile %s: %s", config.profile, config.profile_reason)
    unasked = never_asked(config.agent, {DEFAULT_CAP: config.auth.default_limits.agent_usd_per_day})
    for problem in (*profile_problems(config), *unasked):
        logger.warning("%s", problem)
    return build_app(config)


def build_app(config: AppConfig) -> Application:
    """Build the application of a config."""
    registry = Profile.model_validate({key: getattr(config, key) for key in Profile.model_fields})
    pool = pool_deployment(registry).bind(registry)
    engines = {name: engine_deployment(name, config).bind(name, config, pool) for name in config.tiers}
    ingress = serve.deployment(serve.ingress()(Ingress)).options(
        name="ingress",
        num_replicas=config.ingress.replicas,
        max_ongoing_requests=config.ingress.max_ongoing_requests + SPARE_REQUESTS,
        ray_actor_options={"num_cpus": INGRESS_CPUS, **off_gpu_nodes(registry)},
        # Its streams last as long as those of the engines that it calls.
        graceful_shutdown_timeout_s=max(tier.drain_s for tier in config.tiers.values()),
        graceful_shutdown_wait_loop_s=DRAIN_CHECK_S,
    )
    return ingress.bind(config, pool, engines)


def pool_deployment(registry: Profile) -> serve.Deployment:
    """Return the pool's deployment: engine and ingress replicas report to its one replica and get its observations."""
    return serve.deployment(GpuPool).options(
        name="pool",
        max_ongoing_requests=10_000,
        # Its only long calls are the long polls of the ingress replicas.
        graceful_shutdown_timeout_s=1,
        graceful_shutdown_wait_loop_s=DRAIN_CHECK_S,
        ray_actor_options={"num_cpus": POOL_CPUS, **off_gpu_nodes(registry)},
    )


def engine_deployment(name: TierName, config: AppConfig) -> serve.Deployment:
    """Return the engine deployment of a tier, pinned to its hardware and scaled between its bounds."""
    tier = config.tiers[name]
    lowest = max(1, tier.replicas.min) if config.demo_mode else tier.replicas.min
    return serve.deployment(EngineDeployment).options(
        name=name,
        max_ongoing_requests=tier.max_ongoing_requests,
        request_router_config=RequestRouterConfig(
            request_router_class="serve_app.transport.request_router.FairRequestRouter",
            request_router_kwargs={"ingress_replicas": config.ingress.replicas},
        ),
        # No `max_queued_requests`: `serve_app/admission/tier_slots.py` holds that limit.
        ray_actor_options=actor_options(tier, Path(config.models_dir)),
        autoscaling_config=AutoscalingConfig(
            min_replicas=lowest,
            max_replicas=tier.replicas.max,
            initial_replicas=lowest,
            policy=AutoscalingPolicy(
                policy_function=DemandPolicy,
                policy_kwargs={
                    "tier": name,
                    "slots": tier.max_ongoing_requests,
                    "cold_start_s": tier.cold_start_s,
                    "idle_s": tier.idle_before_zero_s,
                    "settings": config.scaling.model_dump(mode="json"),
                    "gauges": {name: (gauge.name, gauge.help) for name, gauge in SCALING_GAUGES.items()},
                    "actions": (SCALING_ACTIONS.name, SCALING_ACTIONS.help),
                },
            ),
            # The policy decides when.
            upscale_delay_s=0,
            downscale_delay_s=0,
            metrics_interval_s=0.5,
            look_back_period_s=1,
        ),
        graceful_shutdown_timeout_s=tier.drain_s,
        graceful_shutdown_wait_loop_s=DRAIN_CHECK_S,
        health_check_period_s=5,
        health_check_timeout_s=30,
    )


def off_gpu_nodes(registry: Profile) -> dict[str, Any]:
    """Keep CPU-only actors off GPU nodes so that those can scale down; use GPU nodes only if there are no others."""
    gpus = {tier.gpu for tier in registry.tiers.values() if tier.gpu is not None}
    if not gpus:
        return {}
    # Ray's label of a node with an A100-80G is A100.
    labels = sorted(gpus | {gpu.split("-")[0] for gpu in gpus})
    return {
        # No spaces: Ray reads them as part of the values.
        "label_selector": {"ray.io/accelerator-type": f"!in({','.join(labels)})"},
        "fallback_strategy": [{"label_selector": {}}],
    }


def actor_options(tier: Tier, models_dir: Path) -> dict[str, Any]:
    """Return what a tier's replicas need: CPUs, GPUs of its type, and the environment of vLLM's build for them."""
    environment = cpu_environment(Path(sys.prefix)) if tier.gpu is None else gpu_environment(models_dir)
    # Else vLLM would tell its makers, at each start and every ten minutes, which model runs on which hardware.
    environment["VLLM_NO_USAGE_STATS"] = "1"
    options: dict[str, Any] = {"num_cpus": tier.cpus, "runtime_env": {"env_vars": environment}}
    return options if tier.gpu is None else options | {"num_gpus": tier.gpus, "accelerator_type": tier.gpu}
