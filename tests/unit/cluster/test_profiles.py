"""Profiles: the shipped ones load, overrides merge key by key, errors name the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cluster.profiles.reading import load_profile, merge, read_yaml, shipped_profiles
from router.errors import ConfigError
from router.registry import TIER_NAMES
from tests.unit.router.profiles import profile_data

LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
MAPPINGS = st.recursive(
    st.dictionaries(st.sampled_from("abcd"), LEAVES, max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abcd"), LEAVES | inner, max_size=3),
    max_leaves=8,
)


def test_local_and_gpu_are_shipped_and_valid() -> None:
    assert shipped_profiles() == ["gpu", "local"]
    for name in shipped_profiles():
        assert tuple(load_profile(name).tiers) == TIER_NAMES


def test_the_local_profile_needs_no_gpu_no_hub_and_keeps_only_eco_warm() -> None:
    profile = load_profile("local")
    assert {tier.gpu for tier in profile.tiers.values()} == {None}
    assert {model.source for model in profile.models.values()} == {"bundled", "early_exit"}
    assert [name for name, tier in profile.tiers.items() if tier.replicas.min] == ["eco"]
    # Four engines live on two cores: what they reserve must leave room for the ingress and the pool view.
    assert sum(tier.cpus * tier.replicas.max for tier in profile.tiers.values()) <= 1


def test_the_local_profile_drafts_with_n_grams_on_two_tiers_and_with_a_model_on_one() -> None:
    chains = {name: tier.chain[0].speculation for name, tier in load_profile("local").tiers.items()}
    methods = {name: speculation.method if speculation else None for name, speculation in chains.items()}
    assert methods == {"eco": "ngram", "balanced": "ngram", "performance": "draft_model", "ultra": None}


def test_the_gpu_profile_has_four_gpu_types_and_scales_from_zero() -> None:
    profile = load_profile("gpu")
    hardware = {name: (tier.gpu, tier.gpus) for name, tier in profile.tiers.items()}
    assert hardware == {
        "eco": ("L4", 1),
        "balanced": ("A10G", 1),
        "performance": ("A100-80G", 1),
        "ultra": ("H100", 2),
    }
    assert {tier.replicas.min for tier in profile.tiers.values()} == {0}


def test_the_gpu_profile_has_the_power_ranges_and_fallback_chains() -> None:
    tiers = load_profile("gpu").tiers
    assert [tier.power for tier in tiers.values()] == [(0, 25), (26, 50), (51, 80), (81, 100)]
    methods = {
        name: [step.speculation.method if step.speculation else None for step in tier.chain]
        for name, tier in tiers.items()
    }
    assert methods == {
        "eco": ["ngram_gpu", None],
        "balanced": ["eagle3", "ngram_gpu", None],
        "performance": ["eagle3", "ngram_gpu", None, None],
        "ultra": ["eagle3", "ngram_gpu", None, None],
    }


def test_every_chain_ends_without_speculation_and_without_large_weights() -> None:
    profile = load_profile("gpu")
    for tier in profile.tiers.values():
        last = tier.chain[-1]
        assert last.speculation is None
        assert not profile.models[last.target].large


def test_a_profile_may_be_a_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(profile_data(), sort_keys=False))
    assert load_profile(str(path)).description == "for tests"


def test_mappings_merge_key_by_key_and_everything_else_is_replaced() -> None:
    base = {"a": {"x": 1, "y": {"deep": 1}}, "list": [1, 2], "kept": "yes"}
    over = {"a": {"y": {"more": 2}, "z": 3}, "list": [9], "new": None}
    assert merge(base, over) == {
        "a": {"x": 1, "y": {"deep": 1, "more": 2}, "z": 3},
        "list": [9],
        "kept": "yes",
        "new": None,
    }


def test_a_mapping_replaces_none_and_a_value_replaces_a_mapping() -> None:
    assert merge({"a": None, "b": {"x": 1}}, {"a": {"x": 1}, "b": 3}) == {"a": {"x": 1}, "b": 3}


def test_merging_changes_neither_side() -> None:
    base, over = {"a": {"x": 1}}, {"a": {"y": 2}}
    merged = merge(base, over)
    merged["a"]["x"] = 99
    assert (base, over) == ({"a": {"x": 1}}, {"a": {"y": 2}})


@given(MAPPINGS)
def test_merging_nothing_or_itself_changes_nothing(mapping: dict[str, Any]) -> None:
    assert merge(mapping, {}) == mapping
    assert merge({}, mapping) == mapping
    assert merge(mapping, mapping) == mapping


@given(MAPPINGS, MAPPINGS)
def test_every_key_of_both_sides_is_kept_and_the_override_wins(base: dict[str, Any], over: dict[str, Any]) -> None:
    merged = merge(base, over)
    assert set(merged) == set(base) | set(over)
    for key, value in over.items():
        if not isinstance(value, dict):
            assert merged[key] == value


@pytest.mark.parametrize("name", ["cloud", "PLAN:L4:1", "../catalogue/gpus", ""])
def test_an_unknown_profile_names_what_is_allowed(name: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_profile(name)
    assert str(error.value) == (
        f"profile: got {name!r}, allowed are auto, gpu, local, plan:L4:1 with your GPUs, or a path to a .yaml"
    )


def test_a_profile_that_is_no_file_says_so() -> None:
    with pytest.raises(ConfigError, match=r"^missing.yaml: cannot be read: No such file or directory$"):
        load_profile("missing.yaml")


def test_a_wrong_plan_is_an_error_of_the_profile() -> None:
    with pytest.raises(
        ConfigError, match=r"^profile plan:: unknown RTX4090, did you mean GeForce-RTX-4090\?; allowed are L4, "
    ):
        load_profile("plan:RTX4090:2")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [1", "is not YAML"),
        ("- 1", "got list, must be a mapping"),
        ("", "got NoneType, must be a mapping"),
        ("a: {b: 1, c: 2, b: 3}", "key 'b' stands twice"),
    ],
)
def test_a_file_without_a_mapping_is_named(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError) as error:
        read_yaml(path)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)


@pytest.mark.parametrize("content", ["a: é".encode("latin-1"), "a: 1".encode("utf-16")])
def test_a_file_in_another_encoding_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)  # as another editor, or `>` in PowerShell, writes it
    with pytest.raises(ConfigError, match=r"mine.yaml: is not UTF-8: "):
        read_yaml(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_yaml(tmp_path)


def test_every_problem_of_a_profile_is_one_sentence_with_its_key(tmp_path: Path) -> None:
    data = profile_data()
    data["tiers"]["eco"]["watts"] = 3
    data["tiers"]["ultra"]["replicas"]["max"] = 0
    del data["baseline"]["source"]
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    with pytest.raises(ConfigError) as error:
        load_profile(str(path))
    message = str(error.value)
    assert message.startswith(f"profile {path}: ")
    assert "tiers.eco.watts: unknown key, allowed are power, gpu" in message
    assert "tiers.ultra.replicas.max: Input should be greater than or equal to 1, got 0" in message
    assert "baseline.source: Field required" in message
