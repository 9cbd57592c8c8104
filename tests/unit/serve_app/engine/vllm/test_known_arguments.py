"""Arguments that the installed vLLM does not take are found before an engine starts."""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from cluster.profiles.reading import load_profile
from router.registry import Profile
from serve_app.engine.vllm import known_arguments
from serve_app.engine.vllm.known_arguments import argument_problems

ENGINE = """
@dataclass
class EngineArgs:
    model: str = ModelConfig.model
    max_num_seqs: int | None = None
    enforce_eager: bool = False
    name: str | int | None = None
    dtype: ModelDType = ModelConfig.dtype
    def create(self) -> None: ...
class AsyncEngineArgs(EngineArgs):
    enable_log_requests: bool = False
class Other:
    other: int = 0
"""
SERVER = """
class BaseFrontendArgs:
    tool_call_parser: str | None = None
class FrontendArgs(BaseFrontendArgs):
    pass
"""


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vLLM with a few arguments."""
    for file, text in (("engine/arg_utils.py", ENGINE), ("entrypoints/launchers/cli_args.py", SERVER)):
        path = tmp_path / file
        path.parent.mkdir(parents=True)
        path.write_text(text)
    install(monkeypatch, ModuleSpec("vllm", None, origin=str(tmp_path / "__init__.py")))


def install(monkeypatch: pytest.MonkeyPatch, found: ModuleSpec | None) -> None:
    known_arguments.known_arguments.cache_clear()
    monkeypatch.setattr(known_arguments, "find_spec", lambda name: found)
    monkeypatch.setattr(known_arguments, "installed_version", lambda: "0.32.0")


@pytest.fixture(autouse=True)
def _read_again() -> Any:
    yield
    known_arguments.known_arguments.cache_clear()


def profile(**engine_args: Any) -> Profile:
    local = load_profile("local")
    tiers = {
        name: tier.model_copy(update={"chain": (tier.chain[-1].model_copy(update={"engine_args": {}}),)})
        for name, tier in local.tiers.items()
    }
    [entry] = tiers["ultra"].chain
    tiers["ultra"] = tiers["ultra"].model_copy(
        update={"chain": (entry.model_copy(update={"engine_args": engine_args}),)}
    )
    return local.model_copy(update={"tiers": tiers})


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("max_num_seq", 8, "vLLM 0.32.0 has no such argument, did you mean max_num_seqs?"),
        ("other", 8, "vLLM 0.32.0 has no such argument"),
        ("max_num_seqs", "many", "got 'many', vLLM 0.32.0 takes int | None"),
        ("enforce_eager", "perhaps", "got 'perhaps', vLLM 0.32.0 takes bool"),
        ("name", [1], "got [1], vLLM 0.32.0 takes str | int | None"),
    ],
)
def test_a_wrong_argument_is_named_with_its_tier_and_entry(vllm: None, key: str, value: Any, problem: str) -> None:
    where = f"tiers.ultra.chain, entry 'target-only': engine_args.{key}: "
    assert list(argument_problems(profile(**{key: value}))) == [where + problem]


@pytest.mark.parametrize(
    "engine_args",
    [
        {"max_num_seqs": 8, "enforce_eager": True, "name": "a"},
        {"max_num_seqs": None, "tool_call_parser": "hermes", "enable_log_requests": True},
        {"dtype": "anything"},  # a type of vLLM's own is not looked at
    ],
)
def test_arguments_that_vllm_takes_are_no_problem(vllm: None, engine_args: dict[str, Any]) -> None:
    assert list(argument_problems(profile(**engine_args))) == []


def test_without_vllm_it_says_that_nothing_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, None)
    assert list(argument_problems(profile(anything=1))) == ["engine_args were not checked: vLLM is not installed here"]
    assert list(argument_problems(profile())) == []


@pytest.mark.parametrize("name", ["local", "gpu", "plan:L4:1", "plan:H100:8"])
def test_the_installed_vllm_takes_every_argument_that_we_write(name: str) -> None:
    assert [each for each in argument_problems(load_profile(name)) if "not installed" not in each] == []
