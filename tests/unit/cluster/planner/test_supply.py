"""`--gpus`: what may be written, and what a Ray node offers."""

from __future__ import annotations

import pytest
from hypothesis import given

from cluster.planner.supply import Cards, node_gpus, parse, unknown_types, written
from router.errors import ConfigError
from tests.unit.cluster.planner.strategies import clusters


@pytest.mark.parametrize(
    ("text", "cards"),
    [
        ("H100:8", (Cards("H100", (8,)),)),
        ("A100-80G:1, L4:2", (Cards("L4", (2,)), Cards("A100-80G", (1,)))),
        ("4xA10G:1", (Cards("A10G", (1, 1, 1, 1)),)),
        ("L4:1,2xL4:4", (Cards("L4", (1, 4, 4)),)),
        ("l4:1,a100-80g:2", (Cards("L4", (1,)), Cards("A100-80G", (2,)))),  # capitals or not
    ],
)
def test_cards_are_written_by_type_and_machine(text: str, cards: tuple[Cards, ...]) -> None:
    assert parse(text) == cards


@given(clusters())
def test_what_is_written_reads_back(cards: tuple[Cards, ...]) -> None:
    assert [(each.gpu, sorted(each.nodes)) for each in parse(written(cards))] == [
        (each.gpu, sorted(each.nodes)) for each in cards
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("T4:1", "unknown T4; allowed are L4, A10G, A10, GeForce-RTX-3090, GeForce-RTX-4090, RTX-A6000, L40, "),
        ("H-100:8", "unknown H-100, did you mean H100?; allowed are L4"),
        ("RTX6000:1", "unknown RTX6000, did you mean RTX-6000?; allowed are L4"),
        ("RTX4090:1", "unknown RTX4090, did you mean GeForce-RTX-4090?; allowed are L4"),
        ("A6000:1", "unknown A6000, did you mean RTX-A6000?; allowed are L4"),
        ("RTX-6000-Ada:1", "unknown RTX-6000-Ada, did you mean RTX-6000?; allowed are L4"),
        ("H100-80G:8", "unknown H100-80G, did you mean H100?; allowed are L4"),
        ("L40S-48G:8", "unknown L40S-48G, did you mean L40S?; allowed are L4"),
        ("MI300X:8", "unknown MI300X; allowed are L4"),
        ("A100:2", "unknown A100, did you mean A100-40G or A100-80G?; allowed are L4"),
        ("L4:0", "got 'L4:0', allowed are 1 to 1024 cards in all"),
        ("0xL4:1", "got '0xL4:1', allowed are 1 to 1024 cards in all"),
        ("H100:1025", "got 'H100:1025', allowed are 1 to 1024 cards in all"),
        ("H100:1000,L4:25", "got 'L4:25', allowed are 1 to 1024 cards in all"),
        ("H100:" + "9" * 5000, "got 'H100:99999999999999999999999999999999999...', allowed is TYPE:COUNT"),
        ("L4:1,l4:1", "L4:1 comes twice; write 2xL4:1 for two such machines"),
        ("L4:\u0663", "got 'L4:\u0663', allowed is TYPE:COUNT"),  # an Arabic 3
        ("\u0663xL4:1", "got '\u0663xL4:1', allowed is TYPE:COUNT"),
        ("L4", "got 'L4', allowed is TYPE:COUNT for the cards of one machine"),
        ("L4:two", "got 'L4:two', allowed is TYPE:COUNT"),
        ("L4:1,", "got '', allowed is TYPE:COUNT"),
        ("", "got '', allowed is TYPE:COUNT"),
        ("L4:-1", "got 'L4:-1', allowed is TYPE:COUNT"),
    ],
)
def test_anything_else_is_an_error_that_says_what_is_allowed(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text)
    assert str(error.value).startswith(f"--gpus: {problem}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("resources", "gpus"),
    [
        ({"CPU": 8.0}, None),
        ({"GPU": 2.0, "accelerator_type:L4": 1.0}, ("L4", 2)),
        ({"GPU": 1.0, "accelerator_type:A100": 1.0, "accelerator_type:A100-80G": 1.0}, ("A100-80G", 1)),
        ({"GPU": 1.0, "accelerator_type:A100": 1.0}, None),
        ({"GPU": 1.0, "accelerator_type:T4": 1.0}, None),
    ],
)
def test_a_nodes_cards_are_those_that_the_catalogue_knows(
    resources: dict[str, float], gpus: tuple[str, int] | None
) -> None:
    assert node_gpus(resources) == gpus


def test_the_types_that_the_catalogue_lacks_are_named() -> None:
    nodes = [
        {"GPU": 1.0, "accelerator_type:L4": 1.0},
        {"GPU": 2.0, "accelerator_type:GeForce-RTX-5090": 1.0},
        {"GPU": 8.0, "accelerator_type:A100": 1.0},
        {"GPU": 1.0},
        {"CPU": 8.0},
    ]
    assert unknown_types(nodes) == ("A100", "GPU", "GeForce-RTX-5090")
