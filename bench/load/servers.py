"""Start and stop the servers under test: vLLM's own, and this application, each on its own loopback port."""

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
from psutil import Process

from bench.load.client import HOST
from bench.load.processes import command_of, process_tree, stop_orphans, stop_tree
from bench.reporting.report import REPOSITORY
from cluster.profiles.reading import merge
from router.registry import ChainEntry

Json = dict[str, Any]

_LOG_TAIL_BYTES: Final = 4000
_REPLICA_PREFIX: Final = "ray::ServeReplica:"


class ServerError(Exception):
    """A server did not start; the message ends with the last lines of its log."""


@dataclass
class Server:
    """One server process with its descendants."""

    name: str
    command: list[str]
    port: int
    ready_path: str
    """Answers 200 when the server is ready for the benchmark."""
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path = REPOSITORY
    scratch: Path | None = None
    """Folder that is removed with the server."""
    further_ready_paths: tuple[str, ...] = ()
    """Must answer 200 too."""
    _process: subprocess.Popen[bytes] | None = None
    _log: IO[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the root of its tree."""
        if self._process is None:
            raise ServerError(f"{self.name} is not started")
        return self._process.pid

    def start(self) -> None:
        """Start it in its own session. Errors quote its output."""
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
        """Return its process and all descendants."""
        return process_tree(self.pid)

    def log_tail(self) -> str:
        """Return the end of its output."""
        if self._log is None:
            return ""
        return Path(self._log.name).read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")

    def stop(self) -> None:
        """End it and everything that it started, by process id."""
        if self._process is not None:
            stop_tree(self._process.pid)
            self._process.wait()
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None
        if self.scratch is not None:
            stop_orphans(self.scratch)
            shutil.rmtree(self.scratch, ignore_errors=True)


@contextlib.contextmanager
def running(*servers: Server, timeout_s: float = 900.0) -> Iterator[None]:
    """Start all servers together, wait until they are ready, and stop them at the end."""
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
    """Return the HTTP status of a GET on loopback, or 0 without an answer."""
    return _get(port, path)[0]


def get_json(port: int, path: str) -> Any:
    """Return the JSON body of a GET on loopback."""
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
    """Return a loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def claim_ports() -> tuple[int, int]:
    """Claim a block of loopback ports for one Serve instance's own listeners: its first and its last port.

    Serve's listeners share a port with whoever else asks for it (SO_REUSEPORT), also with another instance's: requests
    of the one may then reach the other. The claim is a socket on the port below the block, which this process keeps
    open.
    """
    for below in range(20_000, 32_000, 100):  # above Ray's worker ports, below those of outgoing connections
        claim = socket.socket()
        try:
            claim.bind((HOST, below))
            if all(_is_free(port) for port in range(below + 1, below + 100)):
                claim.detach()  # open until this process ends
                return below + 1, below + 99
        except OSError:
            pass
        finally:
            claim.close()
    raise ServerError("all blocks of ports between 20000 and 32000 are claimed")


def _is_free(port: int) -> bool:
    """Return whether nobody listens there, as what is left of an instance that was killed may do."""
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def vllm_arguments(entry: ChainEntry) -> list[str]:
    """Return the entry's engine arguments as options of vLLM's command line.

    Raises `ValueError` for an entry that speculates: the application configures that in its own way, so the two servers
    would not have the same arguments.
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
    """Return vLLM's own OpenAI server with the entry's model and arguments, without request logs as in ours.

    It is started with `python -m`, because `vllm serve` fails under the CPU build.
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
    """Return the shipped Serve config on its own loopback port, with one application per variant.

    Args:
        shipped: content of `serve_config.yaml`.
        port: where it listens.
        variants: arguments to merge over the application's, by route prefix (`/` or `/name`).
        others: import paths of other applications, by route prefix.
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
    """Return Ray's environment as `make serve` sets it, with own files and ports."""
    first, last = claim_ports()
    ingress = first + 4
    lines = (REPOSITORY / "cluster" / "serve.env").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#")) | {
        "ANTHROPIC_API_KEY": "",  # benchmarks and tests call no API, whatever the shell's environment holds
        "RAY_TMPDIR": str(scratch),
        # HAProxy sends requests to the fallback proxy while no ingress replica is up.
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(first),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(first + 1),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(first + 2),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(first + 3),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(ingress),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(last),
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(Path(sys.executable).with_name("power-lever-haproxy")),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(scratch / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(scratch / "haproxy.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(scratch / "metrics.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(scratch),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(scratch / "haproxy.state"),
    }


def application(
    variants: Mapping[str, Mapping[str, Any]],
    ready: str = "/readyz",
    others: Mapping[str, str] | None = None,
) -> Server:
    """Return this application as `make serve` starts it, in its own Ray instance, which ends with it.

    Args:
        variants: see `app_config`.
        ready: path that answers 200 when a variant is ready.
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
    """Return the replicas of the Serve deployments whose name contains each of `names`, with their child processes."""
    trees: dict[str, list[Process]] = {}
    for process in processes:
        command = command_of(process)
        if command.startswith(_REPLICA_PREFIX):
            words = command.removeprefix(_REPLICA_PREFIX).lower()
            for name in names:
                if name in words:
                    trees.setdefault(name, []).extend(process_tree(process.pid))
    return trees


def openmp_libraries(processes: list[Process]) -> list[str]:
    """Return the OpenMP libraries that the processes have loaded. On CPU they determine an engine's speed."""
    found: set[str] = set()
    for process in processes:
        with contextlib.suppress(OSError):
            maps = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8", errors="replace")
            found |= {line.rpartition("/")[2] for line in maps.splitlines() if "omp" in line.rpartition("/")[2]}
    return sorted(name for name in found if name.startswith(("libiomp", "libgomp", "libomp")))
