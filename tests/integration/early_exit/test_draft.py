"""The draft that is written: an ordinary checkpoint, whose output layer holds the projection."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from cluster.weights import WeightsError
from cluster.weights.early_exit.calibration import Calibration, calibration_prompts, own_answers
from cluster.weights.early_exit.checkpoint import Target
from cluster.weights.early_exit.draft import REPORT_NAME, DraftReport, make_draft
from cluster.weights.early_exit.fit import fit_projection
from tests.integration.early_exit.conftest import FEW, LAYERS, signed, write_target


def make(target: Target, layers: int, calibration: Calibration = FEW, name: str = "draft") -> tuple[Path, DraftReport]:
    folder = target.path.parent / name
    folder.mkdir()
    return folder, make_draft(target, layers, calibration, folder)


@pytest.mark.parametrize("tied", [True, False], ids=["tied target", "untied target"])
def test_its_logits_are_the_targets_head_on_the_projected_state(models: Path, tied: bool) -> None:
    target = write_target(models, tie_word_embeddings=tied)
    folder, _ = make(target, 2)
    loaded = AutoModelForCausalLM.from_pretrained(target.path, dtype=torch.float32)
    projection = fit_projection(*states(target, loaded, 2))
    text = torch.arange(3, 40)[None]
    with torch.no_grad():
        early = loaded.model.norm(loaded(text, output_hidden_states=True).hidden_states[2])
        expected = loaded.lm_head(early @ projection.T)
        got = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(text).logits
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def states(target: Target, loaded: Any, layers: int) -> tuple[torch.Tensor, torch.Tensor]:
    chats = [[{"role": "user", "content": prompt}] for prompt in calibration_prompts()]
    prompts = AutoTokenizer.from_pretrained(target.path).apply_chat_template(
        chats, add_generation_prompt=True, return_dict=False
    )
    fitted, _ = own_answers(loaded, prompts, layers, FEW).split()
    return fitted.early, fitted.final


def test_a_draft_of_all_layers_is_the_target(target: Target) -> None:
    folder, report = make(target, LAYERS)
    assert report.agreement_before == report.agreement == 1.0
    weights = load_file(folder / "model.safetensors")
    torch.testing.assert_close(weights["lm_head.weight"], weights["model.embed_tokens.weight"])


def test_the_fit_raises_agreement_on_held_out_prompts(target: Target) -> None:
    _, report = make(target, LAYERS - 1, Calibration(tokens=2000))
    assert report.fitted_tokens + report.held_out_tokens >= 2000
    assert report.agreement > report.agreement_before + 0.05


def test_it_holds_the_first_layers_as_they_are_and_no_others(target: Target) -> None:
    folder, _ = make(target, 3)
    loaded, draft = load_file(target.path / "model.safetensors"), load_file(folder / "model.safetensors")
    assert set(draft) - set(loaded) == {"lm_head.weight"}
    assert {name.split(".")[2] for name in draft if "layers" in name} == {"0", "1", "2"}
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in draft.items() if name in loaded)


def test_its_config_differs_only_in_layers_and_tie_and_its_tokenizer_not_at_all(target: Target) -> None:
    folder, _ = make(target, 3)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config == target.config | {"num_hidden_layers": 3, "tie_word_embeddings": False}
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (folder / name).read_bytes() == (target.path / name).read_bytes()
    assert (folder / "model.safetensors").stat().st_mode & 0o777 == 0o644


def test_only_the_same_seed_makes_the_same_bytes(target: Target) -> None:
    first, again, other = (
        {
            file.name: file.read_bytes()
            for file in make(target, 2, Calibration(tokens=600, seed=seed), name)[0].iterdir()
        }
        for name, seed in (("first", 7), ("again", 7), ("other", 8))
    )
    assert first == again
    assert {name for name in first if first[name] != other[name]} == {"model.safetensors", REPORT_NAME}


def test_a_target_in_several_files_makes_the_same_draft(models: Path, target: Target) -> None:
    shards = write_target(models, "sharded", shard="40KB")
    assert len(list(shards.path.glob("*.safetensors"))) > 1
    one, _ = make(target, 2, name="a")
    several, _ = make(shards, 2, name="b")
    assert (one / "model.safetensors").read_bytes() == (several / "model.safetensors").read_bytes()
    assert not (several / "model.safetensors.index.json").exists()


def test_it_is_stored_in_the_targets_dtype(models: Path) -> None:
    folder, report = make(write_target(models, dtype="bfloat16"), LAYERS)
    assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {torch.bfloat16}
    assert report.agreement == 1.0


def test_its_size_is_known_in_advance(models: Path) -> None:
    for dtype in ("float32", "bfloat16"):
        target = write_target(models, dtype, dtype=dtype)
        folder, _ = make(target, 2, name=f"{dtype}-draft")
        size = sum(file.stat().st_size for file in folder.iterdir())
        assert 0 <= size - target.draft_size(2) < 5000  # header, config, report


def test_the_report_has_its_agreement_with_the_target(target: Target) -> None:
    folder, report = make(target, 1)
    assert DraftReport.model_validate_json((folder / REPORT_NAME).read_bytes()) == report
    assert (report.of, report.layers, report.target_layers) == ("tiny", 1, LAYERS)
    assert str(report) == (
        f"agrees with tiny on {report.agreement:.1%} of {report.held_out_tokens} held-out tokens "
        f"({report.agreement_before:.1%} before the fit on {report.fitted_tokens} others)"
    )


@pytest.mark.parametrize("layers", [0, -1, LAYERS + 1])
def test_more_layers_than_the_target_has_are_refused(target: Target, layers: int) -> None:
    with pytest.raises(WeightsError, match=f"layers: got {layers}, tiny has 4: allowed are 1 to 4"):
        target.check(layers)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "tiny is a GPT2LMHeadModel: .* can be made from LlamaForCausalLM"),
        ({"architectures": None}, "tiny is a model of no architecture: .* can be made from LlamaForCausalLM"),
        ({"quantization_config": {"quant_method": "awq"}}, "tiny is quantized"),
    ],
)
def test_a_target_that_no_draft_can_be_made_from_is_refused(
    target: Target, change: dict[str, Any], message: str
) -> None:
    (target.path / "config.json").write_text(json.dumps(target.config | change), encoding="utf-8")
    with pytest.raises(WeightsError, match=message):
        signed(target.path)


def test_a_target_whose_weights_are_pickles_is_refused(target: Target) -> None:
    (target.path / "model.safetensors").rename(target.path / "pytorch_model.bin")
    with pytest.raises(WeightsError, match=r"tiny has no \*\.safetensors"):
        signed(target.path)


def test_a_target_without_a_chat_template_is_refused(target: Target) -> None:
    (target.path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast"}', encoding="utf-8"
    )
    with pytest.raises(WeightsError, match="tiny has no chat template"):
        make(target, 2)
