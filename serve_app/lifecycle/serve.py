"""`power-lever serve FILE`: serve a config file until a signal, then drain.

It starts Ray or connects to it, deploys the file and waits, as `serve run` does. The end differs: the first SIGINT
(Ctrl-C) or SIGTERM (`docker stop`) drains (`lifecycle/stop.py`), the second kills everything that this process started.
`serve run` cuts the streams on either.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
import ray
from ray import serve
from ray._private import auto_init_hook
from ray._private.authentication.authentication_utils import is_token_auth_enabled
from ray.serve._private.api import serve_start
from ray.serve._private.client import ServeControllerClient
from ray.serve._private.constants import SERVE_NAMESPACE
from ray.serve.context import _get_global_client
from ray.serve.schema import ApplicationStatusOverview, ServeApplicationSchema, ServeDeploySchema

from cluster.profiles.this_machine import name_a100
from cluster.ray_address import raise_if_silent
from router.agent.leaving import Leaving, leaving
from router.agent.settings import AgentSettings
from router.application_key import key_headers
from router.errors import ConfigError
from serve_app.check_config import IMPORT_PATH, application_warnings, check, read_serve_config
from serve_app.cli.application import KeyNeededError, read_tiers_view
from serve_app.lifecycle.greeting import (
    WITHOUT_KEY,
    command_here,
    leaves,
    may_leave,
    starting,
    tier_changes,
    welcome,
)
from serve_app.lifecycle.process_log import FILE_NAME, ProcessLog, without_advice_against_tokens
from serve_app.lifecycle.signals import StopSignals, kill_descendants
from serve_app.lifecycle.stop import stop

_POLL_S: Final = 1.0
_TOO_SLOW: Final = "timed out during startup"
"""What Ray says when its processes did not come up in its fixed 30 s (`ray/_private/node.py`), as on a busy machine."""


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--address", help="of the Ray cluster; without it Ray finds or starts one; `local` always starts one")
def command(file: Path, address: str | None) -> int:
    """Serve a config file until Ctrl-C or SIGTERM, then drain."""
    check(file)
    return serve_file(file, address)


def serve_file(path: Path, address: str | None) -> int:
    """Serve the applications of a config file until a signal; return the exit code.

    Args:
        path: a config file of Serve's.
        address: of a Ray cluster; None: `ray.init` finds or starts one; `local`: always start one.

    Raises:
        ConfigError: the file is wrong, its port is taken, an application cannot be built, or the key in the environment
            can be none.
    """
    config = read_serve_config(path)
    if address == "local":  # on another cluster its own Serve may listen there, and take the file
        raise_if_taken(config.http_options.host, config.http_options.port)
    ours = [app for app in config.applications if app.import_path == IMPORT_PATH]
    key_headers(os.environ)  # `_watch` takes any later error for an application that does not answer yet
    for warning in (each for app in ours for each in application_warnings(app)):
        _print_line(warning)
    signals = StopSignals()
    signals.listen()
    try:
        _start_ray(address)
        signals.listen()  # again, because `ray.init` has set its own handler for SIGTERM
        with ProcessLog(_log_path(), _print_line) as log:
            _print_line(starting(path, log.path))
            client = _start_serve(config)
            try:
                client.deploy_apps(config, _blocking=False)
                _wait_until_built(signals.received)
                _watch({_url(config, app): _may_leave(app) for app in ours}, signals.received)
            finally:
                asyncio.run(stop(client, [app.name for app in ours], _print_line, ends_ray=_started_ray()))
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
            _init(address)
        except Exception as error:  # Ray has no class for it
            if _TOO_SLOW not in str(error):
                raise
            _print_line("Ray did not start within the 30 s that it gives itself: once more")
            kill_descendants()
            _init(address)
    except (ConnectionError, ValueError) as error:
        raise ConfigError(f"no Ray cluster at {address or 'RAY_ADDRESS'}: {error}") from error


def _init(address: str | None) -> None:
    # What it would say, `welcome` says.
    with without_advice_against_tokens():
        ray.init(address=address, namespace=SERVE_NAMESPACE, logging_level=logging.WARNING)


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


def _log_path() -> Path:
    """Return where the processes' output goes: to the other logs of this run of Ray."""
    return Path(ray._private.worker._global_node.get_logs_dir_path()) / FILE_NAME


def _url(config: ServeDeploySchema, application: ServeApplicationSchema) -> str:
    host = config.http_options.host
    shown = "localhost" if host in ("127.0.0.1", "0.0.0.0", "::1", "::") else host
    return f"http://{shown}:{config.http_options.port}{(application.route_prefix or '/').rstrip('/')}"


def _may_leave(application: ServeApplicationSchema) -> Leaving | None:
    """Return what leaves the cluster if the ingress has this environment; None: nothing."""
    args = application.args
    mock = (os.environ.get("INFERENCE_MODE") or args.get("inference_mode")) == "mock"
    return leaving(AgentSettings.model_validate(args.get("agent", {})), os.environ, mock=mock)


def _watch(urls: Mapping[str, Leaving | None], stop: threading.Event) -> None:
    """Tell where to go as soon as an application answers, then what its tiers do, until it is time to stop.

    Args:
        urls: of the applications, with what may leave the cluster.
        stop: is set when it is time.
    """
    seen: dict[str, dict[str, Any] | None] = dict.fromkeys(urls)
    silent: set[str] = set()
    """Those that ask for a key that is not there."""
    while not stop.wait(_POLL_S):
        for url, before in seen.items():
            if url in silent:
                continue
            try:
                view = read_tiers_view(url)
            except KeyNeededError:
                if before is None:
                    _print_line(welcome(url, *_dashboard(), asks_for_key=True))
                    for line in may_leave(urls[url]):
                        _print_line(line)
                _print_line(WITHOUT_KEY)
                silent.add(url)
                continue
            except ConfigError:
                continue  # not yet, or not now: a redeploy
            if before is None:
                _print_line(welcome(url, *_dashboard(), asks_for_key=bool(key_headers(os.environ))))
                for line in leaves(view):
                    _print_line(line)
            for line in tier_changes(before, view):
                _print_line(line)
            seen[url] = view


def _dashboard() -> tuple[str | None, str | None]:
    """Return the URL of Ray's dashboard, and the command that prints its token; None where it has or needs none."""
    place = ray._private.worker._global_node.webui_url
    token = command_here("ray", Path(sys.executable), Path.cwd()) + " get-auth-token"
    return (f"http://{place}" if place else None), (token if is_token_auth_enabled() else None)


def _print_line(line: str) -> None:
    print(line, flush=True)
