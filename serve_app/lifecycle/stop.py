"""Stops what `serving` serves: closes the gates, waits for what is open, deletes the applications, ends Serve.

A stream in the ingress needs its engine, and its proxy, until its end; also one that still waits for a cold tier or a
free slot. Deleting an application stops ingress and engines at once, so what waits would never be answered. Therefore
the gates are closed first, and the applications go when nothing is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ray import serve
from ray.serve._private.client import ServeControllerClient
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import ApplicationStatusOverview

from serve_app.transport.ray_errors import RAY_ERRORS

logger = logging.getLogger("ray.serve")

_POLL_S: Final = 0.1
_CLOSE_TIMEOUT_S: Final = 15.0
"""How long a pool may take to close the gate, s: as long as a new one takes to come in place of one that died."""
_END_TIMEOUT_S: Final = 30.0
"""Longest time for engines, and then for Serve, to end when nothing is open any more, s."""
_CUT_TIMEOUT_S: Final = 1.0
"""The same when streams are cut, or when Ray itself ends next, s: idle engines need no farewell."""

Say = Callable[[str], None]


async def stop(client: ServeControllerClient, names: Sequence[str], say: Say, *, ends_ray: bool) -> None:
    """Drain and end everything that Serve runs.

    Args:
        client: of Serve's controller.
        names: the applications that are ours, and have a pool.
        say: takes a line for the terminal.
        ends_ray: whether all processes of Ray are ended next.
    """
    pools, drain_s = await _close_gates(names)
    empty = await _wait_until_empty(pools, time.monotonic() + drain_s, say)
    end_s = _END_TIMEOUT_S if empty and not ends_ray else _CUT_TIMEOUT_S
    client.delete_apps(list(serve.status().applications), blocking=False)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(end_s):
            while serve.status().applications:  # noqa: ASYNC110 - Serve tells nobody when it changes
                await asyncio.sleep(_POLL_S)
    if not ends_ray:
        await client.shutdown_async(end_s)


async def _close_gates(names: Sequence[str]) -> tuple[dict[str, DeploymentHandle], float]:
    """The pools that have closed their ingress's gates, by application, and how long what is open may take, s."""
    pools: dict[str, DeploymentHandle] = {}
    drain_s = 0.0
    applications = serve.status().applications
    for name in names:
        if name not in applications or not _running(applications[name], "ingress"):
            continue  # nothing can be open yet
        pool = serve.get_deployment_handle("pool", app_name=name)
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                drain_s = max(drain_s, await pool.close.remote())
            pools[name] = pool
        except RAY_ERRORS as error:
            logger.warning("application %s is deleted with its gate open: %s", name, error)
    return pools, drain_s


async def _wait_until_empty(pools: Mapping[str, DeploymentHandle], deadline_s: float, say: Say) -> bool:
    """Whether nothing was open any more in time."""
    told = 0
    while (count := await _count_open(pools)) != 0:
        left_s = deadline_s - time.monotonic()
        if left_s < 0:
            say(f"stopping: cut what is still open ({told} requests)")
            return False
        if count is not None and count != told:
            say(f"stopping: {count} requests are open and get up to {left_s:.0f} s; once more stops at once")
            told = count
        await asyncio.sleep(_POLL_S)
    return True


async def _count_open(pools: Mapping[str, DeploymentHandle]) -> int | None:
    """Requests that are open at all ingress replicas; None while that is not known."""
    total = 0
    try:
        applications = serve.status().applications
        for name, pool in pools.items():
            counts: dict[str, int] = await pool.open_requests.remote()
            if name in applications and len(counts) < _running(applications[name], "ingress"):
                return None
            total += sum(counts.values())
    except RAY_ERRORS as error:
        logger.warning("what is open is not known: %s", error)
        return None
    return total


def _running(application: ApplicationStatusOverview, deployment: str) -> int:
    overview = application.deployments.get(deployment)
    return overview.replica_states.get("RUNNING", 0) if overview is not None else 0
