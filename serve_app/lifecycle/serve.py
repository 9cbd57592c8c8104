"""`power-lever serve FILE`: serve a config file until a signal, then drain.

It starts Ray or connects to it, deploys the file and waits, as `serve run` does. The end differs: the first SIGINT
(Ctrl-C) or SIGTERM (`docker stop`) drains (`lifecycle/stop.py`), the second kills everything that this process started.
`serve run` cuts the streams on either.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import ray
from ray import serve
from ray._private import auto_init_hook
from ray.serve._private.api import serve_start
from ray.serve._private.client import ServeControllerClient
from ray.serve._private.constants import SERVE_NAMESPACE
from ray.serve.context import _get_global_client
from ray.serve.schema import ApplicationStatusOverview, ServeDeploySchema

from cluster.profiles.this_machine import name_a100
from cluster.ray_address import raise_if_silent
from router.errors import ConfigError
from serve_app.check_config import IMPORT_PATH, check, read_serve_config
from serve_app.lifecycle.signals import StopSignals, kill_descendants
from serve_app.lifecycle.stop import stop

_POLL_S: Final = 1.0
_TOO_SLOW: Final = "timed out during startup"
"""What Ray says when its processes did not come up in its fixed 30 s (`ray/_private/node.py`), as on a busy machine."""


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(prog="power-lever serve", description="Serve a config file, drain on a signal.")
    parser.add_argument("file", metavar="FILE", type=Path)
    parser.add_argument(
        "--address", help="of the Ray cluster; without it Ray finds or starts one; `local` always starts one"
    )
    given = parser.parse_args(arguments)
    check(given.file)
    return serve_file(given.file, given.address)


def serve_file(path: Path, address: str | None) -> int:
    """Serve the applications of a config file until a signal; return the exit code.

    Args:
        path: a config file of Serve's.
        address: of a Ray cluster; None: `ray.init` finds or starts one; `local`: always start one.

    Raises:
        ConfigError: the file is wrong, its port is taken, or an application cannot be built.
    """
    config = read_serve_config(path)
    if address == "local":  # on another cluster its own Serve may listen there, and take the file
        raise_if_taken(config.http_options.host, config.http_options.port)
    signals = StopSignals()
    signals.listen()
    try:
        _start_ray(address)
        signals.listen()  # again, because `ray.init` has set its own handler for SIGTERM
        client = _start_serve(config)
        try:
            client.deploy_apps(config, _blocking=False)
            _print_line(f"serving {path} at http://{config.http_options.host}:{config.http_options.port}; Ctrl-C stops")
            _wait_until_built(signals.received)
            signals.received.wait()
        finally:
            ours = [app.name for app in config.applications if app.import_path == IMPORT_PATH]
            asyncio.run(stop(client, ours, _print_line, ends_ray=_started_ray()))
    except SystemExit:
        pass  # a SIGTERM while Ray started, with Ray's handler in place: nothing was served yet
    finally:
        ray.shutdown()
        kill_descendants()  # of processes that ended: an engine that was loading
    return 0


def build_failure(applications: Mapping[str, ApplicationStatusOverview]) -> str | None:
    """Return why an application could not be built: its code raised an error. None if none failed like that.

    A deployment that does not start is no such failure: the others serve, and `/api/tiers` shows it.
    """
    for name, application in applications.items():
        if application.status == "DEPLOY_FAILED" and not application.deployments:
            # The error is the last line of a traceback.
            lines = application.message.strip().splitlines()
            return f"application {name}: {lines[-1] if lines else 'it cannot be built'}"
    return None


def raise_if_taken(host: str, port: int) -> None:
    """Check that the port is free. Serve's listeners share it with others, so two instances would split the requests.

    Raises:
        ConfigError: another process listens there.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ConfigError(f"http_options: cannot listen on {host}:{port}: {error.strerror}") from error
            raise ConfigError(
                f"http_options: port {port} of {host} is in use, perhaps by another instance: stop it, or set `port`"
            ) from error


def _start_ray(address: str | None) -> None:
    raise_if_silent(address or os.environ.get("RAY_ADDRESS"), where="--address" if address else "RAY_ADDRESS")
    # Only here: Serve's threads call Ray also after `ray.shutdown()`, and Ray would start another instance for them.
    auto_init_hook.enable_auto_connect = False
    name_a100(os.environ)
    try:
        try:
            ray.init(address=address, namespace=SERVE_NAMESPACE)
        except Exception as error:  # Ray has no class for it
            if _TOO_SLOW not in str(error):
                raise
            _print_line("Ray did not start within the 30 s that it gives itself: once more")
            kill_descendants()
            ray.init(address=address, namespace=SERVE_NAMESPACE)
    except (ConnectionError, ValueError) as error:
        raise ConfigError(f"no Ray cluster at {address or 'RAY_ADDRESS'}: {error}") from error


def _started_ray() -> bool:
    """Return whether this process started Ray, and did not only connect to it."""
    node = ray._private.worker._global_node
    return node is not None and bool(node.head)


def _start_serve(config: ServeDeploySchema) -> ServeControllerClient:
    options = config.http_options
    if _get_global_client(raise_if_no_controller_running=False) is None:
        raise_if_taken(options.host, options.port)
    return serve_start(
        http_options=options.model_dump(),
        proxy_location=config.proxy_location,
        grpc_options=config.grpc_options.model_dump(),
        controller_options=config.controller_options,
    )


def _wait_until_built(stop: threading.Event) -> None:
    while not stop.wait(_POLL_S):
        applications = serve.status().applications
        if reason := build_failure(applications):
            raise ConfigError(reason)
        if all(application.deployments for application in applications.values()):
            return


def _print_line(line: str) -> None:
    print(line, flush=True)
