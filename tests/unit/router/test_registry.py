"""The tier registry refuses what cannot work, and says which key, what it got and what it allows."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from router.registry import SAID_ELSEWHERE, Profile, Replicas, Speculation
from tests.unit.router.profiles import profile_data, small_profile


def refusal(data: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as error:
        Profile.model_validate(data)
    return str(error.value)


def test_a_whole_profile_is_accepted_and_immutable() -> None:
    profile = small_profile()
    assert profile.tiers["performance"].chain[0].speculation is not None
    with pytest.raises(ValidationError, match="frozen"):
        profile.tiers["eco"].gpus = 3


@pytest.mark.parametrize(
    ("power", "problem"),
    [
        ([27, 50], "tiers.balanced.power starts at 27, must start at 26"),
        ([25, 50], "tiers.balanced.power starts at 25, must start at 26"),
        ([26, 49], "tiers.performance.power starts at 51, must start at 50"),
        ([26, 51], "tiers.performance.power starts at 51, must start at 52"),
    ],
    ids=["gap below", "overlap below", "gap above", "overlap above"],
)
def test_power_ranges_with_a_gap_or_an_overlap_are_refused(power: list[int], problem: str) -> None:
    data = profile_data()
    data["tiers"]["balanced"]["power"] = power
    message = refusal(data)
    assert problem in message
    assert "without gap or overlap" in message


def test_ranges_that_do_not_start_at_0_are_refused() -> None:
    data = profile_data()
    data["tiers"]["eco"]["power"] = [1, 25]
    assert "tiers.eco.power starts at 1, must start at 0" in refusal(data)


def test_ranges_that_do_not_end_at_100_are_refused() -> None:
    data = profile_data()
    data["tiers"]["ultra"]["power"] = [81, 99]
    assert "tiers.ultra.power ends at 99, must end at 100" in refusal(data)


def test_a_power_range_with_low_above_high_is_refused() -> None:
    data = profile_data()
    data["tiers"]["eco"]["power"] = [25, 0]
    message = refusal(data)
    assert "tiers.eco" in message
    assert "power [25, 0] must be [low, high] with low <= high" in message


def test_power_above_100_names_the_key_the_value_and_the_limit() -> None:
    data = profile_data()
    data["tiers"]["ultra"]["power"] = [81, 101]
    message = refusal(data)
    assert "tiers.ultra.power.1" in message
    assert "less than or equal to 100" in message
    assert "input_value=101" in message


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ((), "colour"),
        (("tiers", "eco"), "gpu_count"),
        (("tiers", "eco", "chain", 0), "k_max"),
        (("tiers", "eco", "chain", 0, "speculation"), "kmax"),
        (("tiers", "eco", "replicas"), "maximum"),
        (("models", "small"), "url"),
        (("baseline",), "watts"),
    ],
)
def test_an_unknown_key_is_refused_by_its_full_path(path: tuple[str | int, ...], key: str) -> None:
    data = profile_data()
    place: Any = data
    for part in path:
        place = place[part]
    place[key] = 1
    message = refusal(data)
    assert ".".join(str(part) for part in (*path, key)) in message
    assert "Extra inputs are not permitted" in message


def test_a_missing_tier_is_refused_with_the_list_of_tiers() -> None:
    data = profile_data()
    del data["tiers"]["performance"]
    message = refusal(data)
    assert "tiers must be ['eco', 'balanced', 'performance', 'ultra'] in this order" in message
    assert "got ['eco', 'balanced', 'ultra']" in message


def test_a_tier_of_another_name_is_refused() -> None:
    data = profile_data()
    data["tiers"]["turbo"] = data["tiers"].pop("ultra")
    message = refusal(data)
    assert "tiers.turbo" in message
    assert "'eco', 'balanced', 'performance' or 'ultra'" in message


@pytest.mark.parametrize(
    ("tier", "entry", "key", "problem"),
    [
        ("eco", 1, "target", "tiers.eco.chain.1.target names 'tiny', which `models` lacks"),
        ("performance", 0, "draft", "tiers.performance.chain.0.speculation.draft names 'tiny', which `models` lacks"),
    ],
)
def test_an_entry_that_names_an_unknown_model_is_refused(tier: str, entry: int, key: str, problem: str) -> None:
    data = profile_data()
    place = data["tiers"][tier]["chain"][entry]
    (place if key == "target" else place["speculation"])[key] = "tiny"
    message = refusal(data)
    assert problem in message
    assert "it has ['head', 'huge', 'large', 'medium', 'small']" in message


def test_an_empty_chain_is_refused() -> None:
    data = profile_data()
    data["tiers"]["eco"]["chain"] = []
    assert "tiers.eco.chain" in refusal(data)


def test_two_steps_of_one_name_in_a_chain_are_refused() -> None:
    data = profile_data()
    data["tiers"]["eco"]["chain"][1]["name"] = "small-ngram"
    assert "chain entry names must differ, got ['small-ngram', 'small-ngram']" in refusal(data)


@pytest.mark.parametrize(("gpu", "gpus"), [(None, 1), ("L4", 0)])
def test_a_gpu_type_and_a_gpu_count_that_contradict_are_refused(gpu: str | None, gpus: int) -> None:
    data = profile_data()
    data["tiers"]["eco"] |= {"gpu": gpu, "gpus": gpus}
    assert f"gpu {gpu!r} and gpus {gpus} contradict" in refusal(data)


@pytest.mark.parametrize(("gpus", "parallel"), [(1, 1), (2, 2), (0.4, 1), (8.0, 8)])
def test_whole_gpus_are_the_tensor_parallel_size_and_a_fraction_is_a_share_of_one(gpus: float, parallel: int) -> None:
    data = profile_data()
    data["tiers"]["eco"] |= {"gpu": "L4", "gpus": gpus}
    tier = Profile.model_validate(data).tiers["eco"]
    assert (tier.gpus, tier.tensor_parallel) == (gpus, parallel)


def test_more_than_one_card_is_a_whole_number() -> None:
    data = profile_data()
    data["tiers"]["eco"] |= {"gpu": "L4", "gpus": 1.5}
    message = refusal(data)
    assert "tiers.eco" in message
    assert "gpus 1.5 must be a whole number, or a share of one card between 0 and 1" in message


def test_a_p_eagle_head_drafts_all_or_nothing() -> None:
    parallel = Speculation(method="p_eagle", draft="d", k_max=5)
    assert [parallel.to_draft(k) for k in (0, 1, 5)] == [0, 5, 5]
    assert [Speculation(method="eagle3", draft="d", k_max=5).to_draft(k) for k in (0, 1, 5)] == [0, 1, 5]


@pytest.mark.parametrize(
    ("method", "draft", "problem"),
    [
        ("draft_model", None, "needs `draft`"),
        ("eagle3", None, "needs `draft`"),
        ("p_eagle", None, "needs `draft`"),
        ("ngram", "head", "takes no `draft`"),
    ],
)
def test_a_draft_that_does_not_fit_its_method_is_refused(method: Any, draft: str | None, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Speculation(method=method, draft=draft, k_max=5)


def test_max_replicas_below_min_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"min \(3\) must be at most max \(2\)"):
        Replicas(min=3, max=2)


def test_an_entry_is_found_by_its_name() -> None:
    assert small_profile().entry("eco", "small-alone").name == "small-alone"


@pytest.mark.parametrize("name", [None, "gone"])
def test_without_a_known_name_the_first_entry_is_used(name: str | None) -> None:
    assert small_profile().entry("eco", name).name == "small-ngram"


def with_draft(**changes: Any) -> dict[str, Any]:
    data = profile_data()
    draft = {"source": "early_exit", "of": "small", "layers": 4} | changes
    data["models"]["draft"] = {key: value for key, value in draft.items() if value is not None}
    return data


def test_a_draft_made_of_a_model_of_the_profile_is_accepted() -> None:
    draft = Profile.model_validate(with_draft()).models["draft"]
    assert (draft.source, draft.of, draft.layers, draft.repo) == ("early_exit", "small", 4, None)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"of": None}, "source 'early_exit' needs `of`, got None"),
        ({"layers": None}, "source 'early_exit' needs `layers`, got None"),
        ({"repo": "org/x"}, "source 'early_exit' takes no `repo`, got 'org/x'"),
        ({"source": "hub", "repo": "org/x", "layers": None}, "source 'hub' takes no `of`, got 'small'"),
        ({"source": "hub", "repo": "org/x", "of": None}, "source 'hub' takes no `layers`, got 4"),
        ({"source": "bundled", "of": None, "layers": None}, "source 'bundled' needs `repo`, got None"),
        ({"layers": 0}, "greater than or equal to 1"),
        ({"of": "gone"}, "models.draft.of names 'gone', must be one of ['head', 'huge', 'large', 'medium', 'small']"),
        ({"of": "draft"}, "models.draft.of names 'draft', must be one of ['head', 'huge', 'large', 'medium', 'small']"),
    ],
)
def test_a_model_source_that_does_not_fit_its_kind_is_refused(changes: dict[str, Any], problem: str) -> None:
    message = refusal(with_draft(**changes))
    assert "models.draft" in message
    assert problem in message


def test_who_drafts_is_a_choice_only_of_an_entry_with_a_draft_model_or_an_eagle_head() -> None:
    plain = Speculation(method="eagle3", draft="d", k_max=5)
    assert (plain.drafts_both_ways, plain.default_drafts) == (False, "own")
    assert not Speculation(method="ngram", k_max=5).drafts_both_ways
    for drafts in ("own", "ngram", "auto"):
        both = Speculation(method="draft_model", draft="d", k_max=5, drafts=drafts)
        assert (both.drafts_both_ways, both.default_drafts) == (True, drafts)
    falling = Speculation(method="draft_model", draft="d", k_max=5, floor=0.1)
    assert (falling.drafts_both_ways, falling.default_drafts) == (True, "own")
    with pytest.raises(ValidationError, match=r"method 'ngram' takes no `drafts`, got 'auto'"):
        Speculation(method="ngram", k_max=5, drafts="auto")


def test_a_floor_needs_a_draft_model_or_an_eagle_head() -> None:
    assert Speculation(method="eagle3", draft="d", k_max=5, floor=0.2).floor == 0.2
    with pytest.raises(ValidationError, match=r"method 'p_eagle' takes no `floor`, got 0\.2"):
        Speculation(method="p_eagle", draft="d", k_max=5, floor=0.2)
    assert Speculation(method="eagle3", draft="d", k_max=5).floor is None
    with pytest.raises(ValidationError, match=r"method 'ngram' takes no `floor`, got 0\.2"):
        Speculation(method="ngram", k_max=5, floor=0.2)


def test_n_gram_lookup_on_the_cpu_is_refused_on_a_gpu() -> None:
    data = profile_data()
    data["tiers"]["eco"]["chain"][0]["speculation"]["method"] = "ngram"
    assert "chain entry 'small-ngram' has method 'ngram'" in refusal(data)
    assert "on a GPU (L4) it must be 'ngram_gpu'" in refusal(data)


@pytest.mark.parametrize(
    "key", ["model", "worker_cls", "scheduler_cls", "speculative_config", "pipeline_parallel_size"]
)
def test_engine_args_cannot_say_what_other_keys_say(key: str) -> None:
    data = profile_data()
    data["tiers"]["eco"]["chain"][0]["engine_args"] = {key: 1}
    assert "tiers.eco.chain.0.engine_args" in refusal(data)
    assert f"takes no {key}, which follows from `{SAID_ELSEWHERE[key]}`" in refusal(data)


@pytest.mark.parametrize(
    ("said", "most"), [({}, 32), ({"max_num_seqs": 8}, 8), ({"max_num_seqs": 64}, 64), ({"max_num_seqs": None}, 32)]
)
def test_an_engine_has_as_many_sequences_as_it_says_or_as_many_as_a_replica_has_requests(
    said: dict[str, int | None], most: int
) -> None:
    tier = small_profile().tiers["eco"].model_copy(update={"max_ongoing_requests": 32})
    assert tier.most_sequences(tier.chain[0].model_copy(update={"engine_args": said})) == most
