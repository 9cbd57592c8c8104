"""A target's own chat answers, with its hidden states while it wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from cluster.weights.early_exit.prompts import HELD_OUT_EVERY
from cluster.weights.early_exit.report import Calibration

if TYPE_CHECKING:
    from torch import Generator, Tensor

TEMPERATURE = 0.7
"""Of the sampling. Greedy answers of a small model repeat themselves; these say more in as many tokens."""


@dataclass(frozen=True, slots=True)
class Answers:
    """One row per token, from all answers: the states that it was chosen by, after the final norm, float32."""

    early: Tensor  # [rows, hidden], after the draft's last layer
    final: Tensor  # [rows, hidden], after the target's last layer
    prompt: Tensor  # [rows], which prompt it answers

    def split(self) -> tuple[Answers, Answers]:
        """The rows to fit on, and those of the held-out prompts."""
        held_out = self.prompt % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
        return self._only(~held_out), self._only(held_out)

    def _only(self, rows: Tensor) -> Answers:
        return Answers(self.early[rows], self.final[rows], self.prompt[rows])


def own_answers(model: Any, prompts: Sequence[Sequence[int]], layers: int, calibration: Calibration) -> Answers:
    """Let a `LlamaForCausalLM` answer all prompts (token ids) side by side.

    Ends with `calibration.tokens` tokens in all, a few more for the last step, or fewer when every answer ends before.
    """
    import torch
    from transformers import DynamicCache

    random = torch.Generator().manual_seed(calibration.seed)
    ends = _end_tokens(model)
    # Chats begin alike (a system message): that part is read once. A third of all reading, for SmolLM2.
    shared = _shared(prompts)
    tokens, mask = _padded(prompts, shared)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    cache = DynamicCache(config=model.config)
    if shared:
        with torch.no_grad():
            model.model(input_ids=tokens[:1, :shared], past_key_values=cache)
        cache.batch_repeat_interleave(len(prompts))
    tokens, positions = tokens[:, shared:], positions[:, shared:]
    asked = torch.arange(len(prompts))  # which prompt each row answers; rows go when their answer ends
    seen: list[Tensor] = []
    layer = model.model.layers[layers - 1].register_forward_hook(lambda _module, _inputs, out: seen.append(out[:, -1]))
    early, final, prompt = [], [], []
    room = calibration.tokens
    try:
        with torch.no_grad():
            while room > 0 and len(asked) and mask.shape[1] <= model.config.max_position_embeddings:
                state = model.model(
                    input_ids=tokens, attention_mask=mask, position_ids=positions, past_key_values=cache
                ).last_hidden_state[:, -1]
                early.append(model.model.norm(seen.pop()))
                final.append(state)
                prompt.append(asked)
                room -= len(asked)
                tokens = _drawn((model.lm_head(state) / TEMPERATURE).softmax(-1), random)
                alive = ~torch.isin(tokens[:, 0], ends)
                if not alive.all():
                    cache.batch_select_indices(alive.nonzero()[:, 0])
                    tokens, mask, positions, asked = (rows[alive] for rows in (tokens, mask, positions, asked))
                mask = torch.cat([mask, torch.ones_like(tokens)], 1)
                positions = positions[:, -1:] + 1
    finally:
        layer.remove()
    return Answers(torch.cat(early), torch.cat(final), torch.cat(prompt))


def _drawn(likely: Tensor, random: Generator) -> Tensor:
    """[rows, 1]: one token by each row of probabilities [rows, vocab].

    `torch.multinomial` draws a number for every token of the vocabulary: a seventh of all the time here.
    """
    import torch

    below = likely.cumsum(-1)
    wanted = 1 - torch.rand(len(likely), 1, generator=random)  # never 0, which a token of no probability would meet
    return torch.searchsorted(below, wanted * below[:, -1:])


def _end_tokens(model: Any) -> Tensor:
    import torch

    ends = model.generation_config.eos_token_id
    return torch.tensor(ends if isinstance(ends, list) else [] if ends is None else [ends], dtype=torch.long)


def _shared(prompts: Sequence[Sequence[int]]) -> int:
    """With how many tokens all prompts begin alike; at least one of each is left over."""
    columns = zip(*prompts, strict=False)
    alike = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
    return min(alike, min(map(len, prompts)) - 1)


def _padded(prompts: Sequence[Sequence[int]], shared: int) -> tuple[Tensor, Tensor]:
    """[prompts, longest]: token ids, and 1 where there is one. All answers begin in one column, after the last.

    The padding comes after the first `shared` tokens, which so are in the same columns too.
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
