"""Every number of the controller that is not a law of nature, with its unit and a default.

The defaults are this project's own choice, found on the simulated machines of `tests/unit/serve_app/speculation/`
(one set for all of them), not fitted to one engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Probability = Annotated[float, Field(ge=0, le=1)]
Acceptances = Annotated[tuple[Probability, ...], Field(min_length=1)]


class _Group(BaseModel):
    """Base of every group of settings: immutable, and a key it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class AcceptanceSettings(_Group):
    """How acceptance is estimated. A trial is a draft token whose fate is known (accepted, or the first rejected)."""

    prior: Mapping[str, Acceptances] = Field(
        default={"code": (0.65,), "math": (0.6,), "creative": (0.4,)},
        description="By prompt family (a category of the router): probability (0-1) that the draft token at each "
        "position is accepted when those before it were. The last value holds for all later positions.",
    )
    default_prior: Acceptances = Field(default=(0.5,), description="The same for families that `prior` lacks.")
    family_growth: float = Field(
        default=0.1,
        ge=0,
        description="A family's requests hear of its new trials when these are this share of the remembered ones.",
    )
    prior_trials: float = Field(
        default=10.0, gt=0, description="Weight of the prior in a family's estimate, trials per position."
    )
    family_memory_trials: float = Field(
        default=1000.0, ge=2, description="Memory of a family's estimate, trials per position: older ones fade by e."
    )
    request_prior_trials: float = Field(
        default=30.0, gt=0, description="Weight of the family's estimate in a request's steady estimate, trials."
    )
    request_memory_trials: float = Field(
        default=120.0, ge=2, description="Memory of a request's steady estimate, trials: older ones fade by e."
    )
    quick_prior_trials: float = Field(
        default=1.5, gt=0, description="Weight of a request's steady estimate in its quick estimate, trials."
    )
    quick_memory_trials: float = Field(
        default=5.0, ge=2, description="Memory of a request's quick estimate, trials: older ones fade by e."
    )
    quick_idle_memory_steps: float = Field(
        default=25.0,
        ge=1,
        description="How long a request's quick estimate holds while nothing is drafted, steps: it fades by e.",
    )
    request_idle_memory_steps: float = Field(
        default=100.0,
        ge=1,
        description="How long a request's steady estimate holds while nothing is drafted, steps: it fades by e.",
    )
    quickness_prior: Probability = Field(
        default=0.2,
        description="Share (0-1) of the quick estimate in a request's, until the family's text has shown how bursty "
        "it is.",
    )
    quickness_prior_trials: float = Field(
        default=2.0, gt=0, description="Weight of `quickness_prior`, in trials at which the two estimates differ."
    )


class CostSettings(_Group):
    """How the time of an engine step is modelled. A unit is the time of a step with one token and no drafts."""

    step_s: float = Field(default=0.02, gt=0, description="Time of a step before any was seen, s: sets the scale.")
    token_share: float = Field(default=0.01, ge=0, description="Expected time per further token of a step, units.")
    draft_share: float = Field(
        default=0.1, ge=0, description="Expected time per draft iteration, units; about 0 for n-gram drafts."
    )
    noise: float = Field(default=0.03, gt=0, description="Least relative scatter that step times are taken to have.")
    outlier: float = Field(
        default=3.0, gt=1, description="A step time is believed up to this many usual deviations from the prediction."
    )
    speed_gain: float = Field(
        default=0.15, ge=0, le=1, description="Part of a step's deviation that is taken for a change of machine speed."
    )
    cell_steps: float = Field(default=50.0, ge=1, description="Memory of the mean time of like steps, such steps.")
    memory_steps: float = Field(
        default=2000.0, ge=1, description="How long what was seen of like steps is trusted, steps: it fades by e."
    )
    draft_keep: float = Field(default=0.995, gt=0, le=1, description="What a step leaves of the older draft times.")
    draft_spread: float = Field(
        default=0.3, gt=0, description="How far the true draft time may be from `draft_share`, units."
    )


class ExplorationSettings(_Group):
    """What may be spent on finding out: drafts and plain steps that are not expected to pay."""

    time_share: float = Field(
        default=0.015, ge=0, le=0.5, description="Most of the engine's expected time that may be lost by it (0-1)."
    )
    saved_steps: float = Field(
        default=1.5, ge=0, description="Most unspent allowance that is kept for later, in times of a current step."
    )
    probe_tokens: int = Field(default=1, ge=1, description="Draft tokens of a probe of an `auto` request.")
    interval_steps: int = Field(default=8, ge=1, description="Fewest steps between two probes of a request.")
    max_interval_steps: int = Field(
        default=64, ge=1, description="Most steps that failing probes can back off to (doubling each time)."
    )
    hope: Probability = Field(
        default=0.95,
        description="Nothing is probed where drafts would not pay even with this acceptance (a busy engine).",
    )
    plain_interval_steps: int = Field(
        default=8, ge=1, description="Steps until the first step without drafts that measures what drafts cost."
    )
    max_plain_interval_steps: int = Field(
        default=512, ge=1, description="Steps between such plain steps that they back off to (doubling each time)."
    )


class TauSettings(_Group):
    """How the acceptance floor `tau` is enforced. Acceptance here is accepted / drafted tokens."""

    memory_tokens: float = Field(
        default=48.0, ge=2, description="Memory of the measured acceptance, draft tokens: older ones fade by e."
    )
    min_tokens: int = Field(default=24, ge=1, description="Draft tokens that must be seen before tau may stop.")
    margin: Probability = Field(
        default=0.1, description="A stopped request resumes when probes show tau plus this much acceptance (at most 1)."
    )
    probe_tokens: int = Field(default=4, ge=1, description="Draft tokens of a probe, and that a verdict needs.")


class AutoSettings(_Group):
    """When `auto` speculates."""

    min_gain: float = Field(
        default=0.005, ge=0, description="Least predicted relative gain of the requests' mean speed for which to draft."
    )
    share_memory_steps: float = Field(
        default=100.0, ge=1, description="Memory of the share of asked drafts that come, steps: older ones fade by e."
    )
    search_steps: int = Field(
        default=32, ge=1, description="Steps between full searches for the best depth; between them it climbs."
    )
    kinds_per_step: int = Field(
        default=4,
        ge=1,
        description="A batch of so many kinds of requests (by family and acceptance) is searched at every step; one of "
        "n times as many every n+1 steps.",
    )
    refresh_steps: int = Field(
        default=8, ge=1, description="Steps after which an idle request hears of news from its family."
    )


class DriftSettings(_Group):
    """When a fall of acceptance is an alarm."""

    min_tokens: int = Field(default=500, ge=1, description="Draft tokens that both windows must hold.")
    z: float = Field(default=4.0, gt=0, description="Standard deviations that the fall must have.")
    min_fall: Probability = Field(default=0.1, description="Least fall of the acceptance rate (absolute, 0-1).")
    run_tokens: float = Field(
        default=8.0,
        ge=1,
        description="Draft tokens that stand and fall together (drafts come in runs): each run counts as one trial.",
    )
    recent_memory_tokens: float = Field(
        default=2_000.0, ge=2, description="Memory of the recent window, draft tokens: older ones fade by e."
    )
    reference_memory_tokens: float = Field(
        default=100_000.0, ge=2, description="Memory of the reference, draft tokens: older ones fade by e."
    )


class FallbackSettings(_Group):
    """When a draft model or EAGLE head is given up for n-gram drafts (a step's `floor`)."""

    min_tokens: int = Field(default=2_000, ge=1, description="Draft tokens to have seen before it is judged.")
    memory_tokens: float = Field(
        default=20_000.0, ge=2, description="Memory of its acceptance, draft tokens: older ones fade by e."
    )
    run_tokens: float = Field(
        default=8.0, ge=1, description="Draft tokens that stand and fall together: each run counts as one trial."
    )
    z: float = Field(
        default=3.0, ge=0, description="Standard deviations by which acceptance must be under the floor, not by chance."
    )


class SpeculationSettings(_Group):
    """Settings of the speculation controller."""

    acceptance: AcceptanceSettings = Field(default=AcceptanceSettings(), description="Estimate of acceptance.")
    cost: CostSettings = Field(default=CostSettings(), description="Model of step times.")
    exploration: ExplorationSettings = Field(default=ExplorationSettings(), description="Bounds on finding out.")
    tau: TauSettings = Field(default=TauSettings(), description="The enforced acceptance floor.")
    auto: AutoSettings = Field(default=AutoSettings(), description="When `auto` speculates.")
    drift: DriftSettings = Field(default=DriftSettings(), description="Drift alarms.")
    fallback: FallbackSettings = Field(default=FallbackSettings(), description="Going over to n-gram drafts.")
