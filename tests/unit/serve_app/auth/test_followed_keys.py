"""A replica follows the keys file, and keeps the last good keys while it is broken."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from router.errors import ConfigError
from serve_app.auth import key_file
from serve_app.auth.key_file import FollowedKeys, load_keys, write_keys
from serve_app.auth.keys import MOST_KEYS, KeyList, NewKey, make_key, utc_now
from tests.support.real_loops import REAL_LOOPS

pytestmark = REAL_LOOPS  # a thread reads the file


def made(name: str) -> NewKey:
    return make_key(name, "infer", utc_now())


def listed(*keys: NewKey) -> KeyList:
    return KeyList(version=1, keys=tuple(key.key for key in keys))


def lets_in(followed: FollowedKeys, key: NewKey) -> bool:
    return followed.ring is not None and followed.ring.holder(key.secret, utc_now()) == key.key


async def test_the_file_is_read_when_the_replica_starts(tmp_path: Path) -> None:
    alice = made("alice")
    write_keys(tmp_path / "keys.json", listed(alice))
    assert lets_in(FollowedKeys(tmp_path / "keys.json"), alice)


async def test_a_change_counts_at_the_next_reading(tmp_path: Path) -> None:
    alice, bob = made("alice"), made("bob")
    write_keys(tmp_path / "keys.json", listed(alice))
    followed = FollowedKeys(tmp_path / "keys.json")
    write_keys(tmp_path / "keys.json", listed(bob))
    await followed.refresh()
    assert not lets_in(followed, alice)
    assert lets_in(followed, bob)


async def test_a_mounted_secret_changes_when_its_link_is_replaced(tmp_path: Path) -> None:
    alice, bob = made("alice"), made("bob")
    for name, key in (("one", alice), ("two", bob)):
        (tmp_path / name).mkdir()
        write_keys(tmp_path / name / "keys.json", listed(key))
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "keys.json").symlink_to("..data/keys.json")
    followed = FollowedKeys(tmp_path / "keys.json")
    assert lets_in(followed, alice)
    (tmp_path / "..data_tmp").symlink_to("two")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    await followed.refresh()
    assert not lets_in(followed, alice)
    assert lets_in(followed, bob)


@pytest.mark.parametrize("broken", [b"", b"{", b'{"version": 3}', b" " * 1_000_001, None])
async def test_a_broken_or_missing_file_leaves_the_last_good_keys(broken: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    alice = made("alice")
    write_keys(path, listed(alice))
    followed = FollowedKeys(path)
    path.unlink()
    if broken is not None:
        path.write_bytes(broken)
    with pytest.raises(ConfigError, match=str(path)):
        await followed.refresh()
    assert lets_in(followed, alice)


async def test_before_the_file_was_ever_good_nobody_is_let_in_and_then_it_counts(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    followed = FollowedKeys(path)
    assert followed.ring is None
    alice = made("alice")
    write_keys(path, listed(alice))
    await followed.refresh()
    assert lets_in(followed, alice)


async def test_it_reads_on_by_itself_and_says_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_file, "READ_EVERY_S", 0.01)
    path = tmp_path / "keys.json"
    alice = made("alice")
    followed = FollowedKeys(path)
    followed.work.start()
    while followed.work.trouble() is None:  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0.01)
    assert f"{path}: cannot be read: No such file or directory" in str(followed.work.trouble())
    write_keys(path, listed(alice))
    while not lets_in(followed, alice) or followed.work.trouble() is not None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    followed.work.stop()


async def test_as_many_keys_as_may_be_made_never_make_a_file_that_is_too_large(tmp_path: Path) -> None:
    now = utc_now()  # with microseconds
    times = {"created_at": now, "expires_at": now, "overlap_ends_at": now, "revoked_at": now}
    keys = (make_key("a" * 64, "admin", now).key.model_copy(update=times) for _ in range(MOST_KEYS))
    write_keys(tmp_path / "keys.json", KeyList(version=1, keys=tuple(keys)))
    assert len(load_keys(tmp_path / "keys.json").keys) == MOST_KEYS
