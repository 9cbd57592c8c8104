"""Benchmark clients run unmodified against the application.

GuideLLM is a long test, as its own environment takes a minute to install. AIPerf 0.13 (1.2 GB) is not installed here;
what it sends is in `tests/unit/serve_app/api/v1/test_body.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.api import Api

# The command `vllm bench serve` fails under the CPU build; this is what it runs, twice in one process: its import takes
# most of the time.
COMMAND = """
import sys
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
add_cli_args(parser)
for backend, endpoint in (("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")):
    arguments = ["--backend", backend, "--endpoint", endpoint, "--result-filename", f"{backend}.json", *sys.argv[1:]]
    main(parser.parse_args(arguments))
"""


def test_vllm_bench_serve_gets_every_answer_of_both_routes(bundled_model: Path, api: Api, tmp_path: Path) -> None:
    options = {
        "base-url": api.base_url,
        "model": "eco",
        "tokenizer": str(bundled_model),
        "dataset-name": "random",
        "random-input-len": "16",
        "random-output-len": "8",
        "num-prompts": "4",
        "result-dir": str(tmp_path),
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    ran = subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments, "--save-result"],
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    for backend in ("openai", "openai-chat"):
        result = json.loads((tmp_path / f"{backend}.json").read_text())
        assert (result["completed"], result["failed"]) == (4, 0)
        assert result["total_output_tokens"] == 4 * 8
        assert result["mean_ttft_ms"] > 0
