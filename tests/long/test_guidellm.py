"""GuideLLM runs unmodified against the application. `make test-long` installs it in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from bench.reporting.report import REPOSITORY
from tests.support.api import Api

PYTHON = REPOSITORY / ".venv/guidellm/bin/python"


def test_guidellm_gets_every_answer(bundled_model: Path, api: Api, tmp_path: Path) -> None:
    options = {
        "backend": f"kind=openai_http,target={api.base_url},model=eco",
        "tokenizer": f"kind=hf_auto,model={bundled_model}",
        "data": "kind=synthetic_text,prompt_tokens=16,output_tokens=8",
        "profile": "kind=synchronous",
        "constraint": "kind=max_requests,count=4",
    }
    ran = subprocess.run(
        [
            str(PYTHON),
            "-m",
            "guidellm",
            "run",
            *(part for name, value in options.items() for part in (f"--{name}", value)),
        ],
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
