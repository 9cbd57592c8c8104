"""The target's own answers: written side by side, with the states that each token was chosen by."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch

from cluster.weights.early_exit import calibration as calibration_module
from cluster.weights.early_exit.calibration import HELD_OUT_EVERY, Calibration, calibration_prompts, own_answers
from tests.integration.early_exit.conftest import LAYERS, model

PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14], [15, 16], [20, 3], [21], [22, 4, 9]]


@pytest.mark.parametrize("system", [[], [30, 31, 32, 33]], ids=["no system message", "one system message"])
def test_each_row_holds_the_states_of_a_plain_run_over_prompt_and_answer(
    monkeypatch: pytest.MonkeyPatch, system: list[int]
) -> None:
    prompts = [system + prompt for prompt in PROMPTS]
    steps: list[list[int]] = []
    original = calibration_module._sample

    def sample(likely: torch.Tensor, random: torch.Generator) -> torch.Tensor:
        tokens = original(likely, random)
        if len(steps) == 4:
            tokens[1] = 2  # an answer ends, and its row goes
        steps.append(tokens[:, 0].tolist())
        return tokens

    monkeypatch.setattr(calibration_module, "_sample", sample)
    target = model()
    answers = own_answers(target, prompts, 2, Calibration(tokens=60))
    written = defaultdict(list)
    for row, token in zip(answers.prompt.tolist(), [token for step in steps for token in step], strict=True):
        written[row].append(token)
    assert len(written[1]) <= 5 < max(map(len, written.values()))
    for row, prompt in enumerate(prompts):
        text = torch.tensor([prompt + written[row][:-1]])
        with torch.no_grad():
            plain = target.model(text, output_hidden_states=True)
            early = target.model.norm(plain.hidden_states[2])
        own = answers.prompt == row
        torch.testing.assert_close(answers.early[own], early[0, len(prompt) - 1 :], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(
            answers.final[own], plain.last_hidden_state[0, len(prompt) - 1 :], atol=1e-4, rtol=1e-4
        )


def test_tokens_are_sample_as_often_as_they_are_likely() -> None:
    likely = torch.tensor([0.0, 0.5, 0.0, 0.2, 0.3, 0.0]).expand(20_000, 6)
    tokens = calibration_module._sample(likely, torch.Generator().manual_seed(0))
    shares = tokens[:, 0].bincount(minlength=6) / 20_000
    torch.testing.assert_close(shares, likely[0], atol=0.015, rtol=0)  # 4 standard errors
    assert shares[[0, 2, 5]].sum() == 0


def test_writing_ends_when_there_are_tokens_enough() -> None:
    rows = len(own_answers(model(eos_token_id=None), PROMPTS, 2, Calibration(tokens=20)).prompt)
    assert rows == 21  # three steps of seven answers


def test_writing_ends_when_every_answer_has_ended() -> None:
    always_ends = model(eos_token_id=list(range(100)))
    assert len(own_answers(always_ends, PROMPTS, 2, Calibration(tokens=20)).prompt) == len(PROMPTS)


def test_writing_ends_where_the_context_does() -> None:
    small = model(eos_token_id=None, max_position_embeddings=8)
    rows = len(own_answers(small, PROMPTS, 2, Calibration(tokens=1000)).prompt)
    assert rows == 3 * len(PROMPTS)  # after 6, 7 and 8 tokens of the longest prompt and its answer


def test_nothing_is_left_hanging_on_the_model() -> None:
    target = model()
    own_answers(target, PROMPTS, LAYERS, Calibration(tokens=7))
    assert not target.model.layers[LAYERS - 1]._forward_hooks


def test_whole_answers_are_held_out_not_single_tokens() -> None:
    fitted, held_out = own_answers(model(), PROMPTS, 2, Calibration(tokens=60)).split()
    assert set(held_out.prompt.tolist()) == {HELD_OUT_EVERY - 1}
    assert set(fitted.prompt.tolist()) == set(range(len(PROMPTS))) - {HELD_OUT_EVERY - 1}
    assert len(fitted.early) == len(fitted.final) == len(fitted.prompt)


def test_the_shipped_prompts_are_many_different_and_no_comments() -> None:
    prompts = calibration_prompts()
    assert len(prompts) == len(set(prompts)) == 96
    assert not [prompt for prompt in prompts if prompt != prompt.strip() or prompt.startswith("#")]
