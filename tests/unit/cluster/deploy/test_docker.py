"""The Dockerfile. There is no Docker daemon here to build it, but it must install what the Makefile installs."""

from __future__ import annotations

import re
import tomllib

from tests.support.manifests import ROOT, rooms

DOCKERFILE = (ROOT / "cluster/deploy/docker/Dockerfile").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def test_the_image_installs_the_pinned_lists_with_the_makefiles_pip_and_without_a_resolver() -> None:
    (pip,) = re.findall(r"pip==\S+", MAKEFILE)
    assert f"pip install --no-cache-dir {pip} " in DOCKERFILE
    installs = re.findall(r"pip install .*", DOCKERFILE)
    assert all("--no-deps" in install for install in installs if "pip==" not in install)
    assert "-r requirements/$HARDWARE.txt" in installs[1]
    assert "--no-build-isolation --editable ." in installs[2]


def test_the_image_has_every_package_and_a_python_that_the_project_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    copied = {words[1] for words in re.findall(r"^COPY (\w+) (\w+)$", DOCKERFILE, re.MULTILINE)}
    assert copied == rooms() | {"requirements"}
    assert "FROM python:3.11-" in DOCKERFILE
    assert project["project"]["requires-python"] == ">=3.11,<3.13"


def test_files_that_git_ignores_stay_out_of_the_build_context() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert {".git", ".venv", "models"} <= set(ignored)
