"""A closed loop in virtual time: an engine whose step times are known, texts whose predictable tokens are known.

Texts are the same for every policy: whether the draft for an output position is accepted depends on the request and the
position only, so policies are compared on equal luck. The controller sees noisy step times with outliers, one step
late (as in asynchronous scheduling); throughput is counted in true times.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from router.spec_params import SpecParams
from serve_app.speculation.controller import DepthController, StepResult
from serve_app.speculation.settings import SpeculationSettings

K_MAX = 8


@dataclass(frozen=True)
class Machine:
    """True step times."""

    name: str
    step_s: Callable[[int, int], float]
    """From batched tokens and draft depth to seconds."""
    ngram: bool = False
    """Drafts are looked up: in prose they often do not come."""


CPU = Machine("cpu", lambda tokens, depth: 0.035 + 0.0025 * tokens, ngram=True)
GPU = Machine("gpu", lambda tokens, depth: 0.010 * max(1.0, tokens / 256) + 0.0012 * depth)
COSTLY = Machine("costly draft", lambda tokens, depth: 0.010 * max(1.0, tokens / 256) + 0.005 * depth)
MACHINES = (CPU, GPU, COSTLY)

AcceptanceAt = Callable[[random.Random, int, int, int], list[float]]
"""From randomness, index of the text, number of texts and length to the acceptance at every output position."""


def steady(acceptance: float) -> AcceptanceAt:
    return lambda rng, index, count, length: [acceptance] * length


def bursty(rng: random.Random, index: int, count: int, length: int) -> list[float]:
    """Copied passages of about 40 tokens (0.97) between prose of about 60 tokens (0.1)."""
    acceptance, copying = list[float](), rng.random() < 0.4
    while len(acceptance) < length:
        acceptance += [0.97 if copying else 0.1] * (1 + int(rng.expovariate(1 / (40 if copying else 60))))
        copying = not copying
    return acceptance[:length]


def rising_within(rng: random.Random, index: int, count: int, length: int) -> list[float]:
    """Every text becomes predictable in its middle."""
    return [0.2] * (length // 2) + [0.8] * (length - length // 2)


def falling_between(rng: random.Random, index: int, count: int, length: int) -> list[float]:
    """The traffic changes in the middle: later texts are hard to predict."""
    return [0.8 if 2 * index < count else 0.2] * length


def mixed(rng: random.Random, index: int, count: int, length: int) -> list[float]:
    """Texts of three kinds side by side."""
    return [(0.2, 0.5, 0.8)[index % 3]] * length


TEXTS: dict[str, AcceptanceAt] = {
    "0.2": steady(0.2),
    "0.5": steady(0.5),
    "0.8": steady(0.8),
    "bursty": bursty,
    "rising in text": rising_within,
    "falling traffic": falling_between,
    "mixed": mixed,
}


@dataclass(frozen=True)
class Text:
    """One request's output, as it will be."""

    prompt: int
    length: int
    runs: list[int]
    """By position: how many draft tokens from there on would be accepted."""
    comes: list[bool]
    """By position: whether a draft comes at all."""


LONGEST = 400


def texts(kind: AcceptanceAt, tokens: int, batch: int, ngram: bool, seed: int = 0) -> list[Text]:
    """Texts of mixed lengths, about as many as make that many tokens, and some to keep the batch full to the end."""
    made = []
    count = max(2, round(tokens / (LONGEST * 9 / 16)))
    for index in range(int(1.2 * count) + batch + 4):
        rng = random.Random(f"{seed}/{index}")
        length, prompt = rng.randint(LONGEST // 8, LONGEST), rng.randint(8, 64)
        acceptance = kind(rng, index, count, length + K_MAX)
        runs, run = [], 0
        for likely in reversed(acceptance):
            run = run + 1 if rng.random() < likely else 0
            runs.append(run)
        comes = [not ngram or rng.random() < (1.0 if likely > 0.4 else 0.5) for likely in acceptance]
        made.append(Text(prompt, length, runs[::-1], comes))
    return made


class Policy(Protocol):
    """Decides the depths at every step; learns of requests and outcomes."""

    def add(self, request: str) -> None: ...
    def remove(self, request: str) -> None: ...
    def decide(self, decoding: Sequence[str]) -> dict[str, int]: ...
    def observe(self, result: StepResult) -> None: ...


class Static:
    """The same K for all."""

    def __init__(self, k: int) -> None:
        self.k = k

    def add(self, request: str) -> None: ...
    def remove(self, request: str) -> None: ...
    def observe(self, result: StepResult) -> None: ...

    def decide(self, decoding: Sequence[str]) -> dict[str, int]:
        return dict.fromkeys(decoding, self.k)


class Auto:
    """The controller, with every request `auto`."""

    def __init__(self, settings: SpeculationSettings | None = None) -> None:
        self.controller = DepthController(K_MAX, settings or SpeculationSettings())

    def add(self, request: str) -> None:
        self.controller.add(request, SpecParams(k="auto"), "general_reasoning")

    def remove(self, request: str) -> None:
        self.controller.remove(request)

    def observe(self, result: StepResult) -> None:
        self.controller.observe(result)

    def decide(self, decoding: Sequence[str]) -> dict[str, int]:
        # Prompts of the next step are not known: its newcomers have not arrived.
        return {request: decision.k for request, decision in self.controller.decide(decoding, 0).items()}


@dataclass(frozen=True)
class Outcome:
    """What a policy made of the texts."""

    tokens: int
    """Output tokens."""
    steps: list[tuple[int, int]]
    """Batched tokens and draft depth of each step."""

    def rate(self, machine: Machine) -> float:
        """Output tokens per second, in true times, were the same steps run on that machine."""
        return self.tokens / sum(machine.step_s(batched, depth) for batched, depth in self.steps)


@dataclass(slots=True)
class _Running:
    """A request in the batch."""

    text: Text
    at: int = 0
    """Output tokens so far."""
    k: int = 0
    """Draft tokens that its next step may verify."""


def simulate(machine: Machine, queue: Sequence[Text], batch: int, tokens: int, policy: Policy) -> Outcome:
    """Keep `batch` requests running from the queue until that many tokens have come out."""
    noise = random.Random(1)
    waiting = iter(enumerate(queue))
    running: dict[str, _Running] = {}
    made = 0
    steps: list[tuple[int, int]] = []
    late: StepResult | None = None
    while made < tokens:
        # Prompts of newcomers are processed beside the decoding requests; they decode from the next step on.
        decoding = list(running.items())
        batched = 0
        while len(running) < batch:
            index, text = next(waiting)
            policy.add(str(index))
            running[str(index)] = _Running(text)
            batched += text.prompt
        chosen = policy.decide(list(running))
        depth = max(chosen.values())

        outcomes: dict[str, tuple[int, int]] = {}
        ended: list[str] = []
        for name, request in decoding:
            text, at = request.text, request.at
            drafted = request.k if text.comes[at] else 0
            run = text.runs[at]
            accepted = run if run < drafted else drafted
            outcomes[name] = (drafted, accepted)
            batched += 1 + drafted
            made += 1 + accepted
            request.at = at = at + 1 + accepted
            if at >= text.length:
                ended.append(name)
        for name, request in running.items():
            request.k = chosen[name]
        steps.append((batched, depth))
        if late is not None:
            policy.observe(late)
        seconds = machine.step_s(batched, depth) * noise.lognormvariate(0, 0.03)
        # The first step waits for a compile, and now and then another one for something else.
        seconds *= 20.0 if len(steps) == 1 or noise.random() < 0.005 else 1.0
        late = StepResult(
            seconds,
            batched,
            depth,
            outcomes,
            len(outcomes),
            prefill=batched > sum(1 + drafted for drafted, _ in outcomes.values()),
        )
        for name in ended:
            del running[name]
            policy.remove(name)
    return Outcome(made, steps)
