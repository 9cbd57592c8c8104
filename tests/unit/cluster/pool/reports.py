"""Reports of replicas, and Serve's status of a deployment, as the pool's tests need them."""

from __future__ import annotations

from ray.serve._private.common import DeploymentStatus, DeploymentStatusTrigger, ReplicaState
from ray.serve.schema import DeploymentStatusOverview

from cluster.pool.messages import ReplicaReport


def running(entry: str = "small-ngram", replica: str = "a", **over: int) -> ReplicaReport:
    return ReplicaReport(
        "eco", replica, "running", entry, engine_running=over.get("busy", 0), engine_waiting=over.get("waiting", 0)
    )


def loading(
    entry: str = "small-ngram", failures: tuple[tuple[str, str], ...] = (), replica: str = "a"
) -> ReplicaReport:
    return ReplicaReport("eco", replica, "loading", entry, failures)


def overview(
    status: DeploymentStatus,
    trigger: DeploymentStatusTrigger = DeploymentStatusTrigger.UNSPECIFIED,
    **replicas: int,
) -> DeploymentStatusOverview:
    states = {ReplicaState(name): count for name, count in replicas.items()}
    return DeploymentStatusOverview(status, trigger, states, "words of Serve")
