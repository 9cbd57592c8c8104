"""Keys: what one looks like, and who holds a key that was sent."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from router.errors import ConfigError
from serve_app.auth.key_file import load_keys, write_keys
from serve_app.auth.keys import MOST_COUNTED, MOST_KEYS, Key, KeyLimits, KeyList, KeyRing, make_key, read_key_list

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
MADE = make_key("alice", "infer", NOW)


def ring(*keys: Key, made: datetime = NOW) -> KeyRing:
    return KeyRing.of(KeyList(version=1, keys=keys), made)


def test_a_key_holds_its_id_and_256_random_bits_and_its_hash_alone_is_kept() -> None:
    assert MADE.secret.startswith(f"pl_{MADE.key.id}_")
    assert len(MADE.secret.removeprefix(f"pl_{MADE.key.id}_")) == 43  # 32 bytes in base64
    assert MADE.key.sha256 == hashlib.sha256(MADE.secret.encode()).hexdigest()
    assert MADE.secret.removeprefix(f"pl_{MADE.key.id}_") not in MADE.key.model_dump_json()


def test_no_two_keys_are_alike() -> None:
    made = [make_key("alice", "infer", NOW) for _ in range(100)]
    assert len({one.secret for one in made}) == len({one.key.id for one in made}) == 100


def test_a_key_is_its_holders() -> None:
    other = make_key("bob", "admin", NOW)
    both = ring(MADE.key, other.key)
    assert both.holder(MADE.secret, NOW) == MADE.key
    assert both.holder(other.secret, NOW) == other.key


def limited(limits: KeyLimits | None, name: str = "alice") -> Key:
    return make_key(name, "infer", NOW, None, limits).key


def test_of_several_valid_keys_of_a_name_the_smallest_of_each_limit_counts() -> None:
    old, new = limited(KeyLimits(requests_per_minute=1000, max_concurrent=2)), limited(KeyLimits(requests_per_minute=5))
    plain, bob = limited(None), limited(KeyLimits(requests_per_minute=1), name="bob")
    default = KeyLimits(tokens_per_minute=100)
    for key in (old, new):
        both = KeyLimits(requests_per_minute=5, max_concurrent=2)
        assert ring(old, new, bob).limits(key, default, NOW) == both
        assert ring(old, new, plain, bob).limits(key, default, NOW) == both.model_copy(
            update={"tokens_per_minute": 100}
        )
    assert ring(bob).limits(bob, default, NOW) == KeyLimits(requests_per_minute=1)


def test_limits_of_a_key_that_has_ended_count_no_more_but_for_what_it_still_runs() -> None:
    old, new = limited(KeyLimits(requests_per_minute=5)), limited(KeyLimits(requests_per_minute=1000))
    ends = old.model_copy(update={"overlap_ends_at": NOW})
    before = NOW - timedelta(seconds=1)
    for made in (before, NOW):
        both = ring(ends, new, made=made)
        assert both.limits(new, KeyLimits(), NOW).requests_per_minute == 1000
        assert both.limits(ends, KeyLimits(), NOW).requests_per_minute == 1000
        assert ring(ends, made=made).limits(ends, KeyLimits(), NOW).requests_per_minute == 5
    assert ring(ends, new, made=before).limits(new, KeyLimits(), before).requests_per_minute == 5


NO_KEYS = {
    "nothing": "",
    "a word": "none",
    "a sign less": MADE.secret[:-1],
    "a sign more": MADE.secret + "A",
    "a line's end": MADE.secret + "\n",
    "a space before": " " + MADE.secret,
    "capitals": MADE.secret.upper(),
    "another last sign": MADE.secret[:-1] + ("A" if MADE.secret[-1] != "A" else "B"),
    "the id alone": f"pl_{MADE.key.id}_",
    "the hash": MADE.key.sha256,
    "a key of another file": make_key("alice", "infer", NOW).secret,
    "letters that no key has": "pl_" + "é" * 56,
    "very long": "x" * 100_000,
}


@pytest.mark.parametrize("what", NO_KEYS)
def test_what_is_no_key_is_nobodys(what: str) -> None:
    assert ring(MADE.key).holder(NO_KEYS[what], NOW) is None


def test_a_key_with_the_id_of_another_is_nobodys() -> None:
    other = make_key("mallory", "admin", NOW)
    forged = other.secret.replace(other.key.id, MADE.key.id)
    assert ring(MADE.key, other.key).holder(forged, NOW) is None


def test_a_key_ends_at_its_expiry() -> None:
    made = make_key("alice", "infer", NOW, expires_at=NOW + timedelta(hours=1))
    keys = ring(made.key)
    assert keys.holder(made.secret, NOW + timedelta(minutes=59)) == made.key
    assert keys.holder(made.secret, NOW + timedelta(hours=1)) is None


def test_a_revoked_key_is_nobodys() -> None:
    revoked = MADE.key.model_copy(update={"revoked_at": NOW})
    assert ring(revoked).holder(MADE.secret, NOW) is None


@pytest.mark.parametrize("name", ["", "a b", "-a", "ä", "a" * 65, "a/b", "a\n", "0123456789ab"])
def test_a_name_that_is_none_is_refused_with_what_is_allowed(name: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_key(name, "infer", NOW)
    assert str(error.value).startswith(f"name: got {name!r}, must have 1 to 64 letters, digits and ._@-")


def test_what_is_written_is_read_again() -> None:
    listed = KeyList(version=1, keys=(MADE.key,))
    assert read_key_list(listed.model_dump_json().encode(), "keys.json") == listed


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", "keys.json: is not JSON"),
        (b"{", "keys.json: is not JSON"),
        (b"\xff", "keys.json: is not JSON"),
        (b"[]", "keys.json: (top level): Input should be an object, got []"),
        (b"{}", "keys.json: version: Field required"),
        (b'{"version": 2}', "keys.json: version: Input should be 1, got 2"),
        (b'{"version": 1, "keys": [{"limit": 1}]}', "keys.0.limit: unknown key, allowed are id, name, scope, sha256"),
        (
            b'{"version": 1, "keys": [{"scope": "root"}]}',
            "keys.0.scope: Input should be 'infer' or 'admin', got 'root'",
        ),
    ],
)
def test_a_file_of_another_form_is_an_error_that_names_what_is_wrong(raw: bytes, expected: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_key_list(raw, "keys.json")
    assert expected in str(error.value)


def test_an_id_that_is_there_twice_is_an_error() -> None:
    with pytest.raises(ValueError, match=f"each id must be there once, twice are {MADE.key.id}"):
        KeyList(version=1, keys=(MADE.key, MADE.key))


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"requests_per_minute": 0}, "requests_per_minute"),
        ({"tokens_per_minute": 1.5}, "tokens_per_minute"),
        ({"max_concurrent": True}, "max_concurrent"),
        ({"max_concurrent": "4"}, "max_concurrent"),
        ({"agent_usd_per_day": -1}, "agent_usd_per_day"),
        ({"requests_per_hour": 1}, "requests_per_hour"),
        ([], "limits"),
    ],
)
def test_a_file_with_a_wrong_limit_is_refused_by_its_name(limits: object, said: str) -> None:
    raw = json.dumps({"version": 1, "keys": [json.loads(MADE.key.model_dump_json()) | {"limits": limits}]})
    with pytest.raises(ConfigError, match=said):
        read_key_list(raw.encode(), "keys.json")


def test_a_file_of_before_there_were_limits_has_keys_without_their_own() -> None:
    before = MADE.key.model_dump_json(exclude={"limits"})
    (key,) = read_key_list(f'{{"version": 1, "keys": [{before}]}}'.encode(), "keys.json").keys
    assert key.limits is None


def test_as_many_keys_as_a_file_may_have_are_readable_with_all_their_limits(tmp_path: Path) -> None:
    limits = KeyLimits(
        requests_per_minute=MOST_COUNTED, tokens_per_minute=MOST_COUNTED, max_concurrent=MOST_COUNTED,
        agent_usd_per_day=0.1 + 0.2,
    )  # fmt: skip
    key = make_key("a" * 64, "admin", NOW, NOW, limits).key.model_copy(
        update={"revoked_at": NOW, "overlap_ends_at": NOW}
    )
    keys = tuple(key.model_copy(update={"id": f"{number:012x}"}) for number in range(MOST_KEYS))
    write_keys(tmp_path / "keys.json", KeyList(version=1, keys=keys))
    assert load_keys(tmp_path / "keys.json").keys == keys
