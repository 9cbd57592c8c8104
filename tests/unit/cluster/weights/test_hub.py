"""Downloads from a hub over real HTTP: which files arrive, which are kept, what is refused."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from cluster.weights import WeightsError, is_complete
from cluster.weights.folder import State, state_of
from cluster.weights.hub import files_to_download
from cluster.weights.manifest import MANIFEST_NAME, read_manifest
from router.registry import ModelSource
from tests.unit.cluster.weights.conftest import FILES, NEEDED, REPO, SOURCE, World

NOT_READABLE = r"has no {} that this HF_TOKEN may read \({}\): check `repo` in the profile, and the token at http://"
SHARD_1, SHARD_2 = (name for name in NEEDED if name.endswith(".safetensors"))


def content(world: World) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in world.path.iterdir() if path.name != MANIFEST_NAME}


def test_a_model_arrives_complete_and_without_duplicates_of_its_weights(world: World) -> None:
    assert world.seed() == "seeded"
    assert is_complete(world.path)
    assert content(world) == {name: FILES[name] for name in NEEDED}
    assert not world.partial.exists()
    manifest = read_manifest(world.path)
    assert manifest is not None
    assert (manifest.repo, manifest.revision, len(manifest.commit)) == (REPO, "main", 40)


def test_a_second_seed_sends_the_hub_no_request(world: World) -> None:
    world.seed()
    before = world.hub.requests
    assert world.seed() == "kept"
    assert world.hub.requests == before


def test_a_broken_connection_is_retried(world: World) -> None:
    world.hub.cut(SHARD_1, after=100_000)
    assert world.seed() == "seeded"
    assert world.hub.downloads.count(SHARD_1) == 2
    assert content(world)[SHARD_1] == FILES[SHARD_1]


def test_after_a_failed_seed_the_next_one_downloads_only_the_missing_files(
    world: World, free_bytes: Callable[[int], None]
) -> None:
    release = world.hub.stall(SHARD_1)
    world.hub.fail(SHARD_1, 503)
    with ThreadPoolExecutor() as threads:
        seeding = threads.submit(world.seed)
        _wait_for(lambda: all((world.partial / name).exists() for name in NEEDED if name != SHARD_1))
        release.set()
        with pytest.raises(WeightsError, match="answered 503: seed again later, finished files are kept"):
            seeding.result()
    assert state_of(world.models_dir, "m") is State.PARTIAL
    assert not is_complete(world.path)
    before = len(world.hub.downloads)

    world.hub.fail(SHARD_1, None)
    free_bytes(len(FILES[SHARD_1]) - 1)
    with pytest.raises(WeightsError, match=r"300\.0 kB still to write"):
        world.seed()
    free_bytes(len(FILES[SHARD_1]))
    assert world.seed() == "seeded"
    assert world.hub.downloads[before:] == [SHARD_1]
    assert "4 files are here already" in world.lines[-2]
    assert content(world) == {name: FILES[name] for name in NEEDED}


def test_a_killed_seeder_leaves_no_model_and_the_next_one_keeps_its_finished_files(world: World) -> None:
    release = world.hub.stall(SHARD_1)
    code = (
        "import sys; from pathlib import Path; from cluster.weights.hub import HubAccess;"
        "from cluster.weights.seeding import Seeder; from router.registry import ModelSource;"
        "Seeder(Path(sys.argv[1]), HubAccess(sys.argv[2], False), print)"
        f".seed('m', ModelSource(source='hub', repo={REPO!r}))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(world.models_dir), world.hub.url])
    _wait_for(lambda: (world.partial / SHARD_2).exists() and list(world.partial.glob(".cache/**/*.incomplete")))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    release.set()
    before = len(world.hub.downloads)

    assert not world.path.exists()
    assert world.seed() == "seeded"
    assert SHARD_2 not in world.hub.downloads[before:]
    assert SHARD_1 in world.hub.downloads[before:]
    assert sorted(path.name for path in world.path.iterdir()) == sorted([*NEEDED, MANIFEST_NAME])


@pytest.mark.parametrize("file", [SHARD_2, "config.json"], ids=["lfs sha256", "git blob sha1"])
def test_a_file_that_differs_from_the_hubs_checksum_is_refused_and_removed(world: World, file: str) -> None:
    world.hub.corrupt(file)
    with pytest.raises(WeightsError, match=f"{file} arrived with a wrong checksum"):
        world.seed()
    assert not world.path.exists()
    assert not (world.partial / file).exists()

    world.hub.corrupt(file, on=False)
    assert world.seed() == "seeded"
    assert world.hub.downloads[-1] == file


CHANGED = FILES | {SHARD_2: FILES[SHARD_2][::-1], "config.json": b'{"model_type": "qwen2"}'}


def test_a_seed_that_continues_stays_with_the_commit_that_it_began_with(world: World) -> None:
    world.hub.fail(SHARD_1, 500)
    with pytest.raises(WeightsError):
        world.seed()
    world.hub.add(REPO, CHANGED)
    world.hub.fail(SHARD_1, None)
    assert world.seed() == "seeded"
    assert content(world) == {name: FILES[name] for name in NEEDED}


def test_a_model_that_is_seeded_again_keeps_its_commit_although_the_branch_has_moved(world: World) -> None:
    world.seed()
    before = read_manifest(world.path)
    world.hub.add(REPO, CHANGED)
    (world.path / SHARD_2).unlink()
    assert world.seed() == "seeded"
    assert content(world) == {name: FILES[name] for name in NEEDED}
    assert read_manifest(world.path) == before


def test_a_profile_may_name_a_commit(world: World) -> None:
    world.seed()
    manifest = read_manifest(world.path)
    assert manifest is not None
    world.hub.add(REPO, CHANGED)
    assert world.seed(ModelSource(source="hub", repo=REPO, revision=manifest.commit)) == "seeded"
    assert content(world) == {name: FILES[name] for name in NEEDED}


def test_an_update_moves_to_the_branchs_commit_and_never_mixes_two(world: World) -> None:
    world.seed()
    assert not world.seeder().has_moved("m", SOURCE)
    world.hub.add(REPO, CHANGED)
    assert world.seed() == "kept"
    assert world.seeder().has_moved("m", SOURCE)
    assert world.seeder().seed("m", SOURCE, again=True) == "seeded"
    assert content(world) == {name: CHANGED[name] for name in NEEDED}


def test_a_profile_that_names_another_repository_replaces_the_model(world: World) -> None:
    world.seed()
    world.hub.add("org/other", {"model.safetensors": b"other", "config.json": b"{}"})
    assert world.seed(ModelSource(source="hub", repo="org/other")) == "seeded"
    assert content(world) == {"model.safetensors": b"other", "config.json": b"{}"}
    assert sorted(path.name for path in world.models_dir.iterdir()) == [".m.lock", "m"]


def test_a_model_that_lost_a_file_is_seeded_again(world: World) -> None:
    world.seed()
    (world.path / SHARD_1).write_bytes(b"cut short")
    assert state_of(world.models_dir, "m") is State.DAMAGED
    assert world.seed() == "seeded"
    assert content(world)[SHARD_1] == FILES[SHARD_1]


def test_a_folder_that_no_seed_made_is_not_touched(world: World) -> None:
    world.path.mkdir(parents=True)
    (world.path / "mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(WeightsError, match="no seed made it: move it away"):
        world.seed()
    assert (world.path / "mine.txt").exists()


def test_two_seeders_at_once_download_every_file_once(world: World) -> None:
    release = world.hub.stall(SHARD_1)
    with ThreadPoolExecutor() as threads:
        seedings = [threads.submit(world.seed) for _ in range(2)]
        _wait_for(lambda: any("waiting for another seeder" in line for line in world.lines))
        release.set()
        assert sorted(seeding.result() for seeding in seedings) == ["kept", "seeded"]
    assert sorted(world.hub.downloads) == NEEDED


def test_a_gated_model_is_downloaded_with_a_token_that_has_access(world: World) -> None:
    world.hub.add(REPO, FILES, gated=True)
    assert world.seed(token="hf_valid") == "seeded"


@pytest.mark.parametrize(
    ("how", "token", "source", "message"),
    [
        ("private", None, SOURCE, NOT_READABLE.format("org/model", 401)),
        ("private", "hf_wrong", SOURCE, NOT_READABLE.format("org/model", 401)),
        ("private", "hf_noaccess", SOURCE, NOT_READABLE.format("org/model", 404)),
        ("gated", None, SOURCE, r"is gated: accept its licence at http://.*/org/model, set HF_TOKEN"),
        ("gated", "hf_noaccess", SOURCE, r"is gated: accept its licence"),
        ("open", "hf_valid", ModelSource(source="hub", repo="org/none"), NOT_READABLE.format("org/none", 404)),
        ("open", None, ModelSource(source="hub", repo=REPO, revision="v9"), r"no revision 'v9': correct `revision`"),
        ("open", None, ModelSource(source="hub", repo="a/b/c"), r"'a/b/c' is no repository name"),
        ("no weights", None, SOURCE, r"holds no weights that vLLM can load"),
    ],
)
def test_a_refusal_is_one_line_that_says_what_to_do(
    world: World, how: str, token: str | None, source: ModelSource, message: str
) -> None:
    files = {"config.json": b"{}"} if how == "no weights" else FILES
    world.hub.add(REPO, files, private=how == "private", gated=how == "gated")
    with pytest.raises(WeightsError, match=message) as caught:
        world.seed(source, token=token)
    assert "\n" not in str(caught.value)
    assert not world.path.exists()


def test_an_unreachable_hub_is_named_with_what_to_check(world: World) -> None:
    with pytest.raises(WeightsError, match=r"http://127\.0\.0\.1:9 cannot be used \(.*: check the network") as caught:
        world.seed(endpoint="http://127.0.0.1:9")
    assert "\n" not in str(caught.value)


def test_missing_space_is_found_before_the_first_byte(world: World, free_bytes: Callable[[int], None]) -> None:
    free_bytes(400_000)
    with pytest.raises(WeightsError, match=r"no space for m: 500.0 kB still to write, .* has 400.0 kB free; free some"):
        world.seed()
    assert world.hub.downloads == []


def test_a_disk_that_fills_up_is_reported_in_one_line(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.disk_usage", full)
    with pytest.raises(WeightsError, match=r"no space left while writing m to .*: free some and seed again"):
        world.seed()


def test_a_models_folder_that_cannot_be_created_is_reported_in_one_line(world: World) -> None:
    world.models_dir.write_text("a file where the folder should be", encoding="utf-8")
    with pytest.raises(WeightsError, match=r"cannot write m to .*models"):
        world.seed()


@pytest.mark.parametrize(
    ("listed", "downloaded"),
    [
        (
            [
                "config.json",
                "merges.txt",
                "model.safetensors",
                "tokenizer.model",
                "a.jinja",
                "README.md",
                "tf.h5",
            ],
            ["a.jinja", "config.json", "merges.txt", "model.safetensors", "tokenizer.model"],
        ),
        (["model.safetensors", "pytorch_model.bin", ".gitattributes"], ["model.safetensors"]),
        (["model.safetensors", "original/params.json", "onnx/model.safetensors"], ["model.safetensors"]),
        (["consolidated.safetensors", "model.safetensors"], ["model.safetensors"]),
        (["consolidated.safetensors", "params.json"], ["consolidated.safetensors", "params.json"]),
        (["config.json", "pytorch_model.bin"], ["config.json", "pytorch_model.bin"]),
        (["config.json", "weights.pth", "model.gguf"], []),
    ],
    ids=["no documents", "no pickles", "no folders", "no duplicates", "Mistral", "a pickle alone", "no weights"],
)
def test_only_what_an_engine_needs_is_downloaded(listed: list[str], downloaded: list[str]) -> None:
    assert files_to_download(listed) == downloaded


def _wait_for(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.02)
