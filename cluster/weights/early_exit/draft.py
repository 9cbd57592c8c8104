"""An early-exit draft: the target's first layers, and an output layer that knows what the others would have done.

The target answers the calibration prompts; a projection is fitted from its state after the draft's last layer to its
final state (`fit.py`), and written with the layers as a checkpoint that any engine loads.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from cluster.weights.early_exit.answers import own_answers
from cluster.weights.early_exit.checkpoint import Target
from cluster.weights.early_exit.fit import agreement, first_choices, fit_projection
from cluster.weights.early_exit.prompts import calibration_prompts
from cluster.weights.early_exit.report import Calibration, DraftReport, write_report
from cluster.weights.errors import WeightsError

_NEEDED = ("torch", "transformers", "safetensors")


def make_draft(target: Target, layers: int, calibration: Calibration, folder: Path) -> DraftReport:
    """Write the draft and its report into `folder`. About half a minute for a target of 135M on 2 cores.

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


def _load(path: Path) -> tuple[Any, list[list[int]]]:
    """The model in float32, and the calibration prompts as token ids of its chats."""
    # Seconds of imports: only here, so that listing and a finished seed stay quick.
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # of loading, which takes a second
    tokenizer = AutoTokenizer.from_pretrained(path)
    if not tokenizer.chat_template:
        raise WeightsError(f"{path.name} has no chat template: it writes no chat answers to fit a draft on")
    chats = [[{"role": "user", "content": prompt}] for prompt in calibration_prompts()]
    prompts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, return_dict=False)
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32), prompts
