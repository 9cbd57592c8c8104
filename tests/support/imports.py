"""What a module imports, read from its source."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def imports(path: Path) -> frozenset[str]:
    """Return the dotted names of everything that a file imports; `from a import b` counts as `a` and as `a.b`.

    Raises:
        AssertionError: an import is relative, which hides the room that is meant.
    """
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def packages(path: Path) -> set[str]:
    """Return the top-level packages that a file imports."""
    return {name.partition(".")[0] for name in imports(path)}
