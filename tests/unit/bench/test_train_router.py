"""The shipped curves are what the script writes, and the script writes what it learned."""

from __future__ import annotations

import random

import pytest
import yaml

from bench.quality.gain_fit import Sample
from bench.quality.outcomes import OUTCOMES, Outcome, groups, read_outcomes
from bench.train_router import Task, text_of, train
from router.difficulty.gain_model import GAIN_MODEL_FILE, GainModel

PROSE = "The farmer walked over the hill and thought about the weather of the coming winter and of his brother"
CODE = "def f(x, y):\n    z = x + 1\n    return z * y\n\nx = [1, 2]\ny = {a: b}\nWhat does this code return, and why?"


def outcomes(count: int = 60) -> list[Outcome]:
    """The strong model gains on code, and on nothing else."""
    rng = random.Random(3)
    made = []
    for number in range(count):
        code = number % 2
        words = " ".join(rng.sample(PROSE.split(), 12))
        made.append(Outcome(f"b_{number}", f"{words}\n{CODE if code else PROSE}", 0.0, float(code)))
    return made


def learned(seed: int = 0) -> GainModel:
    tasks = [Task.of(outcome) for outcome in outcomes()]
    return train(tasks, range(len(tasks)), seed)[0]


def test_the_model_learns_which_form_gains() -> None:
    model = learned()
    prose, code = (Task.of(outcome).given.features for outcome in outcomes()[:2])
    assert model.gain(code) > 0.3
    assert model.gain(prose) < -0.3


def test_the_same_outcomes_give_the_same_model() -> None:
    assert learned() == learned()


def test_a_task_counts_once_as_given_and_bare_together() -> None:
    samples: tuple[Sample, ...] = Task.of(outcomes()[1]).samples()
    assert [sample.gain for sample in samples] == [1, 1]
    assert sum(sample.weight for sample in samples) == 1


def test_the_written_file_is_read_back_as_the_same_model() -> None:
    model = learned()
    assert GainModel.model_validate(yaml.safe_load(text_of(model, rows=60, stiffness=4.0))) == model


@pytest.mark.skipif(not OUTCOMES.exists(), reason=f"{OUTCOMES} is not on this machine")
def test_the_shipped_model_is_what_the_script_writes() -> None:
    seen = read_outcomes(OUTCOMES)
    model, stiffness = train([Task.of(outcome) for outcome in seen], groups(seen))
    assert GAIN_MODEL_FILE.read_text(encoding="utf-8") == text_of(model, len(seen), stiffness)


def test_the_shipped_model_is_small_and_has_no_words_of_prompts() -> None:
    text = GAIN_MODEL_FILE.read_text(encoding="utf-8")
    assert len(text) < 4000
    if OUTCOMES.exists():
        words = {word for outcome in read_outcomes(OUTCOMES) for word in outcome.prompt.split() if len(word) > 12}
        assert not words & set(text.split())
