"""Drain and stop the applications: refuse new requests, wait for the open ones, delete the applications, end Serve.

A stream in the ingress needs its engine and its proxy until it ends, also while it waits for a cold tier or a free
slot. Deleting an application stops ingress and engines at once, and waiting requests would never be answered. So the
ingress refuses new requests first, and the applications are deleted when no request is open.
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
_UNKNOWN_POLLS: Final = 50
"""Polls without an answer before the terminal says so: every ingress replica has to learn of the drain first."""
_CLOSE_TIMEOUT_S: Final = 15.0
"""Longest wait for a pool to begin the drain, s: a pool that died is replaced in that time."""
_END_TIMEOUT_S: Final = 30.0
"""Longest time for engines, and then for Serve, to end when no request is open, s."""
_CUT_TIMEOUT_S: Final = 1.0
"""The same if streams are cut, or if all of Ray's processes are killed next, s."""

PrintLine = Callable[[str], None]


async def stop(client: ServeControllerClient, names: Sequence[str], print_line: PrintLine, *, ends_ray: bool) -> None:
    """Drain and end everything that Serve runs.

    Args:
        client: of Serve's controller.
        names: our applications, which have a pool.
        print_line: prints a line on the terminal.
        ends_ray: whether all of Ray's processes are killed next.
    """
    pools, drain_s = await _begin_drain(names)
    drained = await _wait_until_drained(pools, time.monotonic() + drain_s, print_line)
    end_s = _END_TIMEOUT_S if drained and not ends_ray else _CUT_TIMEOUT_S
    client.delete_apps(list(serve.status().applications), blocking=False)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(end_s):
            while serve.status().applications:  # noqa: ASYNC110 - Serve sends no event when it changes
                await asyncio.sleep(_POLL_S)
    if not ends_ray:
        await client.shutdown_async(end_s)


async def _begin_drain(names: Sequence[str]) -> tuple[dict[str, DeploymentHandle], float]:
    """Return the pools that have begun a drain, by application, and the longest time of the drain, s."""
    pools: dict[str, DeploymentHandle] = {}
    drain_s = 0.0
    applications = serve.status().applications
    for name in names:
        if name not in applications or not _running(applications[name], "ingress"):
            continue  # no request can be open yet
        pool = serve.get_deployment_handle("pool", app_name=name)
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                drain_s = max(drain_s, await pool.close.remote())
            pools[name] = pool
        except RAY_ERRORS as error:
            logger.warning("application %s is deleted without a drain: %s", name, error)
    return pools, drain_s


async def _wait_until_drained(pools: Mapping[str, DeploymentHandle], deadline_s: float, print_line: PrintLine) -> bool:
    """Return whether all requests ended in time."""
    shown = ""  # on the terminal
    unknown_polls = 0
    while (count := await _count_open(pools)) != 0:
        left_s = deadline_s - time.monotonic()
        unknown_polls = unknown_polls + 1 if count is None else 0
        now = str(count) if count is not None else "unknown" if unknown_polls > _UNKNOWN_POLLS else shown
        if left_s < 0:
            print_line(f"stopping: the time is up; open requests that are cut: {now or 'unknown'}")
            return False
        if now != shown:
            print_line(f"stopping: open requests: {now}, for up to {left_s:.0f} s more; press Ctrl-C again to stop now")
            shown = now
        await asyncio.sleep(_POLL_S)
    return True


async def _count_open(pools: Mapping[str, DeploymentHandle]) -> int | None:
    """Return how many requests are open at all ingress replicas; None while that is unknown."""
    total = 0
    try:
        applications = serve.status().applications
        for name, pool in pools.items():
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await pool.close.remote()  # again: a pool that was replaced meanwhile has not begun the drain
                counts: dict[str, int] = await pool.open_requests.remote()
            if name in applications and len(counts) < _running(applications[name], "ingress"):
                return None
            total += sum(counts.values())
    except RAY_ERRORS as error:
        logger.warning("the number of open requests is unknown: %s", error)
        return None
    return total


def _running(application: ApplicationStatusOverview, deployment: str) -> int:
    overview = application.deployments.get(deployment)
    return overview.replica_states.get("RUNNING", 0) if overview is not None else 0
