"""The planner: every plan fits, in memory and in Ray's packing, and says what it could not do."""

from __future__ import annotations

import random

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.catalogue.memory import context_gib, memory_problems
from cluster.catalogue.types import catalogue
from cluster.planner.plan import Plan, plan
from cluster.planner.render import render
from cluster.planner.supply import Cards, parse, written
from router.errors import ConfigError
from router.registry import TIER_NAMES, Profile, Tier
from tests.unit.cluster.planner.strategies import clusters
from tests.unit.cluster.planner.test_packing import play

GPUS = catalogue().gpus


def planned(cards: tuple[Cards, ...]) -> Plan:
    return plan(cards)


def profile(made: Plan) -> Profile:
    return Profile.model_validate(yaml.safe_load(render(made)))


def rank(tier: Tier) -> float:
    return catalogue().models[tier.chain[0].target].rank


@given(clusters(), st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_no_plan_ever_exceeds_a_card(cards: tuple[Cards, ...], chance: random.Random) -> None:
    made = planned(cards)
    assert memory_problems(profile(made)) == []
    for each in cards:
        tiers = {name: tier for name, tier in made.tiers.items() if tier.gpu == each.gpu}
        gpu = GPUS[each.gpu]
        for tier in tiers.values():
            for entry in tier.chain:
                if tier.gpus < 1:
                    # With its CUDA context an engine stays inside its share, so shares that Ray lets on a card fit it.
                    used = float(str(entry.engine_args["gpu_memory_utilization"])) * gpu.memory_gib + context_gib(gpu)
                    assert used <= tier.gpus * gpu.memory_gib
        demands = {str(name): round(100 * tier.gpus) for name, tier in tiers.items()}
        replicas = {str(name): tier.replicas.max for name, tier in tiers.items()}
        if tiers:
            play(list(each.nodes), demands, replicas, chance, steps=60)


@given(clusters())
@settings(max_examples=25, deadline=None)
def test_a_plan_is_a_profile_that_reads_back_as_planned(cards: tuple[Cards, ...]) -> None:
    made = planned(cards)
    assert profile(made).tiers == made.tiers
    assert planned(parse(written(cards))).tiers == made.tiers


@given(clusters())
@settings(max_examples=25, deadline=None)
def test_no_tier_has_a_smaller_model_than_the_tier_below(cards: tuple[Cards, ...]) -> None:
    ranks = [rank(tier) for tier in planned(cards).tiers.values()]
    assert ranks == sorted(ranks)


@given(clusters())
@settings(max_examples=25, deadline=None)
def test_every_chain_ends_without_drafts_and_without_large_weights(cards: tuple[Cards, ...]) -> None:
    made = profile(planned(cards))
    for tier in made.tiers.values():
        assert tier.chain[-1].speculation is None
        assert not made.models[tier.chain[-1].target].large


@pytest.mark.parametrize(
    ("gpus", "models"),
    [
        ("L4:1", ["qwen2.5-0.5b", "qwen2.5-1.5b", "qwen3-4b", "llama-3.1-8b"]),
        ("H100:1", ["qwen3-4b", "llama-3.1-8b", "qwen2.5-14b", "llama-3.3-70b"]),
        ("H100:8", ["qwen3-4b", "llama-3.1-8b", "qwen3-30b", "qwen3-235b"]),
        ("A10G:4", ["qwen3-4b", "llama-3.1-8b", "qwen2.5-14b", "qwen2.5-32b"]),
        ("L4:2,A100-80G:1", ["qwen3-4b", "llama-3.1-8b", "qwen2.5-32b", "llama-3.3-70b"]),
    ],
)
def test_teams_with_few_kinds_of_cards_get_four_models(gpus: str, models: list[str]) -> None:
    targets = [tier.chain[0].target for tier in planned(parse(gpus)).tiers.values()]
    assert [target.startswith(model) for target, model in zip(targets, models, strict=True)] == [True] * 4, targets


def test_the_cheaper_cards_run_the_smaller_tiers() -> None:
    tiers = planned(parse("A100-80G:1,L4:2")).tiers
    assert [tier.gpu for tier in tiers.values()] == ["L4", "L4", "A100-80G", "A100-80G"]


def test_cards_that_are_left_become_replicas() -> None:
    tiers = planned(parse("8xL4:1,2xH100:8")).tiers
    assert sum(tier.gpus * tier.replicas.max for tier in tiers.values()) >= 20


def test_a_replicas_price_and_watts_are_those_of_its_share() -> None:
    for tier in planned(parse("L4:1")).tiers.values():
        assert tier.price_usd_per_hour == pytest.approx(0.805 * tier.gpus, abs=0.001)
        assert tier.active_watts == pytest.approx(72 * tier.gpus, abs=0.5)


def test_eagle3_drafts_where_there_is_a_head_and_room() -> None:
    ultra = planned(parse("H100:8")).tiers["performance"]
    assert [entry.speculation.method if entry.speculation else None for entry in ultra.chain] == [
        "eagle3",
        "ngram_gpu",
        None,
        None,
    ]


def test_what_cannot_be_had_is_said() -> None:
    assert "Not here: qwen3-30b-a3b-instruct-2507-fp8: these cards cannot run it." in planned(parse("A10G:1")).notes
    assert any("its weights take 29 GiB" in note for note in planned(parse("L4:1")).notes)


def test_each_tier_has_its_reasons_as_comments() -> None:
    made = planned(parse("L4:1"))
    text = render(made)
    assert all(made.reasons[name] for name in TIER_NAMES)
    assert "    # n-gram drafts: no room for its EAGLE-3 head.\n" in text


def test_too_few_cards_are_an_error_that_says_what_would_do() -> None:
    with pytest.raises(ConfigError, match="no four tiers fit no GPU: the smallest four engines need"):
        plan(())
