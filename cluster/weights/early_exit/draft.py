"""Make an early-exit draft, and report how often it agrees with its target.

The target answers the calibration prompts. A projection is fitted from its state after the draft's last layer to its
final state (`fit.py`), and written with the first layers as a checkpoint that any engine loads.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Final

from pydantic import Field

from cluster.weights.early_exit.calibration import Calibration, calibration_prompts, own_answers
from cluster.weights.early_exit.checkpoint import Target
from cluster.weights.early_exit.fit import agreement, first_choices, fit_projection
from cluster.weights.errors import WeightsError
from router.registry import Frozen

REPORT_NAME: Final = "early-exit.json"
"""Beside the weights; engines do not read it."""
_NEEDED: Final = ("torch", "transformers", "safetensors")


class DraftReport(Frozen):
    """How good a draft is: agreement with the target's first choice, on answers that it was not fitted on."""

    of: str = Field(description="Name of the target.")
    layers: int = Field(description="Layers of the draft.")
    target_layers: int = Field(description="Layers of the target.")
    calibration: Calibration = Field(description="How much it was fitted on.")
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


def make_draft(target: Target, layers: int, calibration: Calibration, folder: Path) -> DraftReport:
    """Write the draft and its report into `folder`. Takes about half a minute for a target of 135M on 2 cores.

    `layers` must have passed `target.check`.

    Raises:
        WeightsError: the target has no chat template, or a package is not installed.
        OSError: a file cannot be read or written.
    """
    absent = [package for package in _NEEDED if importlib.util.find_spec(package) is None]
    if absent:
        raise WeightsError(f"a draft needs {', '.join(absent)}: `pip install --no-deps -r requirements/cpu.txt`")
    model, prompts = _load(target.path)
    fitted, held_out = own_answers(model, prompts, layers, calibration).split()
    head = model.lm_head.weight.detach()
    written = target.write_draft(folder, layers, head @ fit_projection(fitted.early, fitted.final))
    choices = first_choices(held_out.final, head)
    report = DraftReport(
        of=target.path.name,
        layers=layers,
        target_layers=target.layers,
        calibration=calibration,
        fitted_tokens=len(fitted.prompt),
        held_out_tokens=len(held_out.prompt),
        agreement_before=agreement(held_out.early, head, choices),
        agreement=agreement(held_out.early, written.float(), choices),
    )
    write_report(folder, report)
    return report


def write_report(folder: Path, report: DraftReport) -> None:
    """Write the report beside the weights.

    Raises:
        OSError: the folder cannot be written.
    """
    (folder / REPORT_NAME).write_text(report.model_dump_json(indent=1) + "\n", encoding="utf-8")


def _load(path: Path) -> tuple[Any, list[list[int]]]:
    """Return the model in float32, and the calibration prompts as token ids of its chats."""
    # These imports take seconds. Do them only here, so that `list` and a finished `seed` stay quick.
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # loading takes a second
    tokenizer = AutoTokenizer.from_pretrained(path)
    if not tokenizer.chat_template:
        raise WeightsError(f"{path.name} has no chat template: it writes no chat answers to fit a draft on")
    chats = [[{"role": "user", "content": prompt}] for prompt in calibration_prompts()]
    prompts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, return_dict=False)
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32), prompts
