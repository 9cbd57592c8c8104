"""What the package may import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.imports import imports

PACKAGE = Path(__file__).parents[4] / "serve_app" / "speculation"


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.name)
def test_only_the_standard_library_pydantic_and_pure_parts_of_the_router_are_imported(path: Path) -> None:
    allowed = (sys.stdlib_module_names - {"time", "datetime"}) | {"pydantic"}
    ours = (
        "serve_app.speculation",
        "router.observation",
        "router.registry",
        "router.spec_params",
        "sustainability.shares",
    )
    wrong = [name for name in imports(path) if name.partition(".")[0] not in allowed and not name.startswith(ours)]
    assert wrong == []


def test_importing_the_controller_brings_in_nothing_heavy() -> None:
    script = (
        "import sys, serve_app.speculation.controller; "
        "print(sorted({'vllm', 'ray', 'torch', 'numpy', 'starlette'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=PACKAGE.parents[1], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
