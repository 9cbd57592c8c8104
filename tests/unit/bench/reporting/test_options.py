"""A benchmark reports a missing module before it measures anything."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from bench.reporting.options import NEEDS, parser
from tests.support.imports import imports

ROOT = Path(__file__).parents[4]
BENCHMARKS = sorted(
    path.stem
    for path in (ROOT / "bench").glob("*.py")
    if "from bench.reporting.options import parser" in path.read_text(encoding="utf-8")
)
OURS = {"router", "sustainability", "cluster", "serve_app"}


def listed(name: str) -> set[str]:
    """Return the packages of a requirements file, as modules."""
    lines = (ROOT / "requirements" / name).read_text(encoding="utf-8").splitlines()
    return {line.partition("==")[0].replace("-", "_").lower() for line in lines if "==" in line}


def source(module: str) -> Path:
    """Return the file of a module of bench/."""
    return (ROOT / "bench" / module.replace(".", "/")).with_suffix(".py")


def needs(module: str, seen: set[str]) -> set[str]:
    """Return the packages that only `make install-dev` installs and that a module of bench/ needs."""
    found = set[str]()
    seen.add(module)
    for name in imports(source(module)):
        package, _, inner = name.partition(".")
        if package == "bench" and inner not in seen and source(inner).is_file():
            found |= needs(inner, seen)
        elif package in listed("dev.txt") - listed("cpu.txt"):
            found.add(package)
    return found


def test_the_benchmarks_are_found() -> None:
    assert {"overhead", "speculation", "routing", "autoscaling"} <= set(BENCHMARKS)


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_a_benchmark_checks_all_modules_that_make_serve_does_not_install(benchmark: str) -> None:
    assert set(NEEDS.get(f"bench.{benchmark}", ())) == needs(benchmark, set())


@pytest.mark.parametrize("module", sorted(NEEDS))
def test_with_a_missing_module_the_benchmark_ends_at_once_and_says_what_to_run(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bench.reporting.options.find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", [module, "--quick"])
    with pytest.raises(SystemExit) as ended:
        import_module(module).main()
    assert ended.value.code == 1
    needed = ", ".join(NEEDS[module])
    assert capsys.readouterr().err == f"python -m {module} needs {needed}, which `make install-dev` installs\n"


def test_with_all_modules_the_benchmark_starts() -> None:
    assert parser("bench.speculation", None, "less").parse_args(["--quick"]).quick is True
