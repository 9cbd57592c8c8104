"""The closed loop: a batch that is kept full, a policy that decides the depths, step times with noise.

The policy sees noisy step times with outliers, one step late (as in asynchronous scheduling). Throughput is counted in
true times.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from bench.closed_loop.shapes import Shape, Step
from bench.closed_loop.texts import Text
from router.spec_params import SpecParams
from serve_app.speculation.controller import DepthController, StepResult
from serve_app.speculation.settings import EngineFacts, SpeculationSettings

NOISE: Final = 0.03
"""Relative scatter of the step times that the policy sees (lognormal)."""
OUTLIERS: Final = 0.005
"""Share of the steps that seem to take `OUTLIER` times as long, besides the first."""
OUTLIER: Final = 20.0


class Policy(Protocol):
    """Decides the depths at every step; learns of requests and outcomes."""

    def add(self, request: str) -> None:
        """Begin a request."""

    def remove(self, request: str) -> None:
        """Forget a request."""

    def decide(self, decoding: Sequence[str]) -> dict[str, int]:
        """Return how many draft tokens each request verifies in its next step."""

    def observe(self, result: StepResult) -> None:
        """Learn from a step."""


class Static:
    """The same K for all."""

    def __init__(self, k: int) -> None:
        self.k = k

    def add(self, request: str) -> None:
        """See `Policy`."""

    def remove(self, request: str) -> None:
        """See `Policy`."""

    def observe(self, result: StepResult) -> None:
        """See `Policy`."""

    def decide(self, decoding: Sequence[str]) -> dict[str, int]:
        """See `Policy`."""
        return dict.fromkeys(decoding, self.k)


class Auto:
    """The controller, with every request `auto`."""

    def __init__(self, controller: DepthController) -> None:
        self.controller = controller

    @classmethod
    def of(cls, shape: Shape, settings: SpeculationSettings | None = None) -> Auto:
        """Return the policy with a controller that has seen nothing, as an engine of that shape starts it."""
        facts = EngineFacts(graph=shape.graph, draft=shape.draft)
        return cls(DepthController(shape.k_max, settings or SpeculationSettings(), facts))

    def add(self, request: str) -> None:
        """See `Policy`."""
        self.controller.add(request, SpecParams(k="auto"), "general_reasoning")

    def remove(self, request: str) -> None:
        """See `Policy`."""
        self.controller.remove(request)

    def observe(self, result: StepResult) -> None:
        """See `Policy`."""
        self.controller.observe(result)

    def decide(self, decoding: Sequence[str]) -> dict[str, int]:
        """See `Policy`. Prompts of the next step are not known: its newcomers have not arrived."""
        return {request: decision.k for request, decision in self.controller.decide(decoding, 0).items()}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a policy made of the texts."""

    tokens: int
    """Output tokens."""
    steps: list[Step]

    def rate(self, shape: Shape) -> float:
        """Return output tokens per second, in true times, were the same steps run on an engine of that shape."""
        return self.tokens / sum([shape.step_s(step) for step in self.steps])

    def off_rate(self, shape: Shape) -> float:
        """Return the same for an engine without speculation; for steps without drafts."""
        return self.tokens / sum([shape.off_s(step) for step in self.steps])


@dataclass(slots=True)
class _Running:
    """A request in the batch."""

    text: Text
    at: int = 0
    """Output tokens so far."""
    k: int = 0
    """Draft tokens that its next step may verify."""


def simulate(
    shape: Shape,
    queue: Sequence[Text],
    batch: int,
    tokens: int,
    policy: Policy,
    *,
    apart: bool = True,
    seed: int = 1,
    slow: range = range(0),
    slowness: float = 1.0,
) -> Outcome:
    """Keep `batch` requests running from the queue until that many tokens have come out.

    Args:
        shape: the engine.
        queue: texts, in the order in which their requests arrive.
        batch: requests at a time.
        tokens: output tokens, at least.
        policy: decides the depths.
        apart: whether the worker measures verifying and drafting apart.
        seed: of the noise.
        slow: steps in which the machine is slower, because others share it.
        slowness: by that factor. `Outcome` leaves it out.
    """
    noise = random.Random(seed)
    waiting = iter(enumerate(queue))
    running: dict[str, _Running] = {}
    made = 0
    steps: list[Step] = []
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
        prefill = batched > 0
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
        widths = {drafted for drafted, _ in outcomes.values()}
        step = Step(batched, len(decoding), widths.pop() if len(widths) == 1 else None, depth, prefill)
        steps.append(step)
        if late is not None:
            policy.observe(late)
        # The first step waits for a compile, and now and then another one for something else.
        factor = noise.lognormvariate(0, NOISE)
        factor *= slowness if len(steps) - 1 in slow else 1.0
        factor *= OUTLIER if len(steps) == 1 or noise.random() < OUTLIERS else 1.0
        verify_s, draft_s = shape.verify_s(step) * factor, shape.draft_s(depth) * factor
        late = StepResult(verify_s + draft_s, batched, depth, outcomes, len(decoding), prefill)
        if not prefill:
            late = late._replace(uniform=step.uniform)
        if apart:
            late = late._replace(verify_s=verify_s, draft_s=draft_s)
        for name in ended:
            del running[name]
            policy.remove(name)
    return Outcome(made, steps)
