import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.load.client import HOST
from bench.load.servers import (
    Server,
    ServerError,
    app_config,
    bare_vllm,
    claim_ports,
    free_port,
    get_json,
    get_status,
    ray_environment,
    running,
    vllm_arguments,
)
from router.registry import ChainEntry, Speculation

STEP = ChainEntry(
    name="target-only",
    target="m",
    max_model_len=2048,
    engine_args={"dtype": "float32", "enforce_eager": True, "enable_prefix_caching": False, "seed": None},
)


def test_engine_arguments_become_flags() -> None:
    assert vllm_arguments(STEP) == [
        *("--max-model-len", "2048", "--dtype", "float32", "--enforce-eager", "--no-enable-prefix-caching"),
    ]


def test_an_entry_that_speculates_is_refused() -> None:
    step = STEP.model_copy(update={"speculation": Speculation(method="ngram", k_max=5)})
    with pytest.raises(ValueError, match="speculates"):
        vllm_arguments(step)


def test_bare_vllm_listens_on_loopback_with_the_entrys_arguments() -> None:
    server = bare_vllm(STEP, Path("/models/m"), {"LD_PRELOAD": "x"})
    assert server.command[:3] == [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    assert server.command[server.command.index("--host") + 1] == "127.0.0.1"
    assert server.command[server.command.index("--model") + 1] == "/models/m"
    assert server.env == {"LD_PRELOAD": "x"}


def test_the_generated_config_keeps_the_rest_of_the_shipped_one() -> None:
    shipped = {
        "http_options": {"host": "0.0.0.0", "port": 8000, "request_timeout_s": 9},
        "applications": [{"name": "a", "import_path": "x:build", "args": {"profile": "auto", "relay": {"a": 1}}}],
    }
    variants: dict[str, dict[str, Any]] = {"/": {"profile": "local"}, "/other": {"relay": {"b": 2}}}
    config = app_config(shipped, 9999, variants, {"/naive": "y:build"})
    assert config["http_options"] == {"host": "127.0.0.1", "port": 9999, "request_timeout_s": 9}
    first, other, naive = config["applications"]
    assert (first["name"], first["route_prefix"], first["import_path"]) == ("a", "/", "x:build")
    assert first["args"] == {"profile": "local", "relay": {"a": 1}}
    assert (other["name"], other["route_prefix"]) == ("a-other", "/other")
    assert other["args"] == {"profile": "auto", "relay": {"a": 1, "b": 2}}
    assert naive == {"name": "a-naive", "route_prefix": "/naive", "import_path": "y:build"}
    assert shipped["applications"][0]["args"] == {"profile": "auto", "relay": {"a": 1}}  # type: ignore[index]


def _http_server(port: int, folder: Path) -> Server:
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(folder)]
    return Server(name="files", command=command, port=port, ready_path="/ready.json")


def test_a_server_starts_and_stops(tmp_path: Path) -> None:
    (tmp_path / "ready.json").write_text(json.dumps({"ok": True}))
    server = _http_server(free_port(), tmp_path)
    with running(server, timeout_s=30):
        assert get_json(server.port, "/ready.json") == {"ok": True}
        assert [process.pid for process in server.processes()] == [server.pid]
    assert get_status(server.port, "/ready.json") == 0


def test_a_server_that_is_never_ready_is_an_error_and_stopped(tmp_path: Path) -> None:
    server = _http_server(free_port(), tmp_path)
    with pytest.raises(ServerError, match=r"files was not ready after 0.3 s"), running(server, timeout_s=0.3):
        pass
    assert get_status(server.port, "/") == 0


def test_a_server_that_ends_at_once_is_an_error_with_its_last_output() -> None:
    command = [sys.executable, "-c", "raise SystemExit('no weights')"]
    server = Server(name="broken", command=command, port=free_port(), ready_path="/")
    with pytest.raises(ServerError, match=r"broken ended before it was ready:\nno weights"), running(server):
        pass


def test_claimed_blocks_of_ports_do_not_overlap() -> None:
    (_, last), (first, _) = sorted((claim_ports(), claim_ports()))
    assert last < first


def test_a_block_is_not_claimed_while_somebody_listens_in_it() -> None:
    _, last = claim_ports()
    with socket.socket() as left_over:
        left_over.bind((HOST, last + 5))
        left_over.listen()
        first, _ = claim_ports()
    assert first > last + 5


def test_two_instances_on_one_machine_share_no_port(tmp_path: Path) -> None:
    # Serve's listeners use SO_REUSEPORT: on a shared port each instance gets some of the other's requests.
    ports = [
        {int(value) for name, value in ray_environment(tmp_path).items() if name.endswith("_PORT")} for _ in range(2)
    ]
    assert len(ports[0]) == len(ports[1]) == 6  # ingress replicas (from, to), fallback proxy, statistics, metrics
    assert max(ports[0]) < min(ports[1]) or max(ports[1]) < min(ports[0])
