"""Benchmark clients run unmodified against the application.

AIPerf 0.13 (1.2 GB) is not installed here; what it sends is in `tests/unit/serve_app/api/test_openai_body.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench.load.servers import Server
from bench.reporting.report import REPOSITORY
from cluster.weights import missing_reason, models_dir
from cluster.weights.folder import model_path
from tests.support.api import Api

GUIDELLM = REPOSITORY / ".venv/guidellm/bin/guidellm"
TOKENIZER = "smollm2-135m-instruct"
# The command `vllm bench serve` fails under the CPU build; this is what it runs.
COMMAND = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


@pytest.mark.parametrize(("backend", "path"), [("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")])
def test_vllm_bench_serve_gets_every_answer(backend: str, path: str, server: Server, api: Api, tmp_path: Path) -> None:
    if find_spec("vllm") is None:
        pytest.skip("needs vLLM: pip install --no-deps -r requirements/cpu.txt")
    if reason := missing_reason(models_dir({}), TOKENIZER):
        pytest.skip(reason)
    options = {
        "backend": backend,
        "base-url": api.base_url,
        "endpoint": path,
        "model": "eco",
        "tokenizer": str(model_path(models_dir({}), TOKENIZER)),
        "dataset-name": "random",
        "random-input-len": "16",
        "random-output-len": "8",
        "num-prompts": "4",
        "result-dir": str(tmp_path),
        "result-filename": "result.json",
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
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["failed"]) == (4, 0)
    assert result["total_output_tokens"] == 4 * 8
    assert result["mean_ttft_ms"] > 0


def test_guidellm_gets_every_answer(server: Server, api: Api, tmp_path: Path) -> None:
    if not GUIDELLM.exists():
        assert "CI" not in os.environ, f"{GUIDELLM} is missing: make install-dev"
        pytest.skip("needs GuideLLM: make install-dev")
    if reason := missing_reason(models_dir({}), TOKENIZER):
        pytest.skip(reason)
    options = {
        "backend": f"kind=openai_http,target={api.base_url},model=eco",
        "tokenizer": f"kind=hf_auto,model={model_path(models_dir({}), TOKENIZER)}",
        "data": "kind=synthetic_text,prompt_tokens=16,output_tokens=8",
        "profile": "kind=synchronous",
        "constraint": "kind=max_requests,count=4",
    }
    ran = subprocess.run(
        [str(GUIDELLM), "run", *(part for name, value in options.items() for part in (f"--{name}", value))],
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    [run] = json.loads((tmp_path / "benchmarks.json").read_text())["benchmarks"]
    assert run["metrics"]["request_totals"] == {"successful": 4, "errored": 0, "incomplete": 0, "total": 4}
    assert [request["output_tokens"] for request in run["requests"]["successful"]] == [8] * 4
