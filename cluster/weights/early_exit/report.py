"""How an early-exit draft is calibrated, and what is told of the one that came out."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from router.registry import Frozen

REPORT_NAME = "early-exit.json"
"""Beside the weights; engines do not read it."""


class Calibration(Frozen):
    """What a draft is fitted on. The same calibration makes the same bytes, on one machine with one number of threads.

    On another, sums are rounded in another order, and a sampled answer may take another turn.
    """

    # SmolLM2-135M at layer 12: 21.2% from 1,300 fitted tokens, 22.8% from 2,400, 22.7% from 3,400, 23.1% from 7,400,
    # each give or take 1.2%. A sixth of the tokens is held out.
    tokens: int = Field(default=3072, ge=1, description="How many tokens of its own answers the target writes.")
    seed: int = Field(default=0, ge=0, lt=2**63, description="Seed of the sampling of these answers.")


class DraftReport(Frozen):
    """How good a draft is: agreement with the target's first choice, on answers that it was not fitted on."""

    of: str = Field(description="Name of the target.")
    layers: int = Field(description="Layers of the draft.")
    target_layers: int = Field(description="Layers of the target.")
    calibration: Calibration = Field(description="What was asked for.")
    fitted_tokens: int = Field(description="Tokens that the projection was fitted on.")
    held_out_tokens: int = Field(description="Tokens of answers to other prompts, which the agreement was counted on.")
    agreement_before: float = Field(
        description="Share (0-1) of held-out tokens with the target's first choice, without the projection."
    )
    agreement: float = Field(description="The same with the projection, as it is written: how good the draft is.")

    def __str__(self) -> str:
        return (
            f"agrees with {self.of} on {self.agreement:.1%} of {self.held_out_tokens} held-out tokens "
            f"({self.agreement_before:.1%} before the fit on {self.fitted_tokens} others)"
        )


def write_report(folder: Path, report: DraftReport) -> None:
    """Put the report beside the weights.

    Raises:
        OSError: the folder cannot be written.
    """
    (folder / REPORT_NAME).write_text(report.model_dump_json(indent=1) + "\n", encoding="utf-8")
