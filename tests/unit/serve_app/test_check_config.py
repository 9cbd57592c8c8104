"""`power-lever check`: valid files pass, and wrong ones are reported before Ray starts anything."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from router.difficulty.gain_model import load_gain_model
from router.difficulty.pieces import PIECES_FILE
from router.registry import TIER_NAMES
from serve_app.__main__ import main
from serve_app.auth.key_file import load_keys
from serve_app.check_config import DEPLOYMENTS

OURS = "applications: [{import_path: 'serve_app.app:build', "
SHIPPED = Path(__file__).parents[3] / "serve_config.yaml"


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("INFERENCE_MODE", "DEMO_MODE", "MODELS_DIR"):
        monkeypatch.delenv(name, raising=False)


def serve_config(
    folder: Path, args: dict[str, Any], import_path: str = "serve_app.app:build", host: str = "127.0.0.1"
) -> str:
    path = folder / "serve.yaml"
    applications = [{"name": "lever", "import_path": import_path, "args": args}]
    path.write_text(yaml.safe_dump({"http_options": {"host": host}, "applications": applications}))
    return str(path)


def test_the_shipped_file_is_valid_with_both_profiles(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(SHIPPED)]) == 0
    out = capsys.readouterr().out
    assert "valid with profile local" in out
    assert "valid with profile gpu" in out


def test_a_profile_that_was_written_is_checked_by_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.yaml"
    assert main(["profile", "--gpus", "L4:1", "--output", str(path)]) == 0
    assert main(["check", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: a valid profile\n"
    written = path.read_text()
    path.write_text(written.replace("max_model_len: 8192", "max_model_len: 32768", 1))
    assert main(["check", str(path)]) == 0
    assert "warning: tiers.eco.chain, entry 'ngram' on 0.12 x L4: needs " in capsys.readouterr().out
    path.write_text(written.replace("gpus: 0.12", "gpus: 1.2"))
    assert main(["check", str(path)]) == 1
    assert capsys.readouterr().err.startswith(f"error: {path}: tiers.eco: gpus 1.2 must be a whole number")


def test_a_bare_off_is_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "serve.yaml"
    args = "{profile: local, auth: {mode: off}, agent: {mode: off}, tiers: {eco: {escalate: off}}}"
    path.write_text(f"http_options: {{host: 127.0.0.1}}\n{OURS}name: lever, args: {args}}}]\n")
    assert main(["check", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: lever: valid with profile local\n"


def test_only_a_named_profile_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = serve_config(tmp_path, {"profile": "gpu"})
    assert main(["check", path]) == 0
    assert capsys.readouterr().out == f"{path}: lever: valid with profile gpu\n"


def test_an_override_that_fits_only_one_profile_is_an_error_under_auto(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = serve_config(tmp_path, {"profile": "auto", "tiers": {"eco": {"gpu": "T4"}}})
    assert main(["check", path]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error: {path}: args (profile local): tiers.eco: gpu 'T4' and gpus 0 contradict")


def test_an_unknown_key_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", serve_config(tmp_path, {"profile": "local", "demo": True})]) == 1
    assert "demo: unknown key, allowed are" in capsys.readouterr().err


def test_the_environment_is_checked_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEMO_MODE", "maybe")
    assert main(["check", serve_config(tmp_path, {"profile": "local"})]) == 1
    assert capsys.readouterr().err == "error: DEMO_MODE: got 'maybe', must be 0 or 1\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("applications: [", "is not YAML"),
        ("- one", "got list, must be a mapping"),
        ("applications: []", "none has import_path serve_app.app:build"),
        ("http_options: {port: 1}", "applications: Field required"),
        ("applications:", "applications: Input should be a valid list, got null"),
        ("applications: {a: 1}", "applications: Input should be a valid list"),
        ("applications: [text]", "applications.0: Input should be an object, got 'text'"),
        (OURS + "args: [1]}]", "applications.0.args: Input should be an object, got [1]"),
        (OURS + "args: text}]", "applications.0.args: Input should be an object, got 'text'"),
        (OURS + "}]\nhttp_options: {port: many}", "http_options.port: Input should be a valid integer"),
        (OURS + "}]\nhttp_options: {prot: 1}", "http_options.prot: unknown key, allowed are host, port, root_path, "),
        (OURS + "}]\nhttp: {port: 1}", "http: unknown key, allowed are proxy_location, http_options, "),
        (OURS + "deployments: [{name: eco, replicas: 1}]}]", "applications.0.deployments.0.replicas: unknown key, "),
        (
            OURS + "deployments: [{name: ecco}]}]",
            "deployments.0.name: got 'ecco', allowed are ingress, pool, eco, balanced, performance, ultra",
        ),
    ],
)
def test_a_file_without_our_application_or_of_another_form_is_an_error(
    content: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(content)
    assert main(["check", str(path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {path}: ")
    assert expected in error


def test_what_serve_takes_for_a_deployment_is_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "serve.yaml"
    deployment = (
        "{name: eco, user_config: {any: 1}, autoscaling_config: {max_replicas: 3}, ray_actor_options: {num_cpus: 1}}"
    )
    http = "http_options: {host: 127.0.0.1}"
    path.write_text(OURS + f"args: {{profile: local}}, deployments: [{deployment}]}}]\n{http}")
    assert main(["check", str(path)]) == 0
    assert "valid with profile local" in capsys.readouterr().out


def test_the_deployments_that_may_be_named_are_those_of_the_application() -> None:
    source = (SHIPPED.parent / "serve_app/app.py").read_text(encoding="utf-8")
    assert set(DEPLOYMENTS) == {*re.findall(r'name="(\w+)"', source), *TIER_NAMES}


def test_a_missing_file_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path / "none.yaml")]) == 1
    assert "none.yaml: cannot be read: No such file or directory" in capsys.readouterr().err


def test_another_application_alone_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", serve_config(tmp_path, {}, import_path="other:app")]) == 1
    assert "none has import_path" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["check"], ["serve"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "Usage: power-lever" in capsys.readouterr().err


def test_an_entry_that_does_not_fit_its_card_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = serve_config(tmp_path, {"profile": "gpu", "tiers": {"performance": {"gpu": "L4"}}})
    assert main(["check", path]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == f"{path}: lever: valid with profile gpu"
    assert second.startswith("warning: tiers.performance.chain, entry '70b-w4a16-eagle3' on 1 x L4: needs 50.2 GiB (")


def test_a_gpu_that_the_catalogue_does_not_know_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = serve_config(tmp_path, {"profile": "gpu", "tiers": {"eco": {"gpu": "T4"}}})
    assert main(["check", path]) == 0
    _, warning = capsys.readouterr().out.splitlines()
    assert warning.startswith("warning: tiers.eco.gpu: got 'T4', which the catalogue does not know, so nothing of ")


@pytest.mark.parametrize("share", [0, -0.5, 1.5, True, "0.9", "half", None, float("nan")])
def test_a_share_of_a_cards_memory_that_is_none_is_an_error(
    share: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = {"name": "only", "target": "qwen3-4b-instruct-2507-fp8", "max_model_len": 4096}
    chain = [entry | {"engine_args": {"gpu_memory_utilization": share}}]
    path = serve_config(tmp_path, {"profile": "gpu", "tiers": {"eco": {"chain": chain}}})
    assert main(["check", path]) == 1
    assert (
        f"tiers.eco.chain.0.engine_args: gpu_memory_utilization must be a number above 0 and at most 1, got {share!r}"
        in capsys.readouterr().err
    )


def test_a_gain_model_that_can_be_read_is_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load_gain_model().save(tmp_path / "own.npz")
    path = serve_config(tmp_path, {"profile": "local", "auto": {"gain_model": str(tmp_path / "own.npz")}})
    assert main(["check", path]) == 0
    assert capsys.readouterr().out == f"{path}: lever: valid with profile local\n"


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("/nonexist.npz", "there is no such file"),
        ("/etc/passwd", "it is not an .npz file"),
        ("/etc", "it is not a file"),
        (str(PIECES_FILE), "it has no scalars"),
    ],
)
def test_a_gain_model_that_is_none_is_an_error_in_one_line(
    model: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = f"auto.gain_model: {model} is no gain model of `power-lever calibrate`: {problem}\n"
    path = serve_config(tmp_path, {"profile": "auto", "auto": {"gain_model": model}})
    assert main(["check", path]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"error: {path}: args: {sentence}"
    profile = tmp_path / "mine.yaml"
    assert main(["profile", "--gpus", "L4:1", "--output", str(profile)]) == 0
    profile.write_text(f"{profile.read_text()}\nauto: {{gain_model: {model}}}\n")
    capsys.readouterr()
    assert main(["check", str(profile)]) == 1
    assert capsys.readouterr().err == f"error: {profile}: {sentence}"


@pytest.mark.parametrize("model", ["", "relative.npz", "./own.npz", "~/own.npz"])
def test_a_gain_model_without_an_absolute_path_is_an_error(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = serve_config(tmp_path, {"profile": "local", "auto": {"gain_model": model}})
    assert main(["check", path]) == 1
    assert capsys.readouterr().err == (
        f"error: {path}: args (profile local): auto.gain_model: must be an absolute path, the same on every node, "
        f"got {model!r}\n"
    )


OPEN = "where anybody who reaches this machine could use it, as auth.mode is 'off': listen on 127.0.0.1, or set "


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "gpu.example"])
def test_an_application_that_asks_nobody_may_not_listen_beyond_this_machine(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = serve_config(tmp_path, {"profile": "local"}, host=host)
    assert main(["check", path]) == 1
    assert capsys.readouterr().err.startswith(f"error: {path}: http_options.host: got {host!r}, {OPEN}")


def test_serves_own_default_host_counts_where_the_file_names_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(OURS + "args: {profile: local}}]")
    assert main(["check", str(path)]) == 1
    assert capsys.readouterr().err.startswith(f"error: {path}: http_options.host: got '0.0.0.0', {OPEN}")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_it_may_listen_on_every_loopback_address(host: str, tmp_path: Path) -> None:
    assert main(["check", serve_config(tmp_path, {"profile": "local"}, host=host)]) == 0


def test_it_may_listen_anywhere_where_the_operator_means_it(tmp_path: Path) -> None:
    auth = {"allow_anonymous": True}
    assert main(["check", serve_config(tmp_path, {"profile": "local", "auth": auth}, host="0.0.0.0")]) == 0


def test_with_keys_it_may_listen_anywhere_and_a_file_without_a_valid_key_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = tmp_path / "keys.json"
    auth = {"mode": "keys", "keys_file": str(keys)}
    path = serve_config(tmp_path, {"profile": "local", "auth": auth}, host="0.0.0.0")
    valid = f"{path}: lever: valid with profile local\n"
    assert main(["check", path]) == 0
    missing = f"warning: auth.keys_file: {keys}: cannot be read: No such file or directory\n"
    assert capsys.readouterr().out == valid + missing
    assert main(["keys", "new", "--name", "me", "--scope", "infer", "--file", str(keys)]) == 0
    capsys.readouterr()
    assert main(["check", path]) == 0
    assert capsys.readouterr().out == valid
    assert main(["keys", "revoke", "me", "--file", str(keys)]) == 0
    assert main(["check", path]) == 0
    assert capsys.readouterr().out == valid + (
        f"warning: auth.keys_file: {keys} has no valid key: nobody would be let in\n"
    )


def test_a_daily_cap_that_has_no_room_for_one_request_of_the_agent_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = tmp_path / "keys.json"
    for name, usd in (("alice", "0.001"), ("bob", "0"), ("carol", "0.006"), ("dave", "none")):
        new = ["keys", "new", "--name", name, "--scope", "infer", "--agent-usd-per-day", usd, "--file", str(keys)]
        assert main(new) == 0
    alice = load_keys(keys).keys[0].id
    auth = {"mode": "keys", "keys_file": str(keys), "default_limits": {"agent_usd_per_day": 0.002}}
    args: dict[str, Any] = {"profile": "local", "auth": auth, "agent": {"usd_per_day": 0.004, "budget_usd": 0.005}}
    capsys.readouterr()
    assert main(["check", serve_config(tmp_path, args)]) == 0
    never = "USD is below agent.budget_usd = 0.005, which is held for each request: the agent is never asked"
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"warning: agent.usd_per_day: 0.004 {never}",
        f"warning: auth.default_limits.agent_usd_per_day: 0.002 {never}",
        f"warning: agent_usd_per_day of key {alice} (alice): 0.001 {never}",
    ]
    for agent in ({"mode": "off", "usd_per_day": 0.004}, {"usd_per_day": 0.1, "budget_usd": 0.001}):
        assert main(["check", serve_config(tmp_path, args | {"agent": agent})]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize("usd", [True, "5"])
def test_dollars_are_numbers_as_counts_are(usd: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    auth = {"mode": "keys", "default_limits": {"agent_usd_per_day": usd}}
    args: dict[str, Any] = {"profile": "local", "auth": auth, "agent": {"usd_per_day": usd}}
    assert main(["check", serve_config(tmp_path, args)]) == 1
    said = capsys.readouterr().err
    for where in ("auth.default_limits.agent_usd_per_day", "agent.usd_per_day"):
        assert f"{where}: Input should be a valid number, got {'true' if usd is True else repr(usd)}" in said


@pytest.mark.parametrize(
    ("auth", "expected"),
    [
        ({"mode": "on"}, "auth.mode: Input should be 'off' or 'keys', got 'on'"),
        ({"mode": "keys", "keys_file": "keys.json"}, "auth.keys_file: got 'keys.json', must be an absolute path"),
        ({"keys_file": "/k.json"}, "auth: mode 'off' takes no `keys_file`, got '/k.json'"),
        (
            {"default_limits": {"max_concurrent": 4}},
            "auth: mode 'off' takes no `default_limits`, got 4 at a time: there are no keys",
        ),
        (
            {"mode": "keys", "default_limits": {"max_concurrent": 0}},
            "auth.default_limits.max_concurrent: Input should be greater than or equal to 1, got 0",
        ),
        ({"mode": "keys", "default_limits": {"requests_per_hour": 1}}, "auth.default_limits.requests_per_hour"),
        (
            {"mode": "keys", "default_limits": {"agent_usd_per_day": float("nan")}},
            "auth.default_limits.agent_usd_per_day: Input should be a finite number, got NaN",
        ),
        ({"mode": "keys", "allow_anonymous": True}, "auth: mode 'keys' takes no `allow_anonymous`, got true"),
        ({"allow_anonymous": "perhaps"}, "auth.allow_anonymous: Input should be a valid boolean"),
        (
            {"allowed_hosts": ["https://a.example"]},
            "auth.allowed_hosts: got 'https://a.example', must be names without",
        ),
        ({"allowed_hosts": ["a.example:80"]}, "auth.allowed_hosts: got 'a.example:80', must be names without"),
        ({"allowed_hosts": "a.example"}, "auth.allowed_hosts: Input should be a list, got 'a.example'"),
        ({"allowed_origins": ["a.example"]}, "auth.allowed_origins: got 'a.example', must be as browsers send it"),
        ({"allowed_origins": ["https://a.example/"]}, "auth.allowed_origins: got 'https://a.example/', must be as"),
        ({"keys": []}, "auth.keys: unknown key, allowed are mode, keys_file, allow_anonymous, separate_caches, "),
    ],
)
def test_wrong_settings_of_who_may_do_what_are_named_with_what_is_allowed(
    auth: dict[str, Any], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = serve_config(tmp_path, {"profile": "local", "auth": auth})
    assert main(["check", path]) == 1
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1
