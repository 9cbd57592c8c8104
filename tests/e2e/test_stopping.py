"""Ctrl-C: open streams are finished, and a second one ends everything at once, engines too. The server's last test."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

from bench.load.processes import process_tree
from bench.load.servers import Server
from tests.support.api import PATIENCE_S, Api
from tests.support.stopping import Stream, exit_code, still_running, wait_until_refused


def test_ctrl_c_drains_and_a_second_one_ends_everything_at_once(server: Server, api: Api) -> None:
    with ThreadPoolExecutor() as threads:
        story = {"prompt": "Write a very long story.", "temperature": 0, "power": 10}
        long = Stream(api.base_url, threads, **story, max_tokens=1800)
        long.wait_for("token")
        short = Stream(api.base_url, threads, **story, max_tokens=60)
        short.wait_for("token")
        tree = process_tree(server.pid)

        os.killpg(server.pid, signal.SIGINT)  # as a terminal does: every process of the group gets it

        wait_until_refused(api.base_url)
        assert short.error() is None
        assert short.answer.kinds[-1] == "done"
        assert long.open, long.answer.events[-1]
        os.killpg(server.pid, signal.SIGINT)
        assert exit_code(server, within_s=PATIENCE_S) == 128 + signal.SIGINT
        assert long.error() is not None  # cut, not finished
    assert still_running(tree) == []
