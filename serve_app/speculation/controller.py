"""The controller that the engine's scheduler asks at every step: how many draft tokens for which request, and why."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from math import exp, log1p
from typing import NamedTuple

from router.spec_params import SpecParams
from serve_app.speculation.acceptance import AcceptanceEstimator, no_evidence
from serve_app.speculation.allocation import Allocation
from serve_app.speculation.allowance import Allowance
from serve_app.speculation.backoff import Backoff
from serve_app.speculation.batch import Batch, depths_of, sort_batch
from serve_app.speculation.cost import CostModel, StepTime
from serve_app.speculation.decision import Decision, Reason
from serve_app.speculation.exploration import affordable_probes, hopeful
from serve_app.speculation.families import Families, FamilyState
from serve_app.speculation.family import StepCounts
from serve_app.speculation.request_state import RequestState
from serve_app.speculation.search import Search
from serve_app.speculation.settings import SpeculationSettings
from serve_app.speculation.snapshot import CostSnapshot, FamilySnapshot, Snapshot
from serve_app.speculation.tau import TauState

_DRAFT_DELAY = 4
"""Steps until what is asked for now may have been observed. Rather too many: then drafts seem to come more often than
they do while more and more are asked for, and the step to be fuller than it is, which is the harmless mistake."""
_MOST_STEPS_A_CURVE = 8
"""A curve of step times serves this many steps at most, once there were many; few while it is still being learned."""
_SHARE_PRIOR = 5.0
"""Draft tokens that are taken to have come as asked, before any were asked for."""


class StepResult(NamedTuple):
    """What an engine step turned out to be."""

    seconds: float | None
    """Time of the step, s; None where it was not measured."""
    batched_tokens: int
    """All tokens of the step: prefill, decode and verified draft tokens."""
    depth: int
    """Draft tokens that the proposer was asked for in this step, for the next one."""
    requests: Mapping[str, tuple[int, int]]
    """Of each decode request in the step: drafted (verified) tokens, and how many of them were accepted."""


class DepthController:
    """Holds the state of requests, families and costs; the formulas are in the modules that it calls.

    Not thread-safe: the scheduler calls it from one thread. Decisions may be a step or two ahead of observations, as
    in vLLM's asynchronous scheduling.

    What it spends on finding out is bounded. Probes and plain steps together take at most `exploration.time_share` of
    the predicted engine time (and `saved_steps` steps once), and a request is probed at most once in
    `exploration.interval_steps` steps.
    """

    def __init__(self, k_max: int, settings: SpeculationSettings) -> None:
        if k_max < 1:
            raise ValueError(f"k_max must be at least 1, got {k_max}")
        self._k_max = k_max
        self._settings = settings
        self._estimator = AcceptanceEstimator(k_max, settings.acceptance)
        self._requests: dict[str, RequestState] = {}
        self._families = Families(k_max, settings.acceptance)
        self._cost_model = CostModel.new(settings.cost)
        self._cost = self._cost_model.cost(settings.cost)
        self._decisions = {reason: [Decision(k, reason) for k in range(k_max + 1)] for reason in Reason}
        self._least_gain = log1p(settings.auto.min_gain)
        self._share_keep = exp(-1 / settings.auto.share_memory_steps)

        exploration = settings.exploration
        self._step = 0
        self._search = Search.none()
        self._allowance = Allowance(settings.cost.step_s)
        # Due at once: the prior of the costs is the least that is known of them.
        self._plain = Backoff(
            exploration.plain_interval_steps,
            exploration.max_plain_interval_steps,
            exploration.plain_interval_steps,
            due=0,
        )
        self._hopeless_due = 0
        self._cost_due = 0
        self._asked_tokens = self._drafted_tokens = 0.0
        self._share = 1.0  # of the asked draft tokens, those that come
        self._asked_lately = deque([0] * _DRAFT_DELAY)
        self._probe_count = self._plain_count = 0

    def add(self, request_id: str, spec: SpecParams, category: str, *, seeded: bool = False) -> None:
        """Begin a request; forget an earlier one of the same id.

        Args:
            request_id: names it in `decide` and `observe`.
            spec: its resolved parameters.
            category: of its prompt; requests of one category are expected to be drafted alike.
            seeded: whether it is sampled with a seed. Nothing is drafted for it then, whatever `spec` says.
        """
        step, exploration = self._step, self._settings.exploration
        family = self._families.get(category)
        evidence = no_evidence(step)
        belief = self._estimator.belief(evidence, family.profile, step)
        k = 0 if seeded else min(spec.k, self._k_max) if isinstance(spec.k, int) else None
        tau = spec.tau or 0.0
        floor = min(1.0, tau + self._settings.tau.margin) if tau and k is None else 0.0
        self._requests[request_id] = RequestState(
            id=request_id,
            k=k,
            why_fixed=Reason.SEEDED if seeded else Reason.ASKED,
            tau=tau,
            tau_state=TauState.new(step, exploration) if tau else None,
            floor=floor,
            family=family,
            evidence=evidence,
            belief=belief,
            curve=family.curve(belief.level, floor, self._share),
            backoff=Backoff.starting(step, exploration.interval_steps, exploration.max_interval_steps),
        )

    def remove(self, request_id: str) -> None:
        """A request has ended; unknown ones are no error."""
        self._requests.pop(request_id, None)

    def decide(self, decoding: Sequence[str], prefill_tokens: int) -> dict[str, Decision]:
        """How many draft tokens each of these requests shall have verified in its next step.

        Args:
            decoding: ids of the requests that will decode in that step; those that were not added get no decision.
            prefill_tokens: prompt tokens in that same step, as far as known.
        """
        requests = self._requests
        known = [requests[key] for key in decoding if key in requests]
        if not known:
            return {}
        self._step = step = self._step + 1
        self._share = min(1.0, (self._drafted_tokens + _SHARE_PRIOR) / (self._asked_tokens + _SHARE_PRIOR))
        batch = sort_batch(known, prefill_tokens, self._cost, self._share)
        best, self._search = self._search.next(batch.allocator, len(batch.autos), step, self._settings.auto)
        none = batch.allocator.plain()
        if best.score - none.score < batch.size * self._least_gain:
            best = none
        plain = self._is_plain(best, none)
        decided: dict[str, Decision] = {}
        idle = self._write(batch, best, Reason.PLAIN if plain else Reason.AUTO, decided)
        taken = none if plain else best
        if not plain:
            stopped = [request for request in batch.stopped if _tau_due(request) <= step]
            for due, settings in ((stopped, self._settings.tau), (idle, self._settings.exploration)):
                if due:
                    taken = self._probe(due, min(settings.probe_tokens, self._k_max), taken, batch.size, decided)
        self._allowance = self._allowance.earned(taken.seconds, self._settings.exploration)
        self._asked_lately.append(sum([decision.k for decision in decided.values()]))
        self._asked_tokens = self._asked_tokens * self._share_keep + self._asked_lately.popleft()
        return decided

    def observe(self, result: StepResult) -> None:
        """What a step turned out to be. Requests that have been removed since are skipped.

        Counts that cannot be are taken as the nearest that can (`possible_counts`).
        """
        touched: list[FamilyState] = []
        total = 0
        for request_id, counts in result.requests.items():
            drafted, accepted = possible_counts(*counts, self._k_max)
            if not drafted:
                continue
            total += drafted
            request = self._requests.get(request_id)
            if request is not None:
                if request.family.counts is None:
                    request.family.counts = StepCounts(self._k_max)
                    touched.append(request.family)
                self._learn(request, request.family.counts, drafted, accepted)
        for family in touched:
            family.learn(self._settings.acceptance)
        self._drafted_tokens = self._drafted_tokens * self._share_keep + total
        if result.seconds is not None:
            self._time(StepTime(result.seconds, result.batched_tokens, len(result.requests), result.depth))

    def snapshot(self) -> Snapshot:
        """What is known now, for metrics."""
        cost, settings = self._cost, self._settings.acceptance
        return Snapshot(
            steps=self._step,
            requests=len(self._requests),
            probes=self._probe_count,
            plain_steps=self._plain_count,
            draft_share=self._share,
            families={
                name: FamilySnapshot(
                    drafted=family.estimate.total_drafted,
                    accepted=family.estimate.total_accepted,
                    acceptance=family.estimate.acceptance(settings),
                    quickness=family.profile.quickness,
                )
                for name, family in self._families.by_name.items()
            },
            cost=CostSnapshot(
                verify_s={round(knot): seconds for knot, seconds in zip(cost.knots, cost.at_knot_s, strict=True)},
                draft_s=cost.draft_s,
                draft_request_s=cost.draft_request_s,
                scatter=self._cost_model.scatter,
            ),
        )

    def _is_plain(self, best: Allocation, none: Allocation) -> bool:
        """Whether this step shall go without drafts, to measure what drafts cost. Charges the loss."""
        if not best.depth:
            # Plain by itself.
            self._plain = self._plain.looked(self._step)
            return False
        if none.depth or self._plain.due > self._step:
            return False
        lost_s = none.output / none.rate - none.output / best.rate
        if lost_s > self._allowance.seconds:
            return False
        self._allowance = self._allowance.spent(lost_s)
        self._plain = self._plain.failed(self._step)
        self._plain_count += 1
        return True

    def _write(
        self, batch: Batch, best: Allocation, reason: Reason, decided: dict[str, Decision]
    ) -> list[RequestState]:
        """Write down what each request gets; returns the idle ones that are due for a probe."""
        step, refresh_steps = self._step, self._settings.auto.refresh_steps
        stopped = self._decisions[Reason.TAU_STOPPED][0]
        for request in batch.stopped:
            decided[request.id] = stopped
        for request in batch.asked:
            decided[request.id] = self._decisions[request.why_fixed][request.k or 0]
        off, given = self._decisions[Reason.AUTO_OFF][0], self._decisions[reason]
        due = []
        for request, k in depths_of(batch, best):
            if k:
                request.idle = False
                decided[request.id] = given[0] if reason is Reason.PLAIN else given[k]
                continue
            decided[request.id] = off
            if not request.idle:
                request.idle, request.probing = True, False
                request.refresh = step + refresh_steps
                request.backoff = request.backoff.succeeded(step)
                continue
            if request.refresh <= step:
                # Its quick estimate fades and its family learns; the next step decides with that.
                request.refresh = step + refresh_steps
                self._believe(request)
            if request.backoff.due <= step:
                due.append(request)
        return due

    def _probe(
        self, due: list[RequestState], tokens: int, taken: Allocation, size: int, decided: dict[str, Decision]
    ) -> Allocation:
        """Probe as many of the requests as may be, those that waited longest first; the allocation with them."""
        allowed_s = self._allowance.seconds
        probes = affordable_probes(len(due), tokens, taken, size, self._cost, allowed_s)
        if not probes.requests and tokens > 1:
            # With a costly draft the allowance may never cover as many tokens.
            probes = affordable_probes(len(due), 1, taken, size, self._cost, allowed_s)
        if not probes.requests:
            return taken
        # Requests that tau stopped had asked for drafts, whatever these cost.
        by_tau = due[0].stopped
        if not by_tau and not hopeful(probes, self._settings.exploration.hope, taken.rate):
            # Unless for once: what makes it hopeless may be a wrong idea of the costs.
            if self._step < self._hopeless_due:
                return taken
            self._hopeless_due = self._step + self._settings.exploration.max_plain_interval_steps
        self._allowance = self._allowance.spent(probes.lost_s)
        self._probe_count += probes.requests
        if probes.requests < len(due):
            due.sort(key=_tau_due if by_tau else _probe_due)
        for request in due[: probes.requests]:
            if by_tau and request.tau_state is not None:
                request.tau_state = request.tau_state.probed(self._step)
            else:
                request.backoff = request.backoff.looked(self._step)
                request.probing = True
            k = probes.tokens if request.k is None else min(probes.tokens, request.k)
            decided[request.id] = self._decisions[Reason.PROBE][k]
        return taken._replace(
            depth=max(taken.depth, probes.tokens),
            tokens=taken.tokens + probes.requests * probes.tokens,
            seconds=taken.seconds + probes.lost_s,
        )

    def _learn(self, request: RequestState, counts: StepCounts, drafted: int, accepted: int) -> None:
        """One request's outcome, of at least one draft token: for its family, its belief, its tau and its probe."""
        step = self._step
        # Where the text has moved on since the two estimates were made, comparing them teaches nothing.
        fresh = request.evidence.step >= step - 2
        counts.add(drafted, accepted, request.belief.steady, request.belief.quick if fresh else None)
        request.evidence = self._estimator.after(request.evidence, request.family.profile, drafted, accepted, step)
        self._believe(request)
        if request.tau_state is not None:
            request.tau_state = request.tau_state.after(request.tau, drafted, accepted, step, self._settings.tau)
        if request.probing:
            request.probing = False
            request.backoff = request.backoff.succeeded(step) if accepted else request.backoff.failed(step)

    def _time(self, seen: StepTime) -> None:
        """One step's time. The curve is laid anew for news: another size of step, or some more steps."""
        before = self._cost_model
        self._cost_model = model = before.after(seen, self._cost, self._settings.cost)
        if len(model.cells) > len(before.cells) or model.steps >= self._cost_due:
            self._cost = model.cost(self._settings.cost)
            self._cost_due = model.steps + min(_MOST_STEPS_A_CURVE, 1 + model.steps // 50)

    def _believe(self, request: RequestState) -> None:
        """Form the belief again: after new evidence, time, or news from the family."""
        family = request.family
        request.belief = belief = self._estimator.belief(request.evidence, family.profile, self._step)
        request.curve = family.curve(belief.level, request.floor, self._share)


def possible_counts(drafted: int, accepted: int, k_max: int) -> tuple[int, int]:
    """Drafted and accepted tokens with 0 <= accepted <= drafted <= k_max: these, or the nearest that can be."""
    drafted = min(k_max, max(0, drafted))
    return drafted, min(drafted, max(0, accepted))


def _tau_due(request: RequestState) -> int:
    """Step from which on a request that is stopped by tau may be probed."""
    return request.tau_state.backoff.due if request.tau_state is not None else 0


def _probe_due(request: RequestState) -> int:
    """Step from which on an idle request may be probed."""
    return request.backoff.due
