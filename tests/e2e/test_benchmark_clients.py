"""Benchmark clients run unmodified against real engines.

GuideLLM is a long test, as its own environment takes a minute to install. AIPerf 0.13 (1.2 GB) is not installed here;
what it sends is in `tests/unit/serve_app/api/v1/test_body.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bench.load.client import HOST
from bench.load.servers import Server
from tests.e2e.conftest import QUESTION

ASKED = {"prompt": QUESTION, "mode": "manual", "power": 10, "max_tokens": 16, "spec": {"k": 3}}
# The command `vllm bench serve` fails under the CPU build; this is what it runs. All of it in one process, as its
# import takes most of the time.
COMMAND = """
import asyncio, json, sys
from dataclasses import asdict

import aiohttp
from vllm.benchmarks.serve import add_cli_args, fetch_spec_decode_metrics, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
add_cli_args(parser)
url, asked, path, *given = sys.argv[1:]
for backend, endpoint in (("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")):
    arguments = ["--backend", backend, "--endpoint", endpoint, "--result-filename", f"{backend}.json", *given]
    main(parser.parse_args(["--base-url", url, *arguments]))

async def around_one_answer():
    async with aiohttp.ClientSession() as session:
        before = await fetch_spec_decode_metrics(url, session)
        async with session.post(f"{url}/api/inference", json=json.loads(asked)) as response:
            events = await response.text()
        return before, events, await fetch_spec_decode_metrics(url, session)

before, events, after = asyncio.run(around_one_answer())
with open(path, "w") as file:
    json.dump({"before": asdict(before), "events": events, "after": asdict(after)}, file)
"""


class Benchmarked(NamedTuple):
    results: dict[str, dict[str, Any]]
    """What the benchmark says, by kind of API."""
    before: dict[str, int]
    after: dict[str, int]
    """The drafts that it reads from the server, around one answer."""
    told: dict[str, Any]
    """Of the drafts by that answer itself."""


@pytest.fixture(scope="module")
def benchmarked(bundled_model: Path, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Benchmarked:
    folder = tmp_path_factory.mktemp("benchmark")
    options = {
        "model": "eco",
        "tokenizer": str(bundled_model),
        "dataset-name": "random",
        "random-input-len": "16",
        "random-output-len": "8",
        "num-prompts": "4",
        "result-dir": str(folder),
    }
    given = [part for name, value in options.items() for part in (f"--{name}", value)]
    url, drafts = f"http://{HOST}:{server.port}", folder / "drafts.json"
    ran = subprocess.run(
        [sys.executable, "-c", COMMAND, url, json.dumps(ASKED), str(drafts), *given, "--ignore-eos", "--save-result"],
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    results = {backend: json.loads((folder / f"{backend}.json").read_text()) for backend in ("openai", "openai-chat")}
    read = json.loads(drafts.read_text())
    events = [json.loads(line.removeprefix("data: ")) for line in read["events"].split("\n\n") if "data: " in line]
    [metrics] = [event["data"] for event in events if event["type"] == "metrics"]
    return Benchmarked(results, read["before"], read["after"], metrics["spec"])


def test_vllm_bench_serve_gets_every_answer_of_both_routes(benchmarked: Benchmarked) -> None:
    for result in benchmarked.results.values():
        assert (result["completed"], result["failed"]) == (4, 0)
        assert result["total_output_tokens"] == 4 * 8
        assert result["mean_ttft_ms"] > 0


def test_it_reads_the_drafts_of_its_run(benchmarked: Benchmarked) -> None:
    def grown(name: str) -> int:
        return benchmarked.after[name] - benchmarked.before[name]

    told = benchmarked.told
    assert told["draft_tokens"] > 0
    assert grown("num_drafts") == told["steps"]
    assert grown("num_draft_tokens") == told["draft_tokens"]
    assert grown("num_accepted_tokens") == told["accepted_tokens"]
