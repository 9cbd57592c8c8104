"""Cost surfaces of engine steps, read from a YAML file: what a step takes, and which steps run in a full CUDA graph."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from router.errors import ConfigError
from router.registry import Frozen

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Step(NamedTuple):
    """What ran in one engine step."""

    tokens: int
    """Batched tokens: prefill, decode and verified draft tokens."""
    decoding: int
    """Requests that decoded."""
    uniform: int | None
    """Draft tokens that each decoding request verified; None: not the same for all."""
    depth: int
    """Deepest draft that was requested of the proposer."""
    prefill: bool
    """Whether prompt tokens were in it."""


class Shape(Frozen):
    """The cost surface of one engine. Times are milliseconds."""

    name: str = Field(description="Names it in the report.")
    k_max: int = Field(default=8, ge=1, le=32, description="Most draft tokens of a request in a step.")
    step_ms: tuple[tuple[Positive, Positive], ...] = Field(
        min_length=1, description="Batched tokens and time of a forward pass, ms; linear between, and beyond the ends."
    )
    graph: Literal["none", "k_max", "per_k", "any"] = Field(
        default="none",
        description="Decode steps that run in a full graph: all verify `k_max` drafts; all verify the same number; "
        "any. `none`: there are no graphs, and no step is dearer than another for lack of one.",
    )
    piecewise_ms: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="What any other step takes more, and each with prefill."
    )
    draft_ms: float = Field(default=0.0, ge=0, allow_inf_nan=False, description="One draft iteration.")
    draft: Literal["depth", "k_max", "always"] = Field(
        default="depth",
        description="Draft iterations that are paid: the deepest requested; `k_max` as soon as any is requested; "
        "`k_max` at every step.",
    )
    head: bool = Field(
        default=False, description="An EAGLE head drafts: a step without drafts pays for one draft iteration, too."
    )
    ngram: bool = Field(default=False, description="Drafts are looked up: in text that is hard to predict half fail.")

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        tokens = [point[0] for point in self.step_ms]
        if tokens != sorted(set(tokens)):
            raise ValueError(f"step_ms: tokens must ascend, got {tokens}")
        return self

    def forward_ms(self, tokens: float) -> float:
        """Return the time of a forward pass in a graph, ms."""
        points = self.step_ms
        if len(points) == 1:
            return points[0][1]
        index = min(max(bisect_right(points, tokens, key=lambda point: point[0]) - 1, 0), len(points) - 2)
        (left, left_ms), (right, right_ms) = points[index], points[index + 1]
        return max(1e-3, left_ms + (right_ms - left_ms) * (tokens - left) / (right - left))

    def verify_s(self, step: Step) -> float:
        """Return the time of verifying, s."""
        ms = self.forward_ms(step.tokens)
        if self.graph != "none" and (step.prefill or not self.captured(step.uniform)):
            ms += self.piecewise_ms
        return ms / 1000

    def captured(self, uniform: int | None) -> bool:
        """Return whether a decode step runs in a full graph in which all requests verify that many drafts."""
        if self.graph == "any":
            return True
        return uniform is not None and (self.graph == "per_k" or uniform == self.k_max)

    def draft_s(self, depth: int) -> float:
        """Return the time of drafting, s."""
        iterations = {"depth": depth, "k_max": self.k_max if depth else 0, "always": self.k_max}[self.draft]
        if self.head:
            iterations = max(1, iterations)
        return self.draft_ms * iterations / 1000

    def step_s(self, step: Step) -> float:
        """Return the time of a step, s."""
        return self.verify_s(step) + self.draft_s(step.depth)

    def off_s(self, step: Step) -> float:
        """Return the time of the same step on an engine without speculation, s."""
        return (self.forward_ms(step.tokens) + (self.piecewise_ms if step.prefill else 0.0)) / 1000


class _Shapes(Frozen):
    """The contents of a file."""

    shapes: tuple[Shape, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _names(self) -> Self:
        names = [shape.name for shape in self.shapes]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"shapes: each needs a name of its own, got {', '.join(map(repr, twice))} more than once")
        return self


def read_shapes(path: Path) -> Sequence[Shape]:
    """Read the shapes of a file. Keys that are not known are named on stderr and left out.

    Raises:
        ConfigError: says what is wrong, in one line.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: must be UTF-8, got byte {error.object[error.start]:#04x} at {error.start}"
        ) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: must be YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: must be YAML: it is nested too deep") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: must be an object with the key shapes, got {type(data).__name__}")
    rows = data.get("shapes")
    if not isinstance(rows, list):
        raise ConfigError(f"{path}: shapes: must be a list, got {type(rows).__name__}")
    unknown = {key for row in rows if isinstance(row, dict) for key in row if key not in Shape.model_fields}
    for key in sorted(map(str, unknown)):
        print(f"{path}: {key!r} is not known and left out", file=sys.stderr)
    known = [{key: row[key] for key in row if key not in unknown} if isinstance(row, dict) else row for row in rows]
    try:
        return _Shapes.model_validate({"shapes": known}).shapes
    except ValidationError as error:
        raise ConfigError.of(error, _Shapes, str(path)) from error
