"""SIGTERM: open requests are finished, new ones are refused, and no process is left.

The last test of this server. Limits on times leave room for a busy machine: on 2 cores that others used too, an
instance was gone 5.3 s after its last stream. Ctrl-C has an e2e test.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.load.client import HOST
from bench.load.processes import process_tree
from bench.load.servers import Server
from tests.support.api import PATIENCE_S, Api
from tests.support.stopping import Stream, exit_code, still_running, wait_until_refused


def test_a_second_instance_on_the_same_port_says_so_and_ends(server: Server, tmp_path: Path) -> None:
    config = tmp_path / "serve_config.yaml"
    args = {"profile": "local", "inference_mode": "mock"}
    applications = [{"name": "second", "import_path": "serve_app.app:build", "args": args}]
    http_options = {"host": HOST, "port": server.port}
    config.write_text(json.dumps({"http_options": http_options, "applications": applications}))
    command = [sys.executable, "-m", "serve_app", "serve", "--address", "local", str(config)]
    second = subprocess.run(command, env=os.environ | server.env, capture_output=True, text=True, timeout=PATIENCE_S)
    assert second.returncode == 1
    assert f"error: http_options: port {server.port} of {HOST} is in use" in second.stderr
    assert "Traceback" not in second.stderr


def test_sigterm_finishes_open_requests_refuses_new_ones_and_leaves_no_process(
    server: Server, planning: Api, tmp_path: Path
) -> None:
    # An application whose eco tier takes one request at a time, and whose other tiers are cold.
    url, refused = planning.base_url, tmp_path / "refused"
    with ThreadPoolExecutor() as threads:
        working = Stream(url, threads, prompt=f"stub:rate=10 stub:until={refused}", power=10, max_tokens=2000)
        working.wait_for("token")
        waiting = Stream(url, threads, prompt="stub:tokens=20", power=10)  # for the one place of the eco tier
        cold = Stream(url, threads, prompt="stub:tokens=20", power=90)  # for the first replica of the ultra tier
        waiting.wait_for("reasoning")
        cold.wait_for("reasoning")
        tree = process_tree(server.pid)

        os.kill(server.pid, signal.SIGTERM)  # as `docker stop`: only the first process gets it

        response = wait_until_refused(url)
        assert working.open
        assert response.status_code == 503
        assert response.headers["retry-after"] == "5"
        assert response.json()["error"]["code"] == "stopping"
        assert planning.get("/readyz").status_code == 503  # a balancer goes elsewhere
        assert planning.get("/healthz").status_code == 200  # and nobody kills what still works
        refused.touch()
        for stream in (working, waiting, cold):
            assert stream.error() is None
            assert stream.answer.kinds[-1] == "done"
            assert len(stream.answer.all("token")) == stream.answer.one("metrics")["completion_tokens"]
        assert [len(stream.answer.all("token")) for stream in (waiting, cold)] == [20, 20]
    assert exit_code(server, within_s=PATIENCE_S) == 0
    assert still_running(tree) == []
