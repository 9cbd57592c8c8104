"""Downloads from a hub over real HTTP: what arrives, what is asked for twice, what is refused."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from cluster.weights import WeightsError, is_complete
from cluster.weights.folder import State, state_of
from cluster.weights.manifest import MANIFEST_NAME, read_manifest
from router.registry import ModelSource
from tests.support.fake_hub import Seen
from tests.unit.cluster.weights.conftest import FILES, REPO, SOURCE, WANTED, World

T = TypeVar("T")
SHARD_1, SHARD_2 = (name for name in WANTED if name.endswith(".safetensors"))


def test_a_model_arrives_whole_and_without_duplicates_of_its_weights(world: World) -> None:
    assert world.seed() == "seeded"
    assert is_complete(world.path)
    assert sorted(path.name for path in world.path.iterdir()) == sorted([*WANTED, MANIFEST_NAME])
    assert {name: (world.path / name).read_bytes() for name in WANTED} == {name: FILES[name] for name in WANTED}
    assert not world.partial.exists()


def test_the_manifest_tells_the_commit_that_main_stood_for(world: World) -> None:
    world.seed()
    manifest = read_manifest(world.path)
    assert manifest is not None
    assert (manifest.repo, manifest.revision) == (REPO, "main")
    assert len(manifest.commit) == 40


def test_a_second_seed_asks_the_hub_nothing(world: World) -> None:
    world.seed()
    asked = len(world.hub.seen()), world.hub.listings
    assert world.seed() == "kept"
    assert (len(world.hub.seen()), world.hub.listings) == asked


def test_a_connection_cut_once_is_continued_at_the_next_byte(world: World) -> None:
    world.hub.cut(SHARD_1, after=100_000)
    assert world.seed() == "seeded"
    assert [(seen.start, seen.sent) for seen in world.hub.seen(SHARD_1)] == [(0, 100_000), (100_000, 200_000)]


def test_after_a_failed_seed_the_next_one_fetches_only_what_is_missing(world: World) -> None:
    # Shard 1 breaks off, and the hub then stays broken for it; everything else arrives.
    world.hub.cut(SHARD_1, after=120_000)
    world.hub.fail(SHARD_1, 503, after_requests=1)
    with pytest.raises(WeightsError, match="answered 503: seed again later, it continues"):
        world.seed()
    assert state_of(world.models_dir, "m") is State.PARTIAL
    assert not is_complete(world.path)
    before = len(world.hub.seen())

    world.hub.fail(SHARD_1, 0)
    assert world.seed() == "seeded"
    assert world.hub.seen()[before:] == [Seen(SHARD_1, start=120_000, sent=180_000, authorized=False)]
    assert (world.path / SHARD_1).read_bytes() == FILES[SHARD_1]
    assert any("are here already" in line for line in world.said)


def test_a_seeder_that_is_killed_leaves_no_model_and_is_continued(world: World, tmp_path: Path) -> None:
    world.hub.stall(SHARD_1, after=150_000)
    code = (
        "import sys; from pathlib import Path; from cluster.weights.hub import HubAccess;"
        "from cluster.weights.seeding import Seeder; from router.registry import ModelSource;"
        "Seeder(Path(sys.argv[1]), HubAccess(sys.argv[2], False), print)"
        f".seed('m', ModelSource(source='hub', repo={REPO!r}))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(world.models_dir), world.hub.url])
    unfinished = _wait_for(lambda: next(world.partial.glob(f"{SHARD_1}*.incomplete"), None))
    _wait_for(lambda: read is not None and SHARD_2 in read.files if (read := read_manifest(world.partial)) else None)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = unfinished.stat().st_size
    before = len(world.hub.seen())

    assert not world.path.exists()
    assert world.seed() == "seeded"
    asked = world.hub.seen()[before:]
    assert SHARD_2 not in [seen.file for seen in asked]
    assert [seen.start for seen in asked if seen.file == SHARD_1] == [kept]
    assert (world.path / SHARD_1).read_bytes() == FILES[SHARD_1]


def test_a_server_that_ignores_range_is_read_from_the_start(world: World) -> None:
    world.hub.cut(SHARD_1, after=100_000)
    world.hub.ignore_range()
    assert world.seed() == "seeded"
    assert (world.path / SHARD_1).read_bytes() == FILES[SHARD_1]


@pytest.mark.parametrize("file", [SHARD_2, "config.json"], ids=["lfs sha256", "git blob sha1"])
def test_bytes_that_are_not_what_the_hub_lists_are_refused_and_thrown_away(world: World, file: str) -> None:
    world.hub.corrupt(file)
    with pytest.raises(WeightsError, match=f"{file} arrived with a wrong checksum"):
        world.seed()
    assert not world.path.exists()
    assert not list(world.partial.glob(f"{file}*"))

    world.hub.corrupt(file, on=False)
    assert world.seed() == "seeded"
    assert world.hub.seen(file)[-1].start == 0


def test_a_branch_that_moved_on_in_between_does_not_mix_two_commits(world: World) -> None:
    world.hub.add(REPO, FILES | {"generation_config.json": b"gone in the next commit"})
    world.hub.cut(SHARD_1, after=100_000)
    world.hub.fail(SHARD_1, 500, after_requests=1)
    with pytest.raises(WeightsError):
        world.seed()
    changed = FILES | {SHARD_1: FILES[SHARD_1][::-1], "config.json": b'{"model_type": "qwen2"}'}
    world.hub.add(REPO, changed)
    world.hub.fail(SHARD_1, 0)
    assert world.seed() == "seeded"
    assert {path.name: path.read_bytes() for path in world.path.iterdir() if path.name != MANIFEST_NAME} == {
        name: changed[name] for name in WANTED
    }


def test_a_profile_that_names_another_repository_replaces_the_model(world: World) -> None:
    world.seed()
    world.hub.add("org/other", {"model.safetensors": b"other", "config.json": b"{}"})
    assert world.seed(ModelSource(source="hub", repo="org/other")) == "seeded"
    assert (world.path / "model.safetensors").read_bytes() == b"other"
    assert not (world.path / SHARD_1).exists()
    assert sorted(path.name for path in world.models_dir.iterdir()) == [".m.lock", "m"]


def test_a_model_that_lost_a_file_is_seeded_again(world: World) -> None:
    world.seed()
    (world.path / SHARD_1).write_bytes(b"cut short")
    assert state_of(world.models_dir, "m") is State.DAMAGED
    assert world.seed() == "seeded"
    assert (world.path / SHARD_1).read_bytes() == FILES[SHARD_1]


def test_a_folder_that_no_seed_made_is_not_touched(world: World) -> None:
    world.path.mkdir(parents=True)
    (world.path / "mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(WeightsError, match="no seed made it: move it away"):
        world.seed()
    assert (world.path / "mine.txt").exists()


def test_two_seeders_at_once_fetch_every_file_once(world: World) -> None:
    release = world.hub.stall(SHARD_1, after=1000)
    results: list[str] = []
    threads = [threading.Thread(target=lambda: results.append(world.seed())) for _ in range(2)]
    for thread in threads:
        thread.start()
    _wait_for(lambda: any("another seeder is at work" in line for line in world.said) or None)
    release.set()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["kept", "seeded"]
    assert sorted(seen.file for seen in world.hub.seen() if seen.start == 0) == sorted(WANTED)


def test_the_token_reaches_the_hub_but_never_the_storage_host(world: World) -> None:
    world.hub.add(REPO, FILES, gated=True)
    assert world.seed(token="hf_valid") == "seeded"
    assert {seen.file for seen in world.hub.seen() if seen.authorized} == {
        name for name in WANTED if name.endswith(".json")
    }


@pytest.mark.parametrize(
    ("how", "token", "source", "message"),
    [
        ("private", None, SOURCE, r"asks for a token: .* set HF_TOKEN"),
        ("private", "hf_wrong", SOURCE, r"does not accept HF_TOKEN \(401\): make a new one"),
        ("private", "hf_noaccess", SOURCE, r"org/model is not on .*: correct `repo`"),
        ("gated", None, SOURCE, r"is gated and no HF_TOKEN is set: accept its licence at http://.*/org/model"),
        ("gated", "hf_noaccess", SOURCE, r"is gated and your HF_TOKEN's account has no access yet: accept its licence"),
        ("open", "hf_valid", ModelSource(source="hub", repo="org/none"), r"org/none is not on .*: correct `repo`"),
        (
            "open",
            None,
            ModelSource(source="hub", repo=REPO, revision="v9"),
            r"has no revision 'v9': correct `revision`",
        ),
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


def test_a_hub_that_nobody_answers_for_is_named_with_what_to_check(world: World) -> None:
    with pytest.raises(WeightsError, match=r"no connection to http://127\.0\.0\.1:9 .*check the network"):
        world.seed(endpoint="http://127.0.0.1:9")


def test_too_little_space_is_found_before_the_first_byte(world: World) -> None:
    with pytest.raises(WeightsError, match=r"no space for m: 500.0 kB still to write, .* has 400.0 kB free; free some"):
        world.seed(free=lambda _: 400_000)
    assert world.hub.seen() == []


def test_space_is_asked_only_for_what_is_still_missing(world: World) -> None:
    world.hub.cut(SHARD_1, after=250_000)
    world.hub.fail(SHARD_1, 500, after_requests=1)
    with pytest.raises(WeightsError):
        world.seed()
    world.hub.fail(SHARD_1, 0)
    with pytest.raises(WeightsError, match=r"50\.0 kB still to write"):
        world.seed(free=lambda _: 49_999)
    assert world.seed(free=lambda _: 50_000) == "seeded"


def test_a_disk_that_fills_up_on_the_way_is_said_in_a_line(world: World) -> None:
    def full(_: Path) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(WeightsError, match=r"no space left while writing m to .*: free some and seed again"):
        world.seed(free=full)


def test_a_models_folder_that_cannot_be_made_is_said_in_a_line(world: World) -> None:
    world.models_dir.write_text("a file where the folder should be", encoding="utf-8")
    with pytest.raises(WeightsError, match=r"cannot write m to .*models"):
        world.seed()


def _wait_for(look: Callable[[], T | None], timeout_s: float = 20.0) -> T:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if (found := look()) is not None and found is not False:
            return found
        time.sleep(0.02)
    raise AssertionError("nothing to see within the time limit")
