"""Prompts with the outcomes of a weak and a strong model, read from a JSON Lines file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import PydanticUseDefault

from router.errors import ConfigError


class Outcome(BaseModel):
    """A prompt, and how the two models answered it: one line of the file. Other keys are not used."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)  # allowed, to be named in a warning

    prompt: str = Field(min_length=1, description="What the user wrote.")
    weak_score: float = Field(ge=-1, le=1, description="The weak model's result, 0 (wrong) to 1 (right).")
    strong_score: float = Field(ge=-1, le=1, description="The strong model's result.")
    source: str = Field(default="own", min_length=1, description="Where the prompt is from; sources count the same.")
    kind: str = Field(default="", description="Of prompt; for reports only.")
    weight: float = Field(
        default=1.0, ge=1e-6, le=1e6, description="How much the row counts against those of other sources."
    )
    id: str = Field(default="", description="`SOURCE:KEY`. Rows of one key are one task in several wordings.")

    @field_validator("source", "kind", "weight", "id", mode="before")
    @classmethod
    def _null_is_none(cls, value: object) -> object:
        if value is None:
            raise PydanticUseDefault
        return value

    @property
    def gain(self) -> float:
        """The gain of the strong model."""
        return self.strong_score - self.weak_score

    @property
    def group(self) -> str:
        """The same for rows that are one task: the key of the id, or the prompt without its spacing and case."""
        return self.id.partition(":")[2] or " ".join(self.prompt.lower().split())


def read_outcomes(path: Path) -> list[Outcome]:
    """Return the outcomes of a file, one JSON object a line; empty lines are skipped.

    Raises:
        ConfigError: the file cannot be read, has no outcome, or a line is none; the message names the first such line.
    """
    try:
        # A byte order mark is skipped. Only \n ends a line: other ends of a line may stand inside of a JSON string.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(Outcome.model_validate_json(line))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ConfigError(f"{path}:{number}: {f'{where}: ' if where else ''}{first['msg']}") from error
    if not found:
        raise ConfigError(f"{path}: no outcomes")
    return found


def unused_keys(outcomes: Iterable[Outcome]) -> list[str]:
    """Return the keys of the lines that are not used, each once, in the order of their first line."""
    return list(dict.fromkeys(key for outcome in outcomes for key in outcome.model_extra or ()))
