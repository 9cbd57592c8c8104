"""The planner: every plan fits, in memory and in Ray's packing, and says what it could not do."""

from __future__ import annotations

import random
import re
from functools import cache
from math import log
from unittest.mock import patch

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import cluster.planner.plan as plan_module
from cluster.catalogue.memory import context_gib, entry_budget, memory_problems, share_of
from cluster.catalogue.speed import step_ms, usd_per_million
from cluster.catalogue.types import Model, catalogue
from cluster.planner.packing import place_for_all
from cluster.planner.plan import Plan, cheapest, choose, plan
from cluster.planner.reasons import reasons
from cluster.planner.recipes import BATCH, IDEAL, Recipe, recipes
from cluster.planner.render import render
from cluster.planner.supply import Cards, parse, written
from router.errors import ConfigError
from router.registry import TIER_NAMES, Profile, Tier, TierName
from tests.unit.cluster.planner.strategies import FEWER, clusters
from tests.unit.cluster.planner.test_packing import play

GPUS = catalogue().gpus


@cache
def planned(cards: tuple[Cards, ...]) -> Plan:
    return plan(cards)


@cache
def profile(cards: tuple[Cards, ...]) -> Profile:
    return Profile.model_validate(yaml.safe_load(render(planned(cards))))


def rank(tier: Tier) -> float:
    return catalogue().models[tier.chain[0].target].rank


@given(clusters(), st.randoms(use_true_random=False))
@FEWER
def test_no_plan_ever_exceeds_a_card(cards: tuple[Cards, ...], chance: random.Random) -> None:
    made = planned(cards)
    assert memory_problems(profile(cards)) == []
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


@pytest.mark.parametrize("gpu", GPUS)
def test_every_card_of_the_catalogue_alone_has_a_plan_that_fits_it(gpu: str) -> None:
    for cards in (parse(f"{gpu}:1"), parse(f"{gpu}:8")):
        assert {tier.gpu for tier in planned(cards).tiers.values()} == {gpu}
        assert memory_problems(profile(cards)) == []


@given(clusters())
@FEWER
def test_a_plan_is_a_profile_that_reads_back_as_planned(cards: tuple[Cards, ...]) -> None:
    assert profile(cards).tiers == planned(cards).tiers
    assert plan(parse(written(cards))).tiers == planned(cards).tiers


@given(clusters())
@FEWER
def test_no_tier_has_a_smaller_model_than_the_tier_below(cards: tuple[Cards, ...]) -> None:
    ranks = [rank(tier) for tier in planned(cards).tiers.values()]
    assert ranks == sorted(ranks)


@given(clusters())
@FEWER
def test_every_chain_ends_without_drafts_and_without_large_weights(cards: tuple[Cards, ...]) -> None:
    made = profile(cards)
    for tier in made.tiers.values():
        assert tier.chain[-1].speculation is None
        assert not made.models[tier.chain[-1].target].large


def usd(tier: Tier, batch: int) -> float:
    step = step_ms(tier.chain[0].target, str(tier.gpu), tier.tensor_parallel, batch)
    return usd_per_million(tier.price_usd_per_hour, step, batch)


@given(clusters())
@FEWER
def test_eco_is_the_cheapest_per_token_and_ultra_the_most_able_or_the_plan_says_why_not(
    cards: tuple[Cards, ...],
) -> None:
    made = planned(cards)
    tiers = made.tiers.values()
    assert rank(made.tiers["ultra"]) == max(rank(tier) for tier in tiers)
    cheapest = all(min(usd(tier, batch) for tier in tiers) == usd(made.tiers["eco"], batch) for batch in (1, BATCH))
    assert made.reasons["eco"][-1].startswith("The cheapest: " if cheapest else "Not the cheapest: ")
    assert f"cost {usd(made.tiers['eco'], BATCH):.2g} USD" in made.reasons["eco"][-1]
    # With one type of card nothing is in the way.
    assert cheapest or len(cards) > 1


def test_an_eco_that_is_not_the_cheapest_says_which_tier_is() -> None:
    eco, cheaper = (
        next(each for each in recipes(gpu, 1) if (each.model, each.cards) == (model, cards))
        for gpu, model, cards in (("L4", "qwen3-4b-instruct-2507", 1), ("H100", "qwen2.5-14b-instruct-awq", 0))
    )
    dear = next(each for each in recipes("H100", 2) if (each.model, each.cards) == ("llama-3.3-70b-instruct-fp8", 2))
    chosen: dict[TierName, Recipe] = {"eco": eco, "balanced": cheaper, "performance": dear, "ultra": dear}
    assert not cheapest(chosen)
    assert list(reasons("eco", chosen, lambda allowed: None))[-1] == (
        f"Not the cheapest: 10^6 tokens cost {eco.usd:.2g} USD at a batch of 16, balanced's {cheaper.usd:.2g}, as "
        "cards there read more bytes for the price."
    )


@given(clusters())
@FEWER
def test_a_share_is_no_larger_than_its_memory_needs(cards: tuple[Cards, ...]) -> None:
    for tier in planned(cards).tiers.values():
        if tier.gpus < 1:
            gpu = GPUS[str(tier.gpu)]
            need = max(budget.total for entry in tier.chain if (budget := entry_budget(entry, tier)) is not None)
            assert share_of(need, gpu) == pytest.approx(tier.gpus)


@pytest.mark.parametrize(
    "gpus", ["H100:1024", "16xH100:8", "1024xL4:1", "128xA100-80G:8", ",".join(f"{gpu}:8" for gpu in GPUS)]
)
def test_a_plan_for_many_cards_takes_seconds_at_most(gpus: str) -> None:
    # Counted, not timed: work that does not grow with the number of cards.
    with (
        patch("cluster.planner.plan.cheapest", wraps=plan_module.cheapest) as compared,
        patch("cluster.planner.plan.place_for_all", wraps=place_for_all) as placements,
    ):
        plan(parse(gpus))
    assert compared.call_count < 100_000
    assert placements.call_count < 5_000


@pytest.mark.parametrize(
    ("gpus", "models"),
    [
        ("L4:1", ["qwen2.5-0.5b", "qwen2.5-1.5b", "qwen3-4b", "llama-3.1-8b"]),
        ("A10G:1", ["qwen2.5-0.5b", "qwen2.5-1.5b", "qwen3-4b", "llama-3.1-8b"]),
        ("H100:1", ["qwen3-4b", "llama-3.1-8b", "qwen2.5-14b", "llama-3.3-70b"]),
        ("A100-80G:1", ["qwen3-4b", "llama-3.1-8b", "qwen2.5-14b", "llama-3.3-70b"]),
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


@pytest.mark.parametrize(
    ("gpus", "idle"), [("A100-80G:8", 0), ("A100-80G:2", 0.05), ("H100:4", 0), ("2xH100:4", 1), ("H100:3", 0)]
)
def test_large_shares_become_whole_cards_where_few_of_them_would_leave_cards_idle(gpus: str, idle: float) -> None:
    tiers = planned(parse(gpus)).tiers
    assert tiers["ultra"].gpus == 1
    assert tiers["eco"].gpus < 1
    used = sum(tier.gpus * tier.replicas.max for tier in tiers.values())
    assert used >= sum(each.count for each in parse(gpus)) - idle - 0.01


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


@pytest.mark.parametrize(
    ("gpus", "note"),
    [
        (
            "A10G:1",
            "qwen3-30b-a3b-instruct-2507-fp8: its weights (fp8-block) need compute capability 8.9, here is 8.6 at "
            "most.",
        ),
        (
            "L4:1",
            "qwen3-30b-a3b-instruct-2507-fp8: it needs 32.3 GiB of 20.2 on 1 x L4; it fits 2 in one machine, a "
            "machine here has 1.",
        ),
        (
            "H100:3",
            "qwen3-235b-a22b-instruct-2507-fp8: it needs 116.7 GiB of 72.8 on each of 2 x H100; it fits 4 in one "
            "machine, a machine here has 3.",
        ),
        (
            "L40S:8",
            "qwen3-235b-a22b-instruct-2507-fp8: it needs 59.7 GiB of 40.8 on each of 4 x L40S, the most that it can be "
            "split over.",
        ),
        (
            "L4:4",
            "llama-3.3-70b-instruct-w4a16: it needs 4 x L4 of 4, and what is left has no room for three other tiers, "
            "which need 0.12 of a card each at least.",
        ),
        (
            "B200:2,B200:1",
            "qwen3-235b-a22b-instruct-2507-fp8: it needs 2 x B200 in one machine, where Ray may put other tiers' "
            "replicas first.",
        ),
        (
            "A100-40G:1",
            "qwen2.5-32b-instruct-awq: as ultra it would have room, but leave eco qwen2.5-0.5b-instruct instead of "
            "qwen2.5-1.5b-instruct-awq and balanced qwen2.5-1.5b-instruct-awq instead of qwen3-4b-instruct-2507-w4a16.",
        ),
    ],
)
def test_what_cannot_be_had_is_said_with_the_constraint_and_its_numbers(gpus: str, note: str) -> None:
    assert f"Not here: {note}" in planned(parse(gpus)).notes


@given(clusters())
@FEWER
def test_a_model_that_is_not_here_for_want_of_room_is_in_no_plan(cards: tuple[Cards, ...]) -> None:
    made = planned(cards)
    for note in (each for each in made.notes if each.startswith("Not here: ")):
        model, why = note.removeprefix("Not here: ").split(": ", 1)
        instead = choose(cards, lambda name, recipe, model=model: name != "ultra" or recipe.model == model)  # type: ignore[misc]
        assert (instead is not None) == ("would have room" in why)
        for name, other, here in re.findall(r"(\w+) (\S+) instead of ([\w.-]+\w)", why):
            assert instead is not None
            assert (instead[name].model, made.tiers[name].chain[0].target) == (other, here)


def test_a_tier_with_the_model_of_the_tier_below_says_what_another_would_take() -> None:
    assert planned(parse("4xL4:1")).reasons["ultra"][0] == (
        "The model of the tier below again: no larger one has room here beside three other tiers."
    )


def test_a_model_that_is_not_the_nearest_to_its_tiers_size_says_which_is_and_why_not_that() -> None:
    why = planned(parse("H100:8")).reasons["performance"][0]
    assert why == "Near performance's size, 32B: qwen2.5-32b-instruct-awq is nearer, but has no EAGLE-3 head here."
    assert planned(parse("L4:1")).reasons["performance"][0].startswith("The nearest to performance's size, 32B, ")


@given(clusters())
@FEWER
def test_a_model_that_is_called_the_nearest_to_its_tiers_size_is(cards: tuple[Cards, ...]) -> None:
    made = planned(cards)
    models = {name: catalogue().models[tier.chain[0].target] for name, tier in made.tiers.items()}

    def away(model: Model, size: float) -> float:
        return abs(log(model.rank / size))

    for name, size in IDEAL.items():
        if made.reasons[name][0].startswith("The nearest to "):

            def nearer(tier: TierName, recipe: Recipe, name: TierName = name, size: float = size) -> bool:
                model = catalogue().models[recipe.model]
                if tier != name:
                    return model == models[tier]
                new = all(model.shape != each.shape for each in models.values())
                return new and away(model, size) < away(models[name], size)

            assert choose(cards, nearer) is None


def test_cards_that_stay_idle_are_said_with_what_would_use_them() -> None:
    assert (
        "3 of 16 H100 stay idle with all replicas up: with more, others could spread so that no machine keeps 4 free "
        "cards for ultra, and Ray moves none. To use them, raise `replicas.max` by hand; a replica may then wait."
    ) in planned(parse("2xH100:8")).notes
    assert (
        "1.13 of 3 H100 stay idle with all replicas up: with more, it is not proven that each finds a place whatever "
        "starts and stops, and Ray moves none. To use them, raise `replicas.max` by hand; a replica may then wait."
    ) in planned(parse("3xH100:1")).notes
    assert not any("idle" in note for note in planned(parse("H100:8")).notes)


@given(clusters())
@FEWER
def test_no_idle_card_goes_unsaid(cards: tuple[Cards, ...]) -> None:
    made = planned(cards)
    for each in cards:
        used = sum(tier.gpus * tier.replicas.max for tier in made.tiers.values() if tier.gpu == each.gpu)
        starts = (
            f"Unused: {each.count} x {each.gpu},",
            f"{each.count - used:.3g} of {each.count} {each.gpu} stay idle",
        )
        said = [note for note in made.notes if note.startswith(starts)]
        assert len(said) == (each.count - used > 0.249), (made.notes, used)


@pytest.mark.parametrize(
    ("gpus", "note"),
    [
        ("L4:1", "A machine with 1 x L4 wants 32 GiB"),
        # Four engines on a card each, and one on four cards with a process for each.
        ("2xH100:8", "A machine with 8 x H100 wants 52 GiB"),
    ],
)
def test_the_memory_that_a_machine_must_have_is_said(gpus: str, note: str) -> None:
    [said] = [each for each in planned(parse(gpus)).notes if each.startswith("A machine")]
    assert said == f"{note} of memory for the engines that may run there, besides their weights (estimated)."


def test_each_tier_has_its_reasons_as_comments() -> None:
    made = planned(parse("L4:1"))
    text = render(made)
    assert all(made.reasons[name] for name in TIER_NAMES)
    assert "    # n-gram drafts: no EAGLE-3 head is known for it.\n" in text


def test_too_few_cards_are_an_error_that_says_what_would_do() -> None:
    with pytest.raises(ConfigError, match="no four tiers fit no GPU: the smallest four engines need"):
        plan(())
