"""The data that a draft is fitted on: the target's own chat answers, with its hidden states while it wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import Field

from router.registry import Frozen

if TYPE_CHECKING:
    from torch import Generator, Tensor

TEMPERATURE: Final = 0.7
"""Of the sampling. Greedy answers of a small model repeat themselves; sampled ones vary more in as many tokens."""
HELD_OUT_EVERY: Final = 6
"""Every sixth prompt is held out: its answer shows how good a draft is that was fitted on the others."""
_PROMPTS: Final = Path(__file__).with_name("prompts.txt")


class Calibration(Frozen):
    """How much a draft is fitted on. The same calibration makes the same bytes on one machine with one thread count.

    Elsewhere sums are rounded in another order, and a sampled answer may differ.
    """

    # SmolLM2-135M at layer 12: 21.2% agreement from 1,300 fitted tokens, 22.8% from 2,400, 22.7% from 3,400, 23.1% from
    # 7,400, each with an error of 1.2%. A sixth of the tokens is held out.
    tokens: int = Field(default=3072, ge=1, description="How many tokens of its own answers the target writes.")
    seed: int = Field(default=0, ge=0, lt=2**63, description="Seed of the sampling of these answers.")


def calibration_prompts() -> list[str]:
    """Return the prompts that the target answers, in the file's order."""
    lines = _PROMPTS.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@dataclass(frozen=True, slots=True)
class Answers:
    """One row per token of all answers: the states that it was chosen by, after the final norm, float32."""

    early: Tensor  # [rows, hidden], after the draft's last layer
    final: Tensor  # [rows, hidden], after the target's last layer
    prompt: Tensor  # [rows], index of the prompt that it answers

    def split(self) -> tuple[Answers, Answers]:
        """Return the rows to fit on, and those of the held-out prompts."""
        held_out = self.prompt % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
        return self._only(~held_out), self._only(held_out)

    def _only(self, rows: Tensor) -> Answers:
        return Answers(self.early[rows], self.final[rows], self.prompt[rows])


def own_answers(model: Any, prompts: Sequence[Sequence[int]], layers: int, calibration: Calibration) -> Answers:
    """Let a `LlamaForCausalLM` answer all prompts (token ids) in one batch.

    The batch ends at `calibration.tokens` tokens in all and the end of that step, or when every answer has ended.
    """
    import torch
    from transformers import DynamicCache

    generator = torch.Generator().manual_seed(calibration.seed)
    ends = _end_tokens(model)
    # Chats share their beginning (a system message): prefill it once. For SmolLM2 that is a third of all prefill.
    shared = _shared_prefix(prompts)
    tokens, mask = _padded(prompts, shared)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    cache = DynamicCache(config=model.config)
    if shared:
        with torch.no_grad():
            model.model(input_ids=tokens[:1, :shared], past_key_values=cache)
        cache.batch_repeat_interleave(len(prompts))
    tokens, positions = tokens[:, shared:], positions[:, shared:]
    rows = torch.arange(len(prompts))  # the prompt of each row; a row is dropped when its answer ends
    states: list[Tensor] = []
    hook = model.model.layers[layers - 1].register_forward_hook(lambda _module, _inputs, out: states.append(out[:, -1]))
    early, final, prompt = [], [], []
    left = calibration.tokens
    try:
        with torch.no_grad():
            while left > 0 and len(rows) and mask.shape[1] <= model.config.max_position_embeddings:
                state = model.model(
                    input_ids=tokens, attention_mask=mask, position_ids=positions, past_key_values=cache
                ).last_hidden_state[:, -1]
                early.append(model.model.norm(states.pop()))
                final.append(state)
                prompt.append(rows)
                left -= len(rows)
                tokens = _sample((model.lm_head(state) / TEMPERATURE).softmax(-1), generator)
                alive = ~torch.isin(tokens[:, 0], ends)
                if not alive.all():
                    cache.batch_select_indices(alive.nonzero()[:, 0])
                    tokens, mask, positions, rows = (tensor[alive] for tensor in (tokens, mask, positions, rows))
                mask = torch.cat([mask, torch.ones_like(tokens)], 1)
                positions = positions[:, -1:] + 1
    finally:
        hook.remove()
    return Answers(torch.cat(early), torch.cat(final), torch.cat(prompt))


def _sample(probabilities: Tensor, generator: Generator) -> Tensor:
    """Return [rows, 1]: one token sampled from each row of probabilities [rows, vocab].

    `torch.multinomial` draws a number for every token of the vocabulary, which takes a seventh of all time here.
    """
    import torch

    cumulated = probabilities.cumsum(-1)
    uniform = 1 - torch.rand(len(probabilities), 1, generator=generator)  # never 0: that picks tokens of probability 0
    return torch.searchsorted(cumulated, uniform * cumulated[:, -1:])


def _end_tokens(model: Any) -> Tensor:
    import torch

    ends = model.generation_config.eos_token_id
    return torch.tensor(ends if isinstance(ends, list) else [] if ends is None else [ends], dtype=torch.long)


def _shared_prefix(prompts: Sequence[Sequence[int]]) -> int:
    """Return how many first tokens all prompts share, leaving at least one token of each."""
    columns = zip(*prompts, strict=False)
    equal = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
    return min(equal, min(map(len, prompts)) - 1)


def _padded(prompts: Sequence[Sequence[int]], shared: int) -> tuple[Tensor, Tensor]:
    """Return token ids and mask [prompts, longest]. All answers begin in the column after the last.

    The padding follows the first `shared` tokens, so that those are in the same columns too.
    """
    import torch

    longest = max(map(len, prompts))
    tokens, mask = (torch.zeros(len(prompts), longest, dtype=torch.long) for _ in range(2))
    for row, prompt in enumerate(prompts):
        for columns, part in (
            (slice(shared), prompt[:shared]),
            (slice(longest - len(prompt) + shared, longest), prompt[shared:]),
        ):
            tokens[row, columns] = torch.tensor(part)
            mask[row, columns] = 1
    return tokens, mask
