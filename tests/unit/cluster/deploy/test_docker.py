"""The Dockerfile. There is no Docker daemon here to build it, but it must install what the Makefile installs."""

from __future__ import annotations

import re
import tomllib

from tests.support.manifests import ROOT, rooms

DOCKERFILE = (ROOT / "cluster/deploy/docker/Dockerfile").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def test_the_image_installs_the_pinned_lists_with_the_makefiles_pip_and_without_a_resolver() -> None:
    installs = re.findall(r"pip install [^&\n]*", DOCKERFILE.replace("\\\n", " "))
    pip, packages, ours = installs
    assert "--require-hashes -r requirements/pip.txt" in pip
    assert "--require-hashes -r requirements/pip.txt" in MAKEFILE
    assert "--no-deps --require-hashes" in packages
    assert "-r requirements/$HARDWARE.txt" in packages
    assert "--no-deps --no-build-isolation --editable ." in ours


def test_the_base_image_is_named_by_digest() -> None:
    (base,) = re.findall(r"^FROM (\S+)$", DOCKERFILE, re.MULTILINE)
    assert re.fullmatch(r"python:3\.11\.\d+-slim-bookworm@sha256:[0-9a-f]{64}", base)


def test_the_image_runs_as_a_user_that_kubernetes_knows_is_not_root() -> None:
    (uid,) = re.findall(r"useradd .*--uid (\d+)", DOCKERFILE)
    assert re.findall(r"^USER (\S+)$", DOCKERFILE, re.MULTILINE) == [uid]
    assert int(uid) > 0


def test_the_documented_docker_run_has_shared_memory_for_tensor_parallelism() -> None:
    runs = re.findall(r"docker run (.*)", DOCKERFILE)
    assert runs
    assert all("--shm-size=2g" in run for run in runs)


def test_the_image_has_every_package_and_a_python_that_the_project_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    copied = {words[1] for words in re.findall(r"^COPY (\w+) (\w+)$", DOCKERFILE, re.MULTILINE)}
    assert copied == rooms() | {"requirements"}
    assert "FROM python:3.11." in DOCKERFILE
    assert project["project"]["requires-python"] == ">=3.11,<3.13"


def test_files_that_git_ignores_stay_out_of_the_build_context() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert {".git", ".venv", "models"} <= set(ignored)
