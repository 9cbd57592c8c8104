"""The models folder and its manifests: what is a complete model, and why one is missing."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.weights import WeightsError, is_complete, missing_reason, model_path, models_dir
from cluster.weights.folder import State, partial_path, state_of, verify
from cluster.weights.manifest import MANIFEST_NAME, Manifest, describe_files, read_manifest, write_manifest


def make_model(folder: Path, key: str = "m") -> Path:
    path = folder / key
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"weights" * 100)
    (path / "config.json").write_bytes(b"{}")
    manifest = Manifest(source="hub", repo="org/m", revision="main", commit="c" * 40, files=describe_files(path))
    write_manifest(path, manifest)
    return path


def test_the_models_folder_is_models_dir_else_the_repositorys_own() -> None:
    assert models_dir({"MODELS_DIR": "/data/models"}) == Path("/data/models")
    assert models_dir({"MODELS_DIR": ""}) == models_dir({}) == Path(__file__).parents[4] / "models"


@pytest.mark.parametrize("key", ["", "..", "a/b", "/etc", ".hidden", "a\\b"])
def test_a_model_name_cannot_leave_the_models_folder(key: str) -> None:
    with pytest.raises(WeightsError, match="must be a plain folder name"):
        model_path(Path("/models"), key)


def test_a_manifest_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path = make_model(tmp_path)
    manifest = read_manifest(path)
    assert manifest is not None
    assert manifest.size == 702
    assert not list(path.glob("*.new"))


@pytest.mark.parametrize("content", ["", "not json", "{}", '{"files": {"a": {"size": -1, "sha256": "x"}}}'])
def test_a_folder_with_an_unreadable_manifest_is_no_model(tmp_path: Path, content: str) -> None:
    path = make_model(tmp_path)
    (path / MANIFEST_NAME).write_text(content, encoding="utf-8")
    assert read_manifest(path) is None
    assert not is_complete(path)


def test_a_folder_with_every_file_at_its_size_is_complete(tmp_path: Path) -> None:
    assert is_complete(make_model(tmp_path))
    assert missing_reason(tmp_path, "m") is None


def test_a_folder_that_lacks_a_file_or_its_manifest_is_not_complete(tmp_path: Path) -> None:
    path = make_model(tmp_path, "a")
    (path / "config.json").unlink()
    other = make_model(tmp_path, "b")
    (other / MANIFEST_NAME).unlink()
    assert not is_complete(path)
    assert not is_complete(other)
    assert not is_complete(tmp_path / "nowhere")


def test_completeness_reads_no_content(tmp_path: Path) -> None:
    path = make_model(tmp_path)
    (path / "model.safetensors").write_bytes(b"WEIGHTS" * 100)
    assert is_complete(path)


def test_a_partial_folder_is_never_a_model(tmp_path: Path) -> None:
    make_model(tmp_path, "m.partial")
    assert state_of(tmp_path, "m") is State.PARTIAL
    assert not is_complete(model_path(tmp_path, "m"))
    assert partial_path(tmp_path, "m") == tmp_path / "m.partial"


def test_the_reason_names_the_model_the_folder_and_the_remedy(tmp_path: Path) -> None:
    seed = "run `power-lever weights seed --profile ...`"
    (tmp_path / "x.partial").mkdir()
    assert missing_reason(tmp_path, "w") == f"weights of w are not in {tmp_path}: {seed}"
    assert missing_reason(tmp_path, "x") == f"weights of x are only partly in {tmp_path}: {seed} again, it continues"
    (make_model(tmp_path, "y") / "model.safetensors").unlink()
    assert missing_reason(tmp_path, "y") == f"weights of y in {tmp_path} are damaged (model.safetensors): {seed} again"
    (tmp_path / "z").mkdir()
    assert missing_reason(tmp_path, "z") == (
        f"{tmp_path / 'z'} has no manifest, so no seed made it: move it away and {seed}"
    )


def test_an_unreadable_models_folder_is_reported_with_node_folder_and_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-7")
    (tmp_path / "unmounted").mkdir()
    (tmp_path / "file").touch()
    for name, unseen in (
        ("nowhere", "does not exist"),
        ("unmounted", "is empty"),
        ("file", "cannot be read (Not a directory)"),
    ):
        assert missing_reason(tmp_path / name, "x") == (
            f"models folder {tmp_path / name} {unseen} on node gpu-7: mount the shared one there, set MODELS_DIR to "
            "the path that all nodes see it at, or run `power-lever weights seed --profile ...`"
        )


def test_a_stale_file_server_is_reported_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(path: Path) -> Iterator[Path]:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    make_model(tmp_path)
    monkeypatch.setattr(Path, "iterdir", gone)
    assert str(missing_reason(tmp_path, "m")).startswith(
        f"models folder {tmp_path} cannot be read (Stale file handle) on node "
    )


def test_verify_finds_a_changed_byte_that_the_cheap_check_cannot(tmp_path: Path) -> None:
    path = make_model(tmp_path)
    assert verify(tmp_path, "m") is None
    (path / "model.safetensors").write_bytes(b"weights" * 99 + b"weightz")
    assert verify(tmp_path, "m") == (
        f"weights of m are damaged: {path / 'model.safetensors'}; delete {path} and seed again"
    )
