"""The rooms import only the rooms below them (docs/architecture.md), read from the source."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.imports import imports, packages

ROOT = Path(__file__).parents[2]
ROOMS = ("router", "sustainability", "cluster", "serve_app", "bench", "tests")
ALLOWED = {
    "sustainability": set[str](),
    "router": {"sustainability"},
    "cluster": {"router", "sustainability"},
    "serve_app": {"router", "sustainability", "cluster"},
}


def modules(room: str) -> dict[str, Path]:
    """Dotted name and file of every module in a room."""
    found = {}
    for path in sorted((ROOT / room).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def every_module(*rooms: str) -> Iterator[tuple[str, Path]]:
    for room in rooms:
        found = modules(room)
        assert found, f"{room}/ has no modules: the test looks in the wrong place"
        yield from found.items()


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_imports_only_the_rooms_below_it(room: str) -> None:
    others = set(ROOMS) - ALLOWED[room] - {room}
    wrong = {name: packages(path) & others for name, path in every_module(room) if packages(path) & others}
    assert wrong == {}


@pytest.mark.parametrize("heavy", ["ray", "vllm", "torch", "transformers"])
def test_router_and_sustainability_import_nothing_heavy(heavy: str) -> None:
    wrong = [name for name, path in every_module("router", "sustainability") if heavy in packages(path)]
    assert wrong == []


def test_only_the_engine_and_what_it_puts_into_vllm_import_vllm() -> None:
    rooms = ("router", "sustainability", "cluster", "serve_app")
    assert [name for name, path in every_module(*rooms) if "vllm" in packages(path)] == [
        "serve_app.engine.vllm.arguments",
        "serve_app.engine.vllm.composite_drafts",
        "serve_app.engine.vllm.cpu_worker",
        "serve_app.engine.vllm.engine",
        "serve_app.engine.vllm.errors",
        "serve_app.engine.vllm.fair_scheduler",
        "serve_app.engine.vllm.gpu_worker",
        "serve_app.engine.vllm.graph_managers",
        "serve_app.engine.vllm.nvml",
        "serve_app.engine.vllm.scheduler",
        "serve_app.engine.vllm.sharing_scheduler",
        "serve_app.engine.vllm.worker.catch_up",
        "serve_app.engine.vllm.worker.drafting",
        "serve_app.engine.vllm.worker.step_clock",
        "serve_app.engine.vllm.worker.v2",
    ]


def test_the_engine_module_is_imported_only_inside_a_function_of_the_replica() -> None:
    ours = [
        name
        for name, path in every_module("cluster", "serve_app")
        if any(imported.startswith("serve_app.engine.vllm.engine") for imported in imports(path))
    ]
    assert ours == ["serve_app.engine.deployment"]
    tree = ast.parse(modules("serve_app")["serve_app.engine.deployment"].read_text(encoding="utf-8"))
    at_import = [node.module for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert "serve_app.engine.vllm.engine" not in at_import


def test_importing_the_ingress_brings_in_neither_vllm_nor_torch_nor_the_agents_sdks() -> None:
    # The agent's are imported by an ingress that has one, when it starts.
    heavy = "{'vllm', 'torch', 'anthropic', 'mcp', 'claude_agent_sdk'}"
    script = f"import sys, serve_app.app, serve_app.api.ingress; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
