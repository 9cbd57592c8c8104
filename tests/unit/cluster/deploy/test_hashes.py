"""Requirement lists: every package has the hashes of its files, and pip takes no other file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cluster.deploy.hashes import hashes_in, pins, with_hashes
from tests.support.manifests import ROOT

# apt checks Debian's packages by their own signatures.
LISTS = sorted(path for path in (ROOT / "requirements").glob("*.txt") if path.name != "debian.txt")
A, B = "a" * 64, "b" * 64


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.name)
def test_every_package_of_a_list_is_pinned_and_has_a_hash(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    assert len(pins(text)) == len(lines) > 0
    assert [pin for pin, hashes in pins(text).items() if not hashes] == []


def test_the_cpu_torch_has_a_hash_for_each_python() -> None:
    assert len(pins((ROOT / "requirements/cpu.txt").read_text(encoding="utf-8"))["torch==2.13.0+cpu"]) == 2


def test_make_and_the_image_install_lists_only_with_hashes() -> None:
    for file in ("Makefile", "cluster/deploy/docker/Dockerfile"):
        text = (ROOT / file).read_text(encoding="utf-8").replace("\\\n", " ")
        installs = [line for line in text.splitlines() if re.search(r"-r requirements/", line)]
        assert installs
        assert all(line.count("--require-hashes") == line.count("-r requirements/") for line in installs), file


def test_new_hashes_join_those_of_the_other_python_and_comments_stay() -> None:
    before = f"# A list.\nRay==1.0 \\\n    --hash=sha256:{B}\nfoo_bar==2.0+cpu\n"
    report = {
        "install": [
            {"metadata": {"name": "ray"}, "download_info": {"archive_info": {"hashes": {"sha256": A}}}},
            {"metadata": {"name": "foo-bar"}, "download_info": {"archive_info": {"hashes": {"sha256": B}}}},
        ]
    }
    after = with_hashes(before, hashes_in(report, list(pins(before))))
    assert after == (
        f"# A list.\nRay==1.0 \\\n    --hash=sha256:{A} \\\n    --hash=sha256:{B}\n"
        f"foo_bar==2.0+cpu \\\n    --hash=sha256:{B}\n"
    )
    assert with_hashes(after, {}) == after
