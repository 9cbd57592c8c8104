"""The controller that the engine's scheduler asks at every step: how many draft tokens for which request, and why."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from math import exp, log1p
from typing import Final, NamedTuple

from router.observation import NOTHING_LEARNED, Learned
from router.spec_params import SpecParams
from serve_app.speculation.acceptance import CategoryState, Evidence, StepCounts
from serve_app.speculation.allocation import Allocation, Search
from serve_app.speculation.batch import Batch, Decision, Reason, RequestState, depths_of, sort_batch
from serve_app.speculation.cost import STEP_S, CostModel, StepTime
from serve_app.speculation.exploration import Allowance, Backoff, affordable_probes, hopeful
from serve_app.speculation.settings import SpeculationSettings
from serve_app.speculation.tau import MARGIN, PROBE_TOKENS, TauState

IDLE_PROBE_TOKENS: Final = 1
"""Draft tokens of a probe of an idle `auto` request."""
_REFRESH_STEPS: Final = 8
"""Steps after which an idle request's belief is formed again: its quick estimate fades and its category learns."""
_FIRST_PLAIN_STEPS: Final = 8
"""Steps between the first two steps without drafts that measure what drafts cost."""
_MOST_PLAIN_STEPS: Final = 512
"""Most steps between such plain steps (they back off, doubling each time)."""
_SHARE_KEEP: Final = exp(-1 / 100)
"""What a step leaves of the measured share of requested drafts that come: older ones fade by e in 100 steps."""
_DRAFT_DELAY: Final = 4
"""Steps until the drafts requested now may have been observed. Rather too many: while more and more are requested,
drafts then seem to come more often than they do and the step to be fuller than it is, which is the harmless mistake."""
_MOST_STEPS_A_CURVE: Final = 8
"""Most steps for which a curve of step times is used; fewer while it is still being learned."""
_SHARE_PRIOR: Final = 5.0
"""Draft tokens that are taken to have come as requested, before any were requested."""


class StepResult(NamedTuple):
    """What was measured of an engine step."""

    step_s: float | None
    """Time of the whole step, s; None where it was not measured."""
    batched_tokens: int
    """All tokens of the step: prefill, decode and verified draft tokens."""
    depth: int
    """Draft iterations of the proposer in the time measured. n-gram drafts of an entry with two proposers count none.
    """
    requests: Mapping[str, tuple[int, int]]
    """Of each request that decoded or ended its prefill: drafted (verified) tokens, and how many of them were accepted.
    """
    decoding: int
    """Requests that decoded."""
    prefill: bool
    """Whether prompt tokens were processed in the step."""
    ngram: frozenset[str] = frozenset()
    """Ids of those requests whose verified drafts came from n-gram lookup beside an own draft."""
    verify_s: float | None = None
    """Time of the forward pass, s, where the worker measured it apart from drafting."""
    draft_s: float | None = None
    """Time of drafting, s, where the worker measured it apart."""


class DepthController:
    """Holds the state of requests, categories and costs; the formulas are in the modules that it calls.

    Not thread-safe: the scheduler calls it from one thread. Decisions may be a step or two ahead of observations, as
    in vLLM's asynchronous scheduling.

    Its exploration is bounded. Probes and plain steps together take at most `exploration_share` of the predicted engine
    time (and `SAVED_STEPS` steps once), and a request is probed at most once in `FIRST_INTERVAL_STEPS` steps.

    Args:
        k_max: most draft tokens of a request in a step.
        settings: what the operator set.
    """

    def __init__(self, k_max: int, settings: SpeculationSettings) -> None:
        if k_max < 1:
            raise ValueError(f"k_max must be at least 1, got {k_max}")
        self._k_max = k_max
        self._exploration_share = settings.exploration_share
        self._least_gain = log1p(settings.min_gain)
        self._requests: dict[str, RequestState] = {}
        self._categories: dict[str, CategoryState] = {}
        self._cost_model = CostModel.new()
        self._cost = self._cost_model.cost()
        self._decisions = {reason: [Decision(k, reason) for k in range(k_max + 1)] for reason in Reason}
        self._step = 0
        self._search = Search.none()
        self._allowance = Allowance(STEP_S)
        # Due at once: the prior of the costs is the least certain thing.
        self._plain = Backoff(_FIRST_PLAIN_STEPS, _MOST_PLAIN_STEPS, _FIRST_PLAIN_STEPS, due=0)
        self._hopeless_due = 0
        self._cost_due = 0
        self._requested_tokens = self._drafted_tokens = 0.0
        self._share = 1.0  # of the requested draft tokens, those that come
        self._requested_lately = deque([0] * _DRAFT_DELAY)

    def add(self, request_id: str, spec: SpecParams, category: str, *, seeded: bool = False) -> None:
        """Begin a request; forget an earlier one of the same id.

        Args:
            request_id: names it in `decide` and `observe`.
            spec: its resolved parameters.
            category: of its prompt; requests of one category are expected to be drafted alike.
            seeded: whether it is sampled with a seed. Nothing is drafted for it then, whatever `spec` says.
        """
        step = self._step
        if category not in self._categories:
            self._categories[category] = CategoryState(category, self._k_max)
        state, evidence = self._categories[category], Evidence(step)
        belief = evidence.belief(state.profile, step)
        k = 0 if seeded else min(spec.k, self._k_max) if isinstance(spec.k, int) else None
        tau = 0.0 if spec.tau is None or spec.tau == "auto" else spec.tau
        floor = min(1.0, tau + MARGIN) if tau and k is None else 0.0
        self._requests[request_id] = RequestState(
            id=request_id,
            k=k,
            why_fixed=Reason.SEEDED if seeded else Reason.ASKED,
            tau=tau,
            tau_state=TauState.new(step) if tau else None,
            floor=floor,
            category=state,
            evidence=evidence,
            belief=belief,
            curve=state.curve(belief.level, floor, self._share),
            backoff=Backoff.starting(step),
        )

    def remove(self, request_id: str) -> None:
        """Forget a request that has ended; unknown ones are no error."""
        self._requests.pop(request_id, None)

    def tau(self, request_id: str) -> float | None:
        """Return the acceptance rate (0-1) below which this request stops drafting now; None: there is none."""
        request = self._requests.get(request_id)
        return None if request is None or request.tau_state is None else request.tau

    def learned(self) -> Learned:
        """Return what was learned about when drafts pay."""
        return NOTHING_LEARNED

    def decide(self, decoding: Sequence[str], prefill_tokens: int) -> dict[str, Decision]:
        """Return how many draft tokens to verify for each of these requests in its next step.

        Args:
            decoding: ids of the requests that will decode in that step; those that were not added get no decision.
            prefill_tokens: prompt tokens in that same step, as far as known.
        """
        requests = self._requests
        known = [requests[key] for key in decoding if key in requests]
        if not known:
            return {}
        self._step = step = self._step + 1
        self._share = min(1.0, (self._drafted_tokens + _SHARE_PRIOR) / (self._requested_tokens + _SHARE_PRIOR))
        batch = sort_batch(known, prefill_tokens, self._cost, self._share)
        best, self._search = self._search.next(batch.allocator, len(batch.autos), step)
        none = batch.allocator.plain()
        if best.score - none.score < batch.size * self._least_gain:
            best = none
        plain = self._is_plain(best, none)
        decided: dict[str, Decision] = {}
        idle = self._write(batch, best, Reason.PLAIN if plain else Reason.AUTO, decided)
        taken = none if plain else best
        if not plain:
            stopped = [request for request in batch.stopped if _tau_due(request) <= step]
            for due, tokens in ((stopped, PROBE_TOKENS), (idle, IDLE_PROBE_TOKENS)):
                if due:
                    taken = self._probe(due, min(tokens, self._k_max), taken, batch.size, decided)
        self._allowance = self._allowance.earned(taken.seconds, self._exploration_share)
        self._requested_lately.append(sum([decision.k for decision in decided.values()]))
        self._requested_tokens = self._requested_tokens * _SHARE_KEEP + self._requested_lately.popleft()
        return decided

    def observe(self, result: StepResult) -> None:
        """Learn from a step. Requests that have been removed since are skipped.

        Impossible counts are taken as the nearest possible ones (`possible_counts`).
        """
        touched: list[CategoryState] = []
        total = 0
        for request_id, counts in result.requests.items():
            drafted, accepted = possible_counts(*counts, self._k_max)
            if not drafted:
                continue
            total += drafted
            request = self._requests.get(request_id)
            if request is not None:
                if request.category.counts is None:
                    request.category.counts = StepCounts(self._k_max)
                    touched.append(request.category)
                self._learn(request, request.category.counts, drafted, accepted)
        for category in touched:
            category.learn()
        self._drafted_tokens = self._drafted_tokens * _SHARE_KEEP + total
        if result.step_s is not None:
            self._time(StepTime(result.step_s, result.batched_tokens, len(result.requests), result.depth))

    def _is_plain(self, best: Allocation, none: Allocation) -> bool:
        """Return whether this step goes without drafts, to measure what drafts cost. Charges the loss."""
        if not best.depth:
            # Plain by itself.
            self._plain = self._plain.probed(self._step)
            return False
        if none.depth or self._plain.due > self._step:
            return False
        lost_s = none.output / none.rate - none.output / best.rate
        if lost_s > self._allowance.seconds:
            return False
        self._allowance = self._allowance.spent(lost_s)
        self._plain = self._plain.failed(self._step)
        return True

    def _write(
        self, batch: Batch, best: Allocation, reason: Reason, decided: dict[str, Decision]
    ) -> list[RequestState]:
        """Write down what each request gets; return the idle ones that are due for a probe."""
        step = self._step
        stopped = self._decisions[Reason.TAU_STOPPED][0]
        for request in batch.stopped:
            decided[request.id] = stopped
        for request in batch.fixed:
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
                request.refresh = step + _REFRESH_STEPS
                request.backoff = request.backoff.succeeded(step)
                continue
            if request.refresh <= step:
                request.refresh = step + _REFRESH_STEPS
                self._believe(request)
            if request.backoff.due <= step:
                due.append(request)
        return due

    def _probe(
        self, due: list[RequestState], tokens: int, taken: Allocation, size: int, decided: dict[str, Decision]
    ) -> Allocation:
        """Probe as many of the requests as the allowance covers, those that waited longest first; return the allocation
        with them."""
        allowed_s = self._allowance.seconds
        probes = affordable_probes(len(due), tokens, taken, size, self._cost, allowed_s)
        if not probes.requests and tokens > 1:
            # With a costly draft the allowance may never cover that many tokens.
            probes = affordable_probes(len(due), 1, taken, size, self._cost, allowed_s)
        if not probes.requests:
            return taken
        # Requests that tau stopped want drafts, whatever these cost.
        by_tau = due[0].stopped
        if not by_tau and not hopeful(probes, taken.rate):
            # Now and then all the same: a wrong idea of the costs may make it look hopeless.
            if self._step < self._hopeless_due:
                return taken
            self._hopeless_due = self._step + _MOST_PLAIN_STEPS
        self._allowance = self._allowance.spent(probes.lost_s)
        if probes.requests < len(due):
            due.sort(key=_tau_due if by_tau else _probe_due)
        for request in due[: probes.requests]:
            if by_tau and request.tau_state is not None:
                request.tau_state = request.tau_state.probed(self._step)
            else:
                request.backoff = request.backoff.probed(self._step)
                request.probing = True
            k = probes.tokens if request.k is None else min(probes.tokens, request.k)
            decided[request.id] = self._decisions[Reason.PROBE][k]
        return taken._replace(
            depth=max(taken.depth, probes.tokens),
            tokens=taken.tokens + probes.requests * probes.tokens,
            seconds=taken.seconds + probes.lost_s,
        )

    def _learn(self, request: RequestState, counts: StepCounts, drafted: int, accepted: int) -> None:
        """Learn one request's outcome, of at least one draft token: for its category, belief, tau and probe."""
        step = self._step
        # Where the text has moved on since the two estimates were made, comparing them teaches nothing.
        fresh = request.evidence.step >= step - 2
        counts.add(drafted, accepted, request.belief.steady, request.belief.quick if fresh else None)
        request.evidence = request.evidence.after(request.category.profile, drafted, accepted, step)
        self._believe(request)
        if request.tau_state is not None:
            request.tau_state = request.tau_state.after(request.tau, drafted, accepted, step)
        if request.probing:
            request.probing = False
            request.backoff = request.backoff.succeeded(step) if accepted else request.backoff.failed(step)

    def _time(self, seen: StepTime) -> None:
        """Learn one step's time. Lay the curve anew for another size of step, or after some more steps."""
        before = self._cost_model
        self._cost_model = model = before.after(seen, self._cost)
        if len(model.cells) > len(before.cells) or model.steps >= self._cost_due:
            self._cost = model.cost()
            self._cost_due = model.steps + min(_MOST_STEPS_A_CURVE, 1 + model.steps // 50)

    def _believe(self, request: RequestState) -> None:
        """Form the belief again: after new evidence, time, or a new profile of the category."""
        request.belief = belief = request.evidence.belief(request.category.profile, self._step)
        request.curve = request.category.curve(belief.level, request.floor, self._share)


def possible_counts(drafted: int, accepted: int, k_max: int) -> tuple[int, int]:
    """Return these counts, or the nearest ones with 0 <= accepted <= drafted <= k_max."""
    drafted = min(k_max, max(0, drafted))
    return drafted, min(drafted, max(0, accepted))


def _tau_due(request: RequestState) -> int:
    """Return the step from which on a request that tau stopped may be probed."""
    return request.tau_state.backoff.due if request.tau_state is not None else 0


def _probe_due(request: RequestState) -> int:
    """Return the step from which on an idle request may be probed."""
    return request.backoff.due
