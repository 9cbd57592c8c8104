"""The root cause of a failed engine start is found in what its processes wrote."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from serve_app.engine.vllm.process_output import ProcessOutput, first_exception

# As vLLM 0.32 writes it when the KV space cannot hold one sequence; paths shortened.
VLLM_LOG = """\
(EngineCore pid=4711) INFO 11-27 09:12:44 [cpu_worker.py:101] auto thread-binding list (id, physical core): [(0, 0)]
(EngineCore pid=4711) ERROR 11-27 09:12:51 [core.py:912] EngineCore failed to start.
(EngineCore pid=4711) ERROR 11-27 09:12:51 [core.py:912] Traceback (most recent call last):
(EngineCore pid=4711) ERROR 11-27 09:12:51 [core.py:912]   File "vllm/v1/core/kv_cache_utils.py", line 699, in check
(EngineCore pid=4711) ERROR 11-27 09:12:51 [core.py:912]     raise ValueError(
(EngineCore pid=4711) ERROR 11-27 09:12:51 [core.py:912] ValueError: To serve at least one request with the models's \
max seq len (2048), 0.09 GiB KV cache is needed, which is larger than the available KV cache memory (0.01 GiB).
(EngineCore pid=4711) Process EngineCore:
(EngineCore pid=4711) Traceback (most recent call last):
(EngineCore pid=4711) ValueError: To serve at least one request with the models's max seq len (2048) ...
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
CAUSE = (
    "ValueError: To serve at least one request with the models's max seq len (2048), 0.09 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (0.01 GiB)."
)


def test_the_root_cause_is_found_in_a_log_of_vllm() -> None:
    assert first_exception(VLLM_LOG) == CAUSE


def test_an_echo_of_another_process_is_not_the_cause() -> None:
    log = (
        "RuntimeError: Engine core initialization failed. See root cause above.\n"
        "Exception: WorkerProc initialization failed due to an exception in a background process.\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
    )
    assert first_exception(log) == "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"


def test_a_log_with_only_echoes_or_no_exception_has_no_cause() -> None:
    assert first_exception("RuntimeError: Engine core initialization failed. See root cause above.") is None
    assert first_exception("INFO all is well") is None
    assert first_exception("") is None


@pytest.mark.parametrize(
    "echo",
    [
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        "EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
        "the engine has died",
    ],
)
def test_only_a_reason_that_echoes_another_process_is_looked_up_in_its_output(tmp_path: Path, echo: str) -> None:
    path = tmp_path / "worker.err"
    path.write_text("OutOfMemoryError: CUDA out of memory\n" + echo + "\n")
    output = ProcessOutput(((str(path), 0),))
    assert output.cause_of(echo) == "OutOfMemoryError: CUDA out of memory"
    assert output.cause_of("ValueError: no such file") == "ValueError: no such file"
    path.write_text(echo + "\n")
    assert output.cause_of(echo) == echo


def test_only_what_was_written_since_the_beginning_counts(tmp_path: Path) -> None:
    path = tmp_path / "worker.err"
    path.write_text("ValueError: of an earlier step\n")
    output = ProcessOutput(((str(path), path.stat().st_size),))
    assert output.root_cause() is None
    with path.open("a") as file:
        file.write(VLLM_LOG)
    assert output.text() == VLLM_LOG
    assert output.root_cause() == CAUSE


def test_both_files_are_read(tmp_path: Path) -> None:
    out, err = tmp_path / "worker.out", tmp_path / "worker.err"
    out.write_text("loading\n")
    err.write_text("KeyError: 'rope'\n")
    assert ProcessOutput(((str(out), 0), (str(err), 0))).root_cause() == "KeyError: 'rope'"


def test_only_the_end_of_a_huge_output_is_read(tmp_path: Path) -> None:
    path = tmp_path / "worker.err"
    path.write_bytes(b"OSError: too long ago\n" + b"." * 1_500_000 + b"\nOSError: recent\n\xff")
    output = ProcessOutput(((str(path), 0),))
    assert len(output.text()) == 1_000_000
    assert output.root_cause() == "OSError: recent"


def test_the_files_behind_stdout_and_stderr_are_found_and_a_childs_words_too(tmp_path: Path) -> None:
    script = (
        "import os, subprocess, sys\n"
        "from serve_app.engine.vllm.process_output import ProcessOutput\n"
        "print('ValueError: before', file=sys.stderr, flush=True)\n"
        "output = ProcessOutput.begin()\n"
        "subprocess.run(['sh', '-c', 'echo \"(EngineCore pid=7) ImportError: no such kernel\" >&2'])\n"
        "os.write(int(sys.argv[1]), (output.root_cause() or 'nothing').encode())\n"
    )
    reader, writer = os.pipe()
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        command = [sys.executable, "-c", script, str(writer)]
        subprocess.run(command, stdout=out, stderr=err, pass_fds=[writer], check=True)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b"ImportError: no such kernel"


def test_one_file_behind_both_is_read_once_and_a_pipe_not_at_all(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from serve_app.engine.vllm.process_output import ProcessOutput\n"
        "open(sys.argv[1], 'w').write(repr(ProcessOutput.begin().starts))\n"
    )
    answer, log = tmp_path / "answer", tmp_path / "log"
    with log.open("wb") as both:
        subprocess.run([sys.executable, "-c", script, str(answer)], stdout=both, stderr=both, check=True)
    assert answer.read_text() == repr(((str(log), 0),))
    subprocess.run([sys.executable, "-c", script, str(answer)], capture_output=True, check=True)
    assert answer.read_text() == "()"
