"""What the package may import, and how its settings are written."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from serve_app.speculation.settings import SpeculationSettings
from tests.support.imports import imports

PACKAGE = Path(__file__).parents[4] / "serve_app" / "speculation"


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.name)
def test_only_the_standard_library_pydantic_and_pure_parts_of_the_router_are_imported_and_no_clock(path: Path) -> None:
    allowed = (sys.stdlib_module_names - {"time", "datetime"}) | {"pydantic"}
    ours = ("serve_app.speculation", "router.registry", "router.runs.wilson", "router.spec_params")
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


def groups(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield kind
    for field in kind.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from groups(field.annotation)


@pytest.mark.parametrize("kind", list(groups(SpeculationSettings)), ids=lambda kind: kind.__name__)
def test_every_setting_is_described_frozen_and_has_a_default(kind: type[BaseModel]) -> None:
    assert [name for name, field in kind.model_fields.items() if not field.description] == []
    assert [name for name, field in kind.model_fields.items() if field.is_required()] == []
    assert kind.model_config.get("frozen") is True
    assert kind.model_config.get("extra") == "forbid"


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        SpeculationSettings.model_validate({"tau": {"margn": 0.1}})
