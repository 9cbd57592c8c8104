"""Prompts with the outcomes of a weak and a strong model, read from a JSON Lines file."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from router.errors import ConfigError


class Outcome(BaseModel):
    """A prompt, and how the two models answered it: one line of the file. Other keys are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    prompt: str = Field(min_length=1, description="What the user wrote.")
    weak_score: float = Field(ge=-1, le=1, description="The weak model's result, 0 (wrong) to 1 (right).")
    strong_score: float = Field(ge=-1, le=1, description="The strong model's result.")
    source: str = Field(default="own", min_length=1, description="Where the prompt is from; sources count the same.")
    kind: str = Field(default="", description="Of prompt; for reports only.")
    weight: float = Field(default=1.0, gt=0, description="How much the row counts against those of other sources.")
    id: str = Field(default="", description="`SOURCE:KEY`. Rows of one key are one task in several wordings.")

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
        lines = path.read_text(encoding="utf-8").splitlines()
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
