"""Which engines a profile needs, and what is measured on them."""

from __future__ import annotations

import pytest

from bench.kit.plan import Engine, Models, batches, depths, engines_of
from cluster.profiles.reading import load_profile
from router.registry import Profile
from tests.unit.bench.kit.conftest import ALL_THERE

MODEL, DRAFT = "smollm2-135m-instruct", "smollm2-135m-instruct-early-exit-4"


def named(engines: list[Engine]) -> list[str]:
    return [f"{engine.label} {engine.role}" for engine in engines]


def keys(engine: Engine) -> list[str]:
    return [measurement.key for measurement in engine.measurements]


def test_every_different_engine_is_started_once_and_once_more_with_warm_caches(profile: Profile) -> None:
    engines = engines_of(profile, ALL_THERE, 1)
    first, again = engines[:3], engines[3:]
    # The tiers share their entries, and all entries one engine without speculation.
    assert named(first) == ["eco/ngram off", "eco/ngram drafts", "performance/early-exit drafts"]
    assert named(again) == named(first)
    assert [engine.key for engine in again] == [engine.key for engine in first]
    assert {keys(engine)[0] for engine in first} == {"start empty"}
    assert {keys(engine)[0] for engine in again} == {"start warm"}
    assert [engine.again for engine in engines] == [False] * 3 + [True] * 3


def test_answers_and_one_request_at_a_time_are_measured_on_all_engines_before_anything_else(profile: Profile) -> None:
    engines = engines_of(profile, ALL_THERE, 1)
    firsts = {key for engine in engines[:3] for key in keys(engine)[1:]}
    rest = {key for engine in engines[3:] for key in keys(engine)[1:]}
    assert all(key.startswith("answers") or key.endswith("batch 1") for key in firsts)
    assert all(key.startswith("acceptance") or key.endswith(("batch 8", "batch 32")) for key in rest)


def test_auto_is_measured_after_every_fixed_depth_of_the_same_batch(profile: Profile) -> None:
    loads = [
        each for engine in engines_of(profile, ALL_THERE, 1) for each in engine.measurements if each.kind == "load"
    ]
    for batch in (1, 8, 32):
        settings = [each.setting for each in loads if each.batch == batch and each.setting != "off"]
        assert [place for place, setting in enumerate(settings) if setting == "auto"] == [7, 13]  # k_max is 5 and 3


def test_a_drafting_engine_answers_at_no_one_all_and_mixed_drafts_and_works_at_every_depth_and_batch(
    profile: Profile,
) -> None:
    engines = engines_of(profile, ALL_THERE, 1)
    drafts = [*keys(engines[1]), *keys(engines[4])]
    assert [key for key in drafts if key.startswith("answers")] == [
        "answers K=0",
        "answers K=1",
        "answers K=5",
        "answers mixed",
    ]
    settings = {"K=0", "K=1", "K=2", "K=3", "K=4", "K=5", "mixed", "auto"}
    assert {key for key in drafts if key.startswith("load")} == {
        f"load {setting} batch {batch}" for setting in settings for batch in (1, 8, 32)
    }
    assert "acceptance K=5" in drafts


@pytest.mark.parametrize(
    ("tier", "engine_args", "expected"),
    [(64, {}, [1, 8, 32]), (16, {}, [1, 8, 16]), (64, {"max_num_seqs": 4}, [1, 4]), (6, {"max_num_seqs": 9}, [1, 6])],
)
def test_no_more_requests_are_measured_at_a_time_than_an_engine_takes(
    tier: int, engine_args: dict[str, int], expected: list[int], profile: Profile
) -> None:
    eco = profile.tiers["eco"]
    [entry] = [entry for entry in eco.chain if entry.name == "ngram"]
    entry = entry.model_copy(update={"engine_args": engine_args})
    assert batches(eco.model_copy(update={"max_ongoing_requests": tier}), entry) == expected


def test_engines_see_every_prompt_for_the_first_time(profile: Profile) -> None:
    assert {engine.entry.engine_args["enable_prefix_caching"] for engine in engines_of(profile, ALL_THERE, 1)} == {
        False
    }


def test_the_thoughts_of_a_thinking_model_are_measured_too(profile: Profile) -> None:
    text = profile.model_dump_json().replace('"engine_args":{', '"engine_args":{"reasoning_parser":"qwen3",')
    thinking = Profile.model_validate_json(text)
    assert thinking.tiers["eco"].chain[0].engine_args["reasoning_parser"] == "qwen3"
    assert all("reasoning_parser" not in engine.entry.engine_args for engine in engines_of(thinking, ALL_THERE, 1))


def test_deep_drafts_are_measured_at_some_depths_only() -> None:
    assert depths(3) == [0, 1, 2, 3]
    assert depths(10) == [0, 1, 2, 3, 4, 5, 8, 10]
    assert depths(1) == [0, 1]


def test_made_up_weights_are_timed_and_not_judged(profile: Profile) -> None:
    engines = engines_of(profile, Models({}, frozenset({MODEL, DRAFT}), {}), 1)
    assert all(engine.entry.engine_args["load_format"] == "dummy" for engine in engines)
    early_exit = engines[2]
    assert early_exit.dummy == (MODEL, DRAFT)
    kinds = {measurement.kind for engine in engines for measurement in engine.measurements}
    assert kinds == {"start", "answers", "load"}


def test_an_entry_without_weights_or_with_too_few_cards_says_so_and_is_not_started_again(profile: Profile) -> None:
    engines = engines_of(profile, Models({DRAFT: "not seeded"}, frozenset(), {}), 1)
    impossible = {engine.label: engine.impossible for engine in engines if engine.impossible}
    assert impossible == {"performance/early-exit": "not seeded"}
    assert len(engines) == 3 + 2
    only_config = engines_of(profile, Models({}, frozenset({DRAFT}), {}), 1)
    assert any("only a config of its draft" in (engine.impossible or "") for engine in only_config)
    assert {engine.impossible for engine in engines_of(profile, ALL_THERE, 0)} == {
        "it needs 1 GPUs, this machine has 0"
    }


def test_a_quantised_model_is_compared_with_the_one_that_it_was_made_from(profile: Profile) -> None:
    engines = engines_of(profile, Models({}, frozenset(), {MODEL: "whole"}), 1)
    off, _, whole = engines[4:7]
    assert (whole.role, whole.entry.target, whole.entry.quantization) == ("unquantised", "whole", None)
    assert keys(off)[-1] == keys(whole)[-1] == "gsm8k off"


def test_entries_can_be_chosen(profile: Profile) -> None:
    engines = engines_of(profile, ALL_THERE, 1, lambda label: label == "performance/early-exit")
    assert named(engines)[:2] == ["performance/early-exit off", "performance/early-exit drafts"]


def test_the_local_profile_needs_no_gpu() -> None:
    assert {engine.impossible for engine in engines_of(load_profile("local"), ALL_THERE, 0)} == {None}
