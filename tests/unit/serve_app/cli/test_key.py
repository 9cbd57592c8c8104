"""The commands send the key of the environment, and say what is wrong without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from serve_app.__main__ import main
from serve_app.auth.key_file import write_keys
from serve_app.auth.keys import KeyList, make_key, utc_now
from tests.support.app_config import app_config
from tests.support.local_ingress import LocalIngress
from tests.support.served import served

MADE = make_key("me", "infer", utc_now())
COMMANDS = (["ask", "Hi. stub:tokens=2", "--url"], ["tiers", "--url"], ["plan", "Hi", "--url"])


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of an application that asks for a key."""
    path = tmp_path / "keys.json"
    write_keys(path, KeyList(version=1, keys=(MADE.key,)))
    auth = {"mode": "keys", "keys_file": str(path)}
    with served(LocalIngress(app_config(inference_mode="mock", auth=auth), monkeypatch).app) as url:
        yield url


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_the_key_of_the_environment_is_sent(command: list[str], url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POWER_LEVER_KEY", f" {MADE.secret}\n")
    assert main([*command, url]) == 0


@pytest.mark.parametrize("command", COMMANDS[1:], ids=lambda command: command[0])
@pytest.mark.parametrize(
    ("key", "said"), [("", "set POWER_LEVER_KEY"), ("wrong", "the one in POWER_LEVER_KEY is not valid")]
)
def test_without_a_valid_key_the_error_says_where_it_belongs(
    command: list[str],
    key: str,
    said: str,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("POWER_LEVER_KEY", key)
    assert main([*command, url]) == 1
    assert capsys.readouterr().err == f"error: {url}/api/tiers asks for a key: {said}\n"


def test_ask_shows_the_servers_refusal(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("POWER_LEVER_KEY", raising=False)
    assert main(["ask", "Hi", "--url", url]) == 1
    assert "error: this server needs a valid key" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["schlüssel", "two\nlines", "a b"])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_what_can_be_no_key_is_an_error_in_one_line(
    command: list[str], key: str, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POWER_LEVER_KEY", key)
    assert main([*command, url]) == 1
    said = capsys.readouterr().err
    assert said == "error: POWER_LEVER_KEY: must be a key as `power-lever keys new` prints it\n"
