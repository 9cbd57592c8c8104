"""Which arguments of the entries the installed vLLM does not take, read in its source.

To import vLLM takes many seconds, and a machine where profiles are written may not have it. So only names and plain
types are checked; what vLLM refuses for another reason it says when an engine starts.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from router.registry import Profile
from serve_app.engine.vllm.compat import installed_version

_CLASSES: Final = {
    "engine/arg_utils.py": ("EngineArgs", "AsyncEngineArgs"),
    "entrypoints/launchers/cli_args.py": ("BaseFrontendArgs", "FrontendArgs"),
}
"""The classes that `arguments.py` fills, by file of vLLM."""
_PLAIN: Final[Mapping[str, Any]] = {"bool": bool, "int": int, "float": float, "str": str}


def argument_problems(profile: Profile) -> Iterator[str]:
    """Yield a line for each argument that vLLM does not have, or whose value is not of its type."""
    if not any(entry.engine_args for tier in profile.tiers.values() for entry in tier.chain):
        return
    known = known_arguments()
    if not known:
        yield "engine_args were not checked: vLLM is not installed here"
        return
    for name, tier in profile.tiers.items():
        for entry in tier.chain:
            for key, value in entry.engine_args.items():
                if problem := _problem(key, value, known):
                    yield f"tiers.{name}.chain, entry {entry.name!r}: engine_args.{key}: {problem}"


def _problem(key: str, value: Any, known: Mapping[str, Any]) -> str | None:
    if key not in known:
        close = get_close_matches(key, known, n=1)
        hint = f", did you mean {close[0]}?" if close else ""
        return f"vLLM {installed_version()} has no such argument{hint}"
    if known[key] is None:
        return None
    try:
        TypeAdapter(known[key]).validate_python(value)  # as vLLM's own config does
    except ValidationError:
        wanted = known[key].__name__ if isinstance(known[key], type) else known[key]
        return f"got {value!r}, vLLM {installed_version()} takes {wanted}"
    return None


@cache
def known_arguments() -> Mapping[str, Any]:
    """Return the type of each argument by name; None: one that is not checked. Empty: there is no vLLM."""
    found = find_spec("vllm")
    if found is None or found.origin is None:
        return {}
    known: dict[str, Any] = {}
    for file, classes in _CLASSES.items():
        tree = ast.parse((Path(found.origin).parent / file).read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name in classes:
                fields = (each for each in node.body if isinstance(each, ast.AnnAssign))
                known |= {
                    each.target.id: _type(each.annotation) for each in fields if isinstance(each.target, ast.Name)
                }
    return known


def _type(annotation: ast.expr) -> Any:
    """Return a plain type, or a union of plain types; None if it is anything else."""
    match annotation:
        case ast.Name(id=name):
            return _PLAIN.get(name)
        case ast.BinOp(left=left, op=ast.BitOr(), right=ast.Constant(value=None)):
            plain = _type(left)
            return None if plain is None else plain | None
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            first, second = _type(left), _type(right)
            return None if first is None or second is None else first | second
    return None
