"""vLLM configures logging when it makes an engine, which closes the handlers of the process; Serve's keeps its file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cluster.cpu_environment import cpu_environment

SCRIPT = """
import logging, sys
from logging.handlers import MemoryHandler
from vllm.engine.arg_utils import AsyncEngineArgs
from serve_app.engine.kept_log import serves_log_kept

handler = MemoryHandler(1, target=logging.FileHandler(sys.argv[2]))
logging.getLogger("ray.serve").addHandler(handler)
with serves_log_kept():
    AsyncEngineArgs(model=sys.argv[1], enforce_eager=True).create_engine_config()
    print("closed" if handler.target is None else "open")
logging.getLogger("ray.serve").error("after the engine's config")
"""


def test_serves_log_has_its_file_when_vllm_has_configured_logging(bundled_model: Path, tmp_path: Path) -> None:
    log = tmp_path / "replica.log"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(bundled_model), str(log)],
        env=cpu_environment(Path(sys.prefix)) | {"PYTHONPATH": str(Path(__file__).parents[3]), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "closed"  # else nothing has to be kept
    assert log.read_text() == "after the engine's config\n"
