"""What the pool reads of Serve's status is what `serve.status()` says, and costs a tenth."""

from __future__ import annotations

from typing import Any

import ray.serve._private.common as common
from ray.serve.schema import ServeInstanceDetails

from cluster.pool.serve_status import deployments_of


def details() -> dict[str, Any]:
    """An answer of Serve's controller, with one application of two deployments."""
    replica = {"replica_id": "r1", "actor_id": "a1", "actor_name": "n", "pid": 1, "start_time_s": 0.0}
    deployments = {
        name: {
            "name": name,
            "status": common.DeploymentStatus.HEALTHY,
            "status_trigger": common.DeploymentStatusTrigger.UNSPECIFIED,
            "message": f"words on {name}",
            "deployment_config": {"name": name},
            "target_num_replicas": len(states),
            "required_resources": {},
            "replicas": [replica | {"state": common.ReplicaState(state)} for state in states],
        }
        for name, states in (("eco", ["RUNNING", "RUNNING", "STARTING"]), ("ultra", list[str]()))
    }
    application = {
        "name": "lever",
        "route_prefix": "/",
        "docs_path": None,
        "status": "RUNNING",
        "message": "",
        "last_deployed_time_s": 0.0,
        "deployed_app_config": None,
        "source": "declarative",
        "external_scaler_enabled": False,
        "deployments": deployments,
    }
    return {"target_capacity": None, "proxies": {}, "applications": {"lever": application}, "controller_info": {}}


def test_it_is_what_serves_own_status_says() -> None:
    read = deployments_of(details(), "lever")
    assert read == ServeInstanceDetails(**details())._get_status().applications["lever"].deployments
    assert read["eco"].replica_states == {"RUNNING": 2, "STARTING": 1}


def test_an_application_that_serve_does_not_have_has_no_deployments() -> None:
    assert deployments_of(details(), "other") == {}
