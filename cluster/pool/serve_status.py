"""Serve's status of one application's deployments, without their configs.

`serve.status()` builds the config of every deployment of every application anew, which pickles classes: most of its
time, at each refresh of each pool.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ray.serve.context import _get_global_client
from ray.serve.schema import DeploymentStatusOverview


def read_deployments(app_name: str) -> Mapping[str, DeploymentStatusOverview]:
    """Ask Serve's controller for the deployments of an application, by name; none if there is no such application."""
    client = _get_global_client(raise_if_no_controller_running=False)
    return {} if client is None else deployments_of(client.get_serve_details(), app_name)


def deployments_of(details: Mapping[str, Any], app_name: str) -> Mapping[str, DeploymentStatusOverview]:
    """Return the deployments of an application in the controller's answer, as `serve.status()` does."""
    if app_name not in details["applications"]:
        return {}
    return {
        name: DeploymentStatusOverview(
            status=deployment["status"],
            status_trigger=deployment["status_trigger"],
            replica_states=dict(Counter(replica["state"] for replica in deployment["replicas"])),
            message=deployment["message"],
        )
        for name, deployment in details["applications"][app_name]["deployments"].items()
    }
