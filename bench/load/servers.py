"""Starts and stops what is measured: vLLM's own server and this application, each on a loopback port of its own."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import yaml

from bench.load.client import HOST
from bench.load.processes import Process, process_tree, stop_tree
from bench.reporting.report import REPOSITORY
from cluster.profiles.reading import merge
from router.registry import ChainEntry

Json = dict[str, Any]

_LOG_TAIL_BYTES: Final = 4000
_REPLICA_PREFIX: Final = "ray::ServeReplica:"


class ServerError(Exception):
    """A server did not start; the message ends with the end of its log."""


@dataclass
class Server:
    """One server process, with all that descends from it."""

    name: str
    command: list[str]
    port: int
    ready_path: str
    """Answers 200 when the server can do what the benchmark wants of it."""
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path = REPOSITORY
    scratch: Path | None = None
    """Folder that goes away with the server."""
    further_ready_paths: tuple[str, ...] = ()
    """Answer 200 as well before the server counts as ready."""
    _process: subprocess.Popen[bytes] | None = None
    _log: IO[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the root of its tree."""
        if self._process is None:
            raise ServerError(f"{self.name} is not started")
        return self._process.pid

    def start(self) -> None:
        """Start it in a session of its own; its output goes to a file that errors quote."""
        self._log = tempfile.NamedTemporaryFile(prefix=f"bench-{self.name}-", suffix=".log")  # noqa: SIM115
        self._process = subprocess.Popen(
            self.command,
            cwd=self.cwd,
            env={**os.environ, **self.env},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait_ready(self, timeout_s: float) -> None:
        """Poll `ready_path` and `further_ready_paths` until each has answered 200.

        Raises:
            ServerError: it ended, or was not ready in time.
        """
        deadline = time.monotonic() + timeout_s
        for path in (self.ready_path, *self.further_ready_paths):
            while get_status(self.port, path) != 200:
                if self._process is None or self._process.poll() is not None:
                    raise ServerError(f"{self.name} ended before it was ready:\n{self.log_tail()}")
                if time.monotonic() > deadline:
                    raise ServerError(f"{self.name} was not ready after {timeout_s:g} s:\n{self.log_tail()}")
                time.sleep(0.25)

    def processes(self) -> list[Process]:
        """Everything that this server runs."""
        return process_tree(self.pid)

    def log_tail(self) -> str:
        """The end of its output."""
        if self._log is None:
            return ""
        return Path(self._log.name).read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")

    def stop(self) -> None:
        """End it and everything it started, by process id; nothing else."""
        if self._process is not None:
            stop_tree(self._process.pid)
            self._process.wait()
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)


@contextlib.contextmanager
def running(*servers: Server, timeout_s: float = 600.0) -> Iterator[None]:
    """All of them, started together and ready; stopped at the end, whatever happens."""
    try:
        for server in servers:
            server.start()
        for server in servers:
            server.wait_ready(timeout_s)
        yield
    finally:
        for server in servers:
            server.stop()


def get_status(port: int, path: str) -> int:
    """HTTP status of a GET on loopback; 0 when nobody answers."""
    return _get(port, path)[0]


def get_json(port: int, path: str) -> Any:
    """JSON body of a GET on loopback."""
    status, body = _get(port, path)
    if status != 200:
        raise ServerError(f"GET {path} on port {port}: HTTP {status}")
    return json.loads(body)


def _get(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def vllm_arguments(entry: ChainEntry) -> list[str]:
    """The entry's engine arguments as vLLM's command line writes them.

    Raises `ValueError` for an entry that drafts with n-grams or a model: how the application configures that is its
    own affair, so the comparison would not be of the same arguments.
    """
    if entry.speculation is not None:
        raise ValueError(f"entry {entry.name!r} speculates: measure overhead on an entry that does not")
    arguments: Json = {"max_model_len": entry.max_model_len, "quantization": entry.quantization, **entry.engine_args}
    line: list[str] = []
    for name, value in arguments.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            line.append(flag)
        elif value is False:
            line.append("--no-" + flag[2:])
        elif value is not None:
            line += [flag, str(value)]
    return line


def bare_vllm(entry: ChainEntry, model_dir: Path, env: Mapping[str, str]) -> Server:
    """vLLM's own OpenAI server on the entry's model and arguments, with its per-request logs off as in the application.

    `python -m`, because the command `vllm serve` fails under the CPU build.
    """
    port = free_port()
    return Server(
        name="vllm",
        command=[
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--host", HOST, "--port", str(port), "--model", str(model_dir), "--served-model-name", "bench"),
            *("--disable-uvicorn-access-log", *vllm_arguments(entry)),
        ],
        port=port,
        ready_path="/health",
        env=env,
    )


def app_config(
    shipped: Mapping[str, Any],
    port: int,
    variants: Mapping[str, Mapping[str, Any]],
    others: Mapping[str, str],
) -> Json:
    """The shipped Serve config on a loopback port of its own, with one application for each variant.

    Args:
        shipped: what `serve_config.yaml` says.
        port: where it listens.
        variants: arguments to lay over the application's, by route prefix (`/` or `/name`).
        others: import paths of further applications, by route prefix.
    """
    config = merge(shipped, {"http_options": {"host": HOST, "port": port}})
    [first, *_] = config["applications"]
    config["applications"] = [
        {
            **first,
            "name": _application_name(first["name"], prefix),
            "route_prefix": prefix,
            "args": merge(first.get("args") or {}, arguments),
        }
        for prefix, arguments in variants.items()
    ] + [
        {"name": _application_name(first["name"], prefix), "route_prefix": prefix, "import_path": path}
        for prefix, path in others.items()
    ]
    return config


def _application_name(shipped: str, prefix: str) -> str:
    return shipped + prefix.rstrip("/").replace("/", "-")


def ray_environment(scratch: Path) -> dict[str, str]:
    """Ray's environment as `make serve` sets it, with files and ports apart from any other instance's."""
    # The ingress replicas' listeners share a port with whoever else asks for it (SO_REUSEPORT), also with another
    # instance's: what is sent to the one may reach the other. So each gets a range of its own.
    first = free_port()
    lines = (REPOSITORY / "cluster" / "serve.env").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#")) | {
        "ANTHROPIC_API_KEY": "",  # what is measured or tested calls nobody, whatever the shell's environment holds
        "RAY_TMPDIR": str(scratch),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(first),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(min(first + 100, 65535)),
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(Path(sys.executable).with_name("power-lever-haproxy")),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(scratch / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(scratch / "haproxy.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(scratch / "metrics.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(scratch),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(scratch / "haproxy.state"),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port()),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port()),
    }


def application(
    variants: Mapping[str, Mapping[str, Any]],
    ready: str = "/readyz",
    others: Mapping[str, str] | None = None,
) -> Server:
    """This application as `make serve` starts it, in a Ray instance of its own that ends with it; see `app_config`.

    Args:
        variants: see `app_config`.
        ready: path that answers 200 when a variant can do what is wanted of it.
        others: see `app_config`.
    """
    port = free_port()
    scratch = Path(tempfile.mkdtemp(prefix="plb-"))  # short: Ray's socket paths below it have a limit of 107 bytes
    shipped: Json = yaml.safe_load((REPOSITORY / "serve_config.yaml").read_text(encoding="utf-8"))
    ready_paths = [prefix.rstrip("/") + ready for prefix in variants]
    config = scratch / "serve_config.yaml"
    config.write_text(yaml.safe_dump(app_config(shipped, port, variants, others or {})), encoding="utf-8")
    return Server(
        name="app",
        command=[sys.executable, "-m", "serve_app", "serve", "--address", "local", str(config)],
        port=port,
        ready_path=ready_paths[0],
        further_ready_paths=tuple(ready_paths[1:]),
        env=ray_environment(scratch),
        scratch=scratch,
    )


def replica_trees(processes: list[Process], names: tuple[str, ...]) -> dict[str, list[Process]]:
    """Per name, the replicas of the Serve deployments whose name contains it, each with its own child processes."""
    trees: dict[str, list[Process]] = {}
    for process in processes:
        command = process.command()
        if command.startswith(_REPLICA_PREFIX):
            words = command.removeprefix(_REPLICA_PREFIX).lower()
            for name in names:
                if name in words:
                    trees.setdefault(name, []).extend(process_tree(process.pid))
    return trees


def openmp_libraries(processes: list[Process]) -> list[str]:
    """OpenMP libraries that the processes have loaded: on CPU they decide an engine's speed, so they are recorded."""
    found: set[str] = set()
    for process in processes:
        with contextlib.suppress(OSError):
            maps = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8", errors="replace")
            found |= {line.rpartition("/")[2] for line in maps.splitlines() if "omp" in line.rpartition("/")[2]}
    return sorted(name for name in found if name.startswith(("libiomp", "libgomp", "libomp")))
