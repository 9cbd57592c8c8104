"""Which files of a repository are fetched."""

from __future__ import annotations

from cluster.weights.selection import servable


def test_weights_configuration_and_tokenizer_are_fetched_and_nothing_else() -> None:
    wanted = ["chat_template.jinja", "config.json", "merges.txt", "model.safetensors", "tokenizer.model", "vocab.json"]
    assert servable([*wanted, "README.md", "LICENSE", "pytorch_model.bin", "tf_model.h5", ".gitattributes"]) == wanted


def test_folders_hold_other_forms_of_the_weights_and_are_left_out() -> None:
    assert servable(["model.safetensors", "original/params.json", "onnx/model.safetensors"]) == ["model.safetensors"]


def test_consolidated_weights_are_fetched_only_where_there_are_no_others() -> None:
    assert servable(["consolidated.safetensors", "model.safetensors"]) == ["model.safetensors"]
    assert servable(["consolidated.safetensors", "params.json"]) == ["consolidated.safetensors", "params.json"]


def test_a_draft_head_published_as_a_pickle_alone_is_fetched() -> None:
    assert servable(["config.json", "pytorch_model.bin"]) == ["config.json", "pytorch_model.bin"]


def test_a_repository_without_weights_yields_nothing() -> None:
    assert servable(["config.json", "weights.pth", "model.gguf"]) == []
