"""The proof of the controller: what it loses against knowing everything, on simulated engines and texts.

In every cell `auto` must have at least 0.97 of the output per second of the best fixed K in hindsight, and of an engine
without speculation where some fixed K reaches that; where none does it must advise to do without drafts. Learning is
included: each cell begins with a controller that has seen nothing, on an engine that it does not know, with the default
settings. `python -m bench.speculation_sim` runs every cell of many shapes; these are a few.
"""

from __future__ import annotations

import random

import pytest

from bench.closed_loop.loop import Auto, Static, simulate
from bench.closed_loop.shapes import Shape
from bench.closed_loop.texts import texts
from bench.speculation_sim import GOAL, Run, cell

H100 = ((1, 6.17), (8, 6.49), (32, 7.79), (128, 10.67), (512, 22), (1024, 40), (2048, 80))
"""Tokens and ms of an 8B model, from measured kernels."""
V2_DEFAULT = Shape(name="k_max", step_ms=H100, graph="k_max", piecewise_ms=1.5, draft_ms=0.3, draft="k_max")
PER_K = Shape(name="per_k", step_ms=H100, graph="per_k", piecewise_ms=1.5, draft_ms=0.3)
ALWAYS = V2_DEFAULT.model_copy(update={"name": "always", "draft_ms": 1.8, "draft": "always"})
CPU = Shape(name="cpu", step_ms=((1, 37.5), (2, 40)), ngram=True)
HEAD = Shape(
    name="head",
    k_max=4,
    step_ms=((1, 12), (8, 12.3), (32, 14), (64, 18), (128, 28), (256, 50)),
    graph="per_k",
    piecewise_ms=2,
    draft_ms=1.3,
    head=True,
)
"""An EAGLE head that is paid for at K = 0 as well."""
SMALL = Shape(
    name="small",
    k_max=5,
    step_ms=((1, 2), (8, 2), (32, 2.2), (128, 3), (512, 6), (1024, 10), (2048, 19)),
    graph="k_max",
    piecewise_ms=6,
    draft_ms=0.1,
    draft="k_max",
)
"""A step without drafts has no graph and takes four times as long."""
COSTLY = Shape(name="costly draft", step_ms=((1, 10), (256, 10), (512, 20)), draft_ms=5)
EXPERTS = Shape(
    name="experts",
    k_max=5,
    step_ms=((1, 4), (2, 6), (4, 9), (8, 13), (16, 17), (64, 20), (256, 26), (2048, 120)),
    draft_ms=0.4,
)
"""Experts are loaded one by one, and there are no graphs: first tokens are dear, later ones cheap."""

PLATEAU = Shape(
    name="plateau",
    step_ms=((1, 22.9), (24, 24), (25, 25.2), (32, 27), (33, 36.4), (48, 38.8), (49, 44.6), (128, 44.7), (512, 145)),
    graph="per_k",
    piecewise_ms=13.7,
    draft_ms=2.75,
)
"""Twice as many tokens take two thirds more time, and four times as many no longer than that."""


@pytest.mark.parametrize(
    ("batch", "slow", "apart"),
    # Each pair of values once.
    [
        (1, range(60), True),
        (8, range(60), False),
        (1, range(30, 90), False),
        (8, range(30, 90), True),
        (1, range(150), True),
        (8, range(150), False),
    ],
)
def test_a_machine_that_was_slow_at_first_does_not_keep_drafts_that_do_not_pay(
    batch: int, slow: range, apart: bool
) -> None:
    shape = PER_K.model_copy(update={"k_max": 4, "draft_ms": 2.0})
    queue = texts(falling, 5000 * batch, batch, shape.k_max)

    outcome = simulate(shape, queue, batch, 4000 * batch, Auto.of(shape), apart=apart, slow=slow, slowness=4.0)
    off = simulate(shape, queue, batch, 4000 * batch, Static(0))

    assert outcome.rate(shape) >= 0.85 * off.rate(shape)


def falling(rng: random.Random, index: int, count: int, length: int) -> list[float]:
    """A few predictable texts, then none."""
    return [0.8 if 5 * index < count else 0.05] * length


@pytest.mark.parametrize(
    ("shape", "text", "batch"),
    [
        (V2_DEFAULT, "0.2", 8),
        (V2_DEFAULT, "0.8", 8),
        (V2_DEFAULT, "mixed", 8),
        (V2_DEFAULT, "bursty", 32),
        (PER_K, "0.5", 8),
        (PER_K, "bursty", 8),
        (PER_K, "0.2", 32),
        (ALWAYS, "0.8", 1),
        (ALWAYS, "0.5", 8),
        (CPU, "0.2", 8),
        (CPU, "0.8", 8),
        (CPU, "mixed", 8),
        (CPU, "rising in text", 1),
        (CPU, "falling traffic", 8),
        (COSTLY, "0.5", 1),
        (COSTLY, "0.8", 8),
        (COSTLY, "bursty", 8),
        (EXPERTS, "0.2", 1),
        (EXPERTS, "0.8", 8),
        (PLATEAU, "0.8", 32),
        (HEAD, "0.2", 32),
        (HEAD, "0.8", 8),
    ],
    ids=lambda value: value.name if isinstance(value, Shape) else str(value),
)
def test_auto_is_nearly_as_fast_as_the_best_fixed_k_in_hindsight(shape: Shape, text: str, batch: int) -> None:
    found = cell(shape, [Run(text, batch, 1.0, seed=0)], apart=shape.graph != "none")
    assert found.to_best_static >= GOAL, found
    pays = found.best_static_to_off >= GOAL
    assert found.to_off >= GOAL or not pays, found
    assert found.advice == (None if pays else "no_drafts"), found


@pytest.mark.parametrize("seed", [0, 1])
def test_where_steps_without_drafts_lose_much_too_little_is_known_of_them_to_advise_against_drafts(seed: int) -> None:
    found = cell(SMALL, [Run("0.5", 32, 4.0, seed)], apart=True)
    assert found.best_static_to_off > 1.05
    assert found.advice is None


def test_a_head_is_paid_for_at_every_step() -> None:
    assert [HEAD.draft_s(depth) for depth in (0, 1, 2)] == pytest.approx([0.0013, 0.0013, 0.0026])
    assert PER_K.draft_s(0) == 0
