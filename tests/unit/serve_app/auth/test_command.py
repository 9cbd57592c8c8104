"""`power-lever keys`: makes, lists, revokes and rotates keys in a file."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from serve_app.__main__ import main
from serve_app.auth.key_file import load_keys, write_keys
from serve_app.auth.keys import MOST_KEYS, KeyLimits, KeyList, KeyRing, make_key, utc_now
from serve_app.auth.settings import AuthSettings


class Keys:
    """The commands on one file."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self._capsys = capsys

    def run(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        """What it wrote to stdout and to stderr."""
        assert main(["keys", *arguments, "--file", str(self.path)]) == code
        return self._capsys.readouterr()

    def make(self, name: str = "alice", scope: str = "infer", *more: str) -> str:
        return self.run("new", "--name", name, "--scope", scope, *more)[0].strip()

    def names(self, *sent: str, after: timedelta = timedelta()) -> list[str | None]:
        """Who holds these keys."""
        ring = KeyRing.of(load_keys(self.path), utc_now())
        found = [ring.holder(each, utc_now() + after) for each in sent]
        return [None if key is None else key.name for key in found]


@pytest.fixture
def keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Keys:
    return Keys(tmp_path / "not yet there" / "keys.json", capsys)


def test_a_new_key_alone_is_on_stdout_and_its_hash_alone_in_the_file(keys: Keys) -> None:
    out, error = keys.run("new", "--name", "alice", "--scope", "admin")
    assert out.count("\n") == 1
    assert "scope admin; the key, which is shown only now:" in error
    secret = out.strip()
    assert keys.names(secret) == ["alice"]
    assert secret.split("_", 2)[2] not in keys.path.read_text()


def test_only_its_owner_may_read_the_file(keys: Keys) -> None:
    keys.make()
    assert keys.path.stat().st_mode & 0o777 == 0o600


def test_a_mode_that_the_operator_gave_the_file_stays(keys: Keys) -> None:
    keys.make("alice")
    keys.path.chmod(0o640)
    keys.make("bob")
    assert keys.path.stat().st_mode & 0o777 == 0o640


def test_a_link_to_the_file_stays_one(keys: Keys, tmp_path: Path) -> None:
    keys.make("alice")
    real = keys.path
    keys.path = tmp_path / "link.json"
    keys.path.symlink_to(real)
    keys.make("bob")
    assert keys.path.is_symlink()
    assert [key.name for key in load_keys(real).keys] == ["alice", "bob"]


def test_the_list_shows_who_may_do_what_and_no_secret(keys: Keys) -> None:
    secret = keys.make("alice", "infer", "--expires", "2199-12-31")
    keys.make("bob", "admin")
    keys.run("revoke", "bob")
    head, alice, bob = keys.run("list")[0].splitlines()
    assert head.split() == ["id", "name", "scope", "state", "made", "expires", "external", "reasoning", "limits"]
    assert alice.split()[1:4] == ["alice", "infer", "valid"]
    assert alice.split()[-3:] == ["00:00", "on", "default"]
    assert bob.split()[1:4] == ["bob", "admin", "revoked"]
    assert secret not in alice


def test_a_key_may_keep_its_requests_in_the_cluster_and_a_rotation_keeps_that(keys: Keys) -> None:
    keys.make("alice", "infer", "--no-external-reasoning")
    keys.make("bob")
    assert [key.external_reasoning for key in load_keys(keys.path).keys] == [False, True]
    assert [row.split()[-2] for row in keys.run("list")[0].splitlines()[1:]] == ["off", "on"]
    keys.run("rotate", "alice")
    assert load_keys(keys.path).keys[-1].external_reasoning is False


def test_whether_a_key_lets_requests_leave_is_changed_by_name_or_id(keys: Keys) -> None:
    keys.make("alice")
    bob = keys.make("bob").split("_")[1]
    _, told = keys.run("external-reasoning", "alice", "off")
    assert told.endswith("(alice): off\n")
    keys.run("external-reasoning", bob, "off")
    assert [key.external_reasoning for key in load_keys(keys.path).keys] == [False, False]
    keys.run("external-reasoning", "alice", "on")
    assert [key.external_reasoning for key in load_keys(keys.path).keys] == [True, False]
    assert "there is no valid key 'carol'" in keys.run("external-reasoning", "carol", "on", code=1)[1]
    assert "is not one of 'off', 'on'" in keys.run("external-reasoning", "alice", "maybe", code=2)[1]


def test_a_name_is_taken_while_its_key_is_valid(keys: Keys) -> None:
    keys.make("alice")
    _, error = keys.run("new", "--name", "alice", "--scope", "infer", code=1)
    assert error == "error: name: there is a valid key 'alice' already: rotate or revoke it, or take another name\n"
    keys.run("revoke", "alice")
    keys.make("alice")


def test_a_key_is_revoked_by_name_or_id_and_the_others_stay(keys: Keys) -> None:
    alice, bob, carol = keys.make("alice"), keys.make("bob"), keys.make("carol")
    keys.run("revoke", "alice")
    keys.run("revoke", bob.split("_")[1])
    assert keys.names(alice, bob, carol) == [None, None, "carol"]


def test_a_rotated_key_is_another_one_of_the_same_name_scope_and_expiry(keys: Keys) -> None:
    old = keys.make("alice", "admin", "--expires", "2199-12-31")
    new = keys.run("rotate", "alice")[0].strip()
    assert keys.names(old, new) == [None, "alice"]
    kept = load_keys(keys.path).keys[-1]
    assert (kept.scope, kept.expires_at) == ("admin", datetime(2199, 12, 31, tzinfo=UTC))


def test_the_old_key_stays_valid_for_the_overlap(keys: Keys) -> None:
    old = keys.make("alice")
    new = keys.run("rotate", "alice", "--overlap-hours", "2")[0].strip()
    assert keys.names(old, new, after=timedelta(hours=1.9)) == ["alice", "alice"]
    assert keys.names(old, new, after=timedelta(hours=2)) == [None, "alice"]


@pytest.mark.parametrize("expires", [(), ("--expires", "2199-12-31")])
@pytest.mark.parametrize("by_id", [True, False])
def test_a_rotation_during_an_overlap_makes_a_key_that_outlives_it(
    by_id: bool, expires: tuple[str, ...], keys: Keys
) -> None:
    old = keys.make("alice", "infer", *expires)
    keys.run("rotate", "alice", "--overlap-hours", "2")
    new = keys.run("rotate", old.split("_")[1] if by_id else "alice", "--overlap-hours", "3")[0].strip()
    assert keys.names(old, new, after=timedelta(hours=1.9)) == ["alice", "alice"]
    assert keys.names(old, new, after=timedelta(hours=2)) == [None, "alice"]
    assert len({key.expires_at for key in load_keys(keys.path).keys}) == 1


def test_a_key_that_is_rotated_for_good_takes_nothing_from_the_overlap_of_another(keys: Keys) -> None:
    keys.make("alice")
    second = keys.run("rotate", "alice", "--overlap-hours", "2")[0].strip()
    keys.run("revoke", second.split("_")[1])
    third = keys.run("rotate", "alice")[0].strip()
    assert keys.names(third, after=timedelta(hours=3)) == ["alice"]


def test_the_list_shows_when_an_overlap_ends(keys: Keys) -> None:
    keys.make("alice", "infer", "--expires", "2199-12-31")
    keys.run("rotate", "alice", "--overlap-hours", "2")
    _, old, new = keys.run("list")[0].splitlines()
    ends_at = load_keys(keys.path).keys[0].ends_at
    assert ends_at is not None
    assert f"  {ends_at:%Y-%m-%d %H:%M}  " in old
    assert ends_at < utc_now() + timedelta(hours=2.1)
    assert "  2199-12-31 00:00  " in new


@pytest.mark.parametrize("hours", ["nan", "inf", "-1", "2161"])
def test_an_overlap_is_a_number_of_hours_up_to_90_days(hours: str, keys: Keys) -> None:
    keys.make("alice")
    before = keys.path.read_bytes()
    _, error = keys.run("rotate", "alice", "--overlap-hours", hours, code=2)
    assert "Error: Invalid value for '--overlap-hours': " in error
    assert keys.path.read_bytes() == before


@pytest.mark.parametrize("verb", [("new", "--name", "carol", "--scope", "infer"), ("rotate", "bob")])
def test_a_new_key_drops_those_that_ended_more_than_90_days_ago(verb: tuple[str, ...], keys: Keys) -> None:
    now = utc_now()
    before = now - timedelta(days=91)
    ended = {
        "revoked-before": {"revoked_at": before},
        "expired-before": {"expires_at": before},
        "rotated-before": {"overlap_ends_at": before, "expires_at": now + timedelta(days=9)},
        "revoked-since": {"revoked_at": now - timedelta(days=89)},
    }
    made = [make_key(name, "infer", before).key.model_copy(update=update) for name, update in ended.items()]
    keys.path.parent.mkdir()
    write_keys(keys.path, KeyList(version=1, keys=(*made, make_key("bob", "infer", before).key)))
    keys.run(*verb)
    assert [key.name for key in load_keys(keys.path).keys][:-1] == ["revoked-since", "bob"]


def test_a_file_that_is_full_takes_no_new_key_and_still_a_revocation(keys: Keys) -> None:
    now = utc_now()
    full = [make_key(f"key-{number}", "infer", now).key for number in range(MOST_KEYS)]
    keys.path.parent.mkdir()
    write_keys(keys.path, KeyList(version=1, keys=tuple(full)))
    _, error = keys.run("new", "--name", "alice", "--scope", "infer", code=1)
    assert error == "error: there are 2000 keys, must be at most 2000 with the new one: remove some\n"
    keys.run("revoke", "key-7")
    assert load_keys(keys.path).keys[7].revoked_at is not None


@pytest.mark.parametrize("verb", ["revoke", "rotate"])
def test_a_key_that_is_not_there_is_an_error_that_names_those_that_are(verb: str, keys: Keys) -> None:
    secret = keys.make("alice")
    _, error = keys.run(verb, "bob", code=1)
    assert error == f"error: there is no valid key 'bob'; valid are: alice ({secret.split('_')[1]})\n"
    keys.run("revoke", "alice")
    assert keys.run(verb, "alice", code=1)[1] == "error: there is no valid key 'alice'; valid are: none\n"


def test_a_day_of_expiry_must_be_to_come(keys: Keys) -> None:
    _, error = keys.run("new", "--name", "alice", "--scope", "infer", "--expires", "2020-01-01", code=1)
    assert error == "error: --expires: got 2020-01-01, must be a day to come\n"
    assert not keys.path.exists()


@pytest.mark.parametrize("arguments", [("list",), ("revoke", "a"), ("rotate", "a")])
def test_without_a_file_it_is_an_error_in_one_line(arguments: tuple[str, ...], keys: Keys) -> None:
    _, error = keys.run(*arguments, code=1)
    assert error == f"error: {keys.path}: cannot be read: No such file or directory\n"
    assert not keys.path.parent.exists()


@pytest.mark.parametrize("arguments", [("list",), ("new", "--name", "b", "--scope", "infer"), ("revoke", "a")])
def test_a_broken_file_is_an_error_and_stays_as_it_is(arguments: tuple[str, ...], keys: Keys) -> None:
    keys.path.parent.mkdir()
    keys.path.write_text("broken")
    assert keys.run(*arguments, code=1)[1].startswith(f"error: {keys.path}: is not JSON")
    assert keys.path.read_text() == "broken"


def test_a_folder_that_takes_no_files_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", "--name", "a", "--scope", "infer", "--file", "/proc/keys.json"]) == 1
    assert capsys.readouterr().err.startswith("error: /proc/keys.json: cannot be written: ")


def test_a_write_that_fails_leaves_the_file_and_no_other(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    keys.make("alice")
    before = keys.path.read_bytes()

    def full(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("serve_app.auth.key_file.os.replace", full)
    _, error = keys.run("new", "--name", "bob", "--scope", "infer", code=1)
    assert error == f"error: {keys.path}: cannot be written: No space left on device\n"
    assert keys.path.read_bytes() == before
    assert sorted(each.name for each in keys.path.parent.iterdir()) == [".keys.json.lock", "keys.json"]


def test_the_file_may_be_named_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POWER_LEVER_KEYS_FILE", str(tmp_path / "k.json"))
    assert main(["keys", "new", "--name", "alice", "--scope", "infer"]) == 0
    assert [key.name for key in load_keys(tmp_path / "k.json").keys] == ["alice"]


def test_without_any_name_the_file_is_the_one_that_the_settings_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("POWER_LEVER_KEYS_FILE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["keys", "new", "--name", "alice", "--scope", "infer"]) == 0
    assert AuthSettings(mode="keys").keys_path == tmp_path / ".config/power-lever/keys.json"
    assert [key.name for key in load_keys(AuthSettings(mode="keys").keys_path).keys] == ["alice"]


def test_a_key_is_made_with_limits_and_keeps_them_when_it_is_rotated(keys: Keys) -> None:
    keys.make("alice", "infer", "--requests-per-minute", "60", "--agent-usd-per-day", "0.25")
    keys.run("rotate", "alice")
    old, new = load_keys(keys.path).keys
    assert new.limits == old.limits == KeyLimits(requests_per_minute=60, agent_usd_per_day=0.25)


def test_limits_are_changed_one_by_one_and_none_takes_one_away(keys: Keys) -> None:
    keys.make("alice")
    assert load_keys(keys.path).keys[0].limits is None
    keys.run("limits", "alice", "--requests-per-minute", "60", "--tokens-per-minute", "10000", "--max-concurrent", "4")
    _, said = keys.run("limits", "alice", "--requests-per-minute", "none", "--max-concurrent", "8")
    (alice,) = load_keys(keys.path).keys
    assert alice.limits == KeyLimits(tokens_per_minute=10000, max_concurrent=8)
    assert said == f"limits of {alice.id} (alice): 10,000 tokens/min, 8 at a time\n"
    assert keys.run("list")[0].splitlines()[1].rstrip().endswith("  10,000 tokens/min, 8 at a time")


def test_no_limit_at_all_is_not_the_default(keys: Keys) -> None:
    keys.make("alice", "infer", "--max-concurrent", "4")
    keys.run("limits", "alice", "--max-concurrent", "none")
    assert load_keys(keys.path).keys[0].limits == KeyLimits()
    assert keys.run("list")[0].splitlines()[1].split()[-1] == "none"
    keys.run("limits", "alice", "--default")
    assert load_keys(keys.path).keys[0].limits is None
    assert keys.run("list")[0].splitlines()[1].split()[-1] == "default"


def test_limits_of_a_name_are_those_of_all_its_valid_keys_and_of_an_id_its_own(keys: Keys) -> None:
    keys.make("alice")
    keys.run("rotate", "alice", "--overlap-hours", "1")
    keys.run("limits", "alice", "--max-concurrent", "4")
    old, _ = load_keys(keys.path).keys
    keys.run("limits", old.id, "--max-concurrent", "1")
    assert [key.limits for key in load_keys(keys.path).keys] == [
        KeyLimits(max_concurrent=1),
        KeyLimits(max_concurrent=4),
    ]


WRONG_LIMITS = {
    ("--requests-per-minute", "0"): "0 is not in the range",
    ("--requests-per-minute", "-1"): "-1 is not in the range",
    ("--requests-per-minute", "1.5"): "'1.5' is not a valid integer",
    ("--tokens-per-minute", "many"): "'many' is not a valid integer",
    ("--max-concurrent", "1000000000001"): "is not in the range",
    ("--agent-usd-per-day", "-0.1"): "-0.1 is not in the range",
    ("--agent-usd-per-day", "nan"): "nan is not a finite number",
    ("--agent-usd-per-day", "inf"): "inf is not a finite number",
    (): "give a limit, or --default",
    ("--default", "--max-concurrent", "1"): "goes with no other",
}


@pytest.mark.parametrize("wrong", WRONG_LIMITS, ids=" ".join)
def test_a_wrong_limit_changes_nothing_and_is_said(wrong: tuple[str, ...], keys: Keys) -> None:
    keys.make("alice")
    before = keys.path.read_bytes()
    _, error = keys.run("limits", "alice", *wrong, code=1 if not wrong or wrong[0] == "--default" else 2)
    assert WRONG_LIMITS[wrong] in error
    assert keys.path.read_bytes() == before


def test_limits_of_nobody_are_not_set(keys: Keys) -> None:
    keys.make("alice")
    _, error = keys.run("limits", "bob", "--max-concurrent", "1", code=1)
    assert error.startswith("error: there is no valid key 'bob'; valid are: alice (")


def test_commands_at_the_same_time_lose_no_key(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    script = (
        "import sys\nfrom serve_app.__main__ import main\n"
        "for turn in range(20):\n"
        "    more = ['--name', f'{sys.argv[1]}-{turn}', '--scope', 'infer', '--file', sys.argv[2]]\n"
        "    assert main(['keys', 'new', *more]) == 0"
    )
    running = [subprocess.Popen([sys.executable, "-c", script, name, str(path)]) for name in ("a", "b", "c")]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert len({key.name for key in load_keys(path).keys}) == 60
