"""The controller that the engine's scheduler asks at every step: how many draft tokens for which request, and why."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from math import exp, log, log1p
from typing import Final, NamedTuple

from router.observation import Learned
from router.registry import Drafts
from router.spec_params import SpecParams
from serve_app.speculation.acceptance import CategoryState, Evidence, StepCounts
from serve_app.speculation.allocation import Allocation, Search
from serve_app.speculation.batch import Batch, Decision, Reason, RequestState, depths_of, sort_batch
from serve_app.speculation.cost import STEP_S, CostTable, StepTime
from serve_app.speculation.cost_curve import StepCost
from serve_app.speculation.drafters import (
    KNOWN_TRIALS,
    REVIEW_STEPS,
    SWITCH_GAIN,
    TRIAL_STEPS,
    Way,
    is_worth_a_trial,
    worth,
)
from serve_app.speculation.engine_facts import EngineFacts
from serve_app.speculation.exploration import Allowance, Backoff, Probes, affordable_probes, hopeful
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
    uniform: int | None = None
    """Draft tokens that the step was scheduled to verify for each request, invalid ones included: vLLM pads these, so
    they count for the graph. None: not the same for all, or prompt tokens in it."""


_MOST_COME: Final = 0.98
"""Where a smaller share of the requested drafts comes, requests with one depth do not verify the same number."""
_TAU_STEPS: Final = 32
"""Steps after which the break-even acceptance is computed again."""
_NEAR: Final = 0.06
"""What drafting all alike may seem to lose, of a step, and still be tried as far as the allowance goes."""
MOST_SAVED: Final = 0.75
"""Of a step's time, what a full graph saves at most: as far as is hoped for before any ran."""
ADVICE_STEPS: Final = 32
"""Steps after which it is judged again whether an engine without speculation would be faster."""
ADVICE_WINDOWS: Final = 2
"""Judgements in a row that must speak for such an engine before it is advised."""
_MOST_SEEN: Final = 256
"""Latest steps by which it is judged: text changes."""
WORTH: Final = 0.97
"""It is advised where it would take less than this part of the time."""
WITHDRAWN: Final = 1.0
"""The advice is withdrawn where it would take this part of the time or more."""
_PLAIN_PAYS: Final = 1.4
"""Time of steps with drafts that a plain step must have saved up, however much it loses: less than `SAVED_STEPS`, or a
graph that only drafts have would never be compared with no drafts."""


class SeenStep(NamedTuple):
    """A step, as far as the advice needs it."""

    decoding: int
    emitted: int
    prefill_tokens: int
    tokens: int
    depth: int
    captured: bool


class DepthController:
    """Holds the state of requests, categories and costs; the formulas are in the modules that it calls.

    Not thread-safe: the scheduler calls it from one thread. Decisions may be a step or two ahead of observations, as
    in vLLM's asynchronous scheduling.

    Its exploration is bounded. Probes and plain steps together take at most `exploration_share` of the predicted engine
    time (and once `SAVED_STEPS` steps and what one plain step loses), and a request is probed at most once in
    `FIRST_INTERVAL_STEPS` steps.

    Args:
        k_max: most draft tokens of a request in a step.
        settings: what the operator set.
        facts: of the engine; None: one without graphs.
    """

    def __init__(self, k_max: int, settings: SpeculationSettings, facts: EngineFacts | None = None) -> None:
        if k_max < 1:
            raise ValueError(f"k_max must be at least 1, got {k_max}")
        self._k_max = k_max
        self._facts = facts = facts or EngineFacts()
        self._uniform = facts.graph in ("k_max", "per_k")
        self._apart = False
        self._exploration_share = settings.exploration_share
        self._least_gain = log1p(settings.min_gain)
        self._requests: dict[str, RequestState] = {}
        self._categories: dict[tuple[str, Drafts], CategoryState] = {}
        self._table = CostTable(facts, k_max)
        self._costs = self._table.cost()
        self._decisions = {reason: [Decision(k, reason) for k in range(k_max + 1)] for reason in Reason}
        self._by_ngram = {reason: [Decision(k, reason, "ngram") for k in range(k_max + 1)] for reason in Reason}
        self._choosers: set[str] = set()  # requests that n-gram lookup drafts for, or may
        self._taus_due = 0
        self._step = 0
        self._seen: deque[SeenStep] = deque(maxlen=_MOST_SEEN)
        self._observed = 0
        self._advice: str | None = None
        self._advised = 0  # judgements in a row for an engine without speculation
        self._both_ways = False
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
        k = 0 if seeded else min(spec.k, self._k_max) if isinstance(spec.k, int) else None
        tau = None if spec.tau == "auto" else spec.tau or 0.0
        floor = min(1.0, tau + MARGIN) if tau and k is None else 0.0
        self._choosers.discard(request_id)
        self._both_ways = self._both_ways or spec.drafts is not None
        if spec.drafts in ("ngram", "auto"):
            self._choosers.add(request_id)
        way, other = self._way(category, "own", floor), None
        if spec.drafts == "ngram":
            way = self._way(category, "ngram", floor)
        elif spec.drafts == "auto" and k != 0:
            other = self._way(category, "ngram", floor)
        self._requests[request_id] = RequestState(
            id=request_id,
            k=k,
            why_fixed=Reason.SEEDED if seeded else Reason.ASKED,
            tau=tau,
            tau_state=TauState.new(step) if tau != 0.0 else None,
            floor=floor,
            category=way.category,
            evidence=way.evidence,
            belief=way.belief,
            curve=way.curve,
            backoff=Backoff.starting(step),
            drafts=way.drafts,
            other=other,
            review=step,
        )
        if not way.category.evidence.trials[0]:
            # The first request of a category is probed at once.
            request = self._requests[request_id]
            request.backoff = request.backoff._replace(due=step)

    def _way(self, category: str, drafts: Drafts, floor: float) -> Way:
        """Return what is known of a way to draft for a request that begins."""
        state = self._categories.get((category, drafts))
        if state is None:
            state = self._categories[category, drafts] = CategoryState(category, self._k_max)
        evidence = Evidence(self._step)
        belief = evidence.belief(state.profile, self._step)
        return Way(drafts, state, evidence, belief, state.curve(belief.level, floor, self._share))

    def remove(self, request_id: str) -> None:
        """Forget a request that has ended; unknown ones are no error."""
        self._requests.pop(request_id, None)
        self._choosers.discard(request_id)

    def tau(self, request_id: str) -> float | None:
        """Return the acceptance rate (0-1) below which this request stops drafting now; None: there is none."""
        request = self._requests.get(request_id)
        if request is None or request.tau_state is None:
            return None
        return request.category.tau if request.tau is None else request.tau

    def learned(self) -> Learned:
        """Return what was learned about when drafts pay."""
        taus: dict[str, float] = {}
        for (category, _), state in self._categories.items():
            if state.tau is not None and state.evidence.trials[0] >= KNOWN_TRIALS:
                taus[category] = min(state.tau, taus.get(category, 1.0))
        advice = self.advice
        return Learned(taus, "no_drafts", advice) if advice else Learned(taus)

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
        mixed = self._mixed_cost
        if step >= self._taus_due:
            self._taus_due = step + _TAU_STEPS
            self._learn_taus(len(known))
        if self._choosers:
            for request in known:
                if request.other is not None and request.review <= step:
                    self._review(request, len(known))
            if all(request.drafts == "ngram" for request in known):
                # Lookups cost no draft iterations.
                mixed = mixed._replace(drafts_s=(0.0,) * (self._k_max + 1))
        batch = sort_batch(known, prefill_tokens, mixed, self._share)
        best, self._search = self._search.next(batch.allocator, len(batch.autos), step)
        none = batch.allocator.plain()
        uniforms = self._uniforms(batch) if self._uniform else []
        if uniforms:
            none = uniforms[0]
            best = max([*uniforms, self._corrected(best, batch)], key=_score)
        if best.score - none.score < batch.size * self._least_gain:
            best = none
        tried = self._graph_try(uniforms, best, batch.size)
        if tried is None and uniforms and not best.depth:
            tried = self._near_try(uniforms, best)
        if tried is not None:
            best = tried
        plain = tried is None and self._is_plain(best, none)
        decided: dict[str, Decision] = {}
        idle = self._write(batch, best, Reason.PLAIN if plain else Reason.AUTO, decided)
        taken = none if plain else best
        if not plain:
            stopped = [request for request in batch.stopped if _tau_due(request) <= step]
            for due, tokens in ((stopped, PROBE_TOKENS), (idle, IDLE_PROBE_TOKENS)):
                if due:
                    taken = self._probe(batch, uniforms, due, min(tokens, self._k_max), taken, decided)
        if self._choosers:
            for request in known:
                if request.drafts == "ngram":
                    decision = decided[request.id]
                    request.asked = decision.k
                    decided[request.id] = self._by_ngram[decision.reason][decision.k]
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
            request = self._requests.get(request_id)
            looked_up = request_id in result.ngram
            if not drafted:
                if not (looked_up and request is not None and request.asked):
                    continue
                drafted = 1  # a lookup that found nothing is as good as a rejected draft
            total += drafted
            if request is not None and (request.drafts == "ngram") == looked_up:
                if request.category.counts is None:
                    request.category.counts = StepCounts(self._k_max)
                    touched.append(request.category)
                self._learn(request, request.category.counts, drafted, accepted)
        for category in touched:
            category.learn()
        self._drafted_tokens = self._drafted_tokens * _SHARE_KEEP + total
        self._time(result)
        self._seen.append(self._seen_step(result, total))
        self._observed += 1
        if self._observed % ADVICE_STEPS == 0:
            self._advise()

    def _review(self, request: RequestState, size: int) -> None:
        """Decide who drafts for a request: the way that is expected to be faster, or for a few steps the other one."""
        other, step = request.other, self._step
        if other is None:
            return
        request.review = step + REVIEW_STEPS
        other.belief = other.evidence.belief(other.category.profile, step)
        other.curve = other.category.curve(other.belief.level, request.floor, self._share)
        now = worth(request.drafts, request.curve, self._costs.in_graph, size)
        then = worth(other.drafts, other.curve, self._costs.in_graph, size)
        if then > now + SWITCH_GAIN:
            if not request.trying:
                request.trials = request.trials.succeeded(step)
            request.trying = False
        elif request.trials.due <= step and is_worth_a_trial(other, now, then):
            request.trials = request.trials.failed(step)
            request.trying = True
            request.review = step + TRIAL_STEPS
        else:
            request.trying = False
            return
        request.other = Way(request.drafts, request.category, request.evidence, request.belief, request.curve)
        request.drafts, request.category, request.evidence = other.drafts, other.category, other.evidence
        request.belief, request.curve = other.belief, other.curve

    def _learn_taus(self, size: int) -> None:
        """Learn for each category the acceptance at which drafts neither gain nor lose time in a batch of that size.

        With K drafts a step yields 1 + K r tokens of acceptance r, and takes t(K): r = (t(K) / t(0) - 1) / K, at the K
        that suits the category best.
        """
        times = [
            self._seconds(size * (1 + k), k, self._facts.captured(k, size * (1 + k), self._k_max))
            for k in range(self._k_max + 1)
        ]
        for state in self._categories.values():
            output = state.curve(state.level, 0.0, self._share).output
            k = max(range(1, self._k_max + 1), key=lambda k: output[k] / times[k])
            state.tau = min(1.0, max(0.0, (times[k] / times[0] - 1) / k))

    def _seen_step(self, result: StepResult, drafted: int) -> SeenStep:
        accepted = sum([pair[1] for pair in result.requests.values()])
        return SeenStep(
            decoding=result.decoding,
            emitted=result.decoding + accepted,
            prefill_tokens=max(0, result.batched_tokens - result.decoding - drafted),
            tokens=result.batched_tokens,
            depth=result.depth,
            captured=self._is_captured(result),
        )

    @property
    def advice(self) -> str | None:
        """Why the engine should run without speculation; None: it should not, or too little is known."""
        return self._advice

    def _advise(self) -> None:
        """Judge by the latest steps whether the engine should run without speculation."""
        ratio = self._off_ratio()
        if ratio is None:
            self._advised = 0
            return
        self._advised = self._advised + 1 if ratio < WORTH else 0
        if ratio >= WITHDRAWN:
            self._advice = None
        elif self._advised >= ADVICE_WINDOWS:
            self._advice = f"lately an engine without speculation would have taken {ratio:.2f} of the time"

    def _off_ratio(self) -> float | None:
        """Return the part of the latest steps' time that an engine without speculation would have taken, with a
        standard error on top; None where the steps do not show it."""
        if self._facts.draft == "always" and not self._apart:
            return None
        ours_s = plain_s = off_s = 0.0
        iterations = 0 if self._apart else self._facts.iterations(0, self._k_max)
        for step in self._seen:
            ours_s += self._seconds(step.tokens, step.depth, step.captured)
            size = step.decoding
            if size:
                # Without speculation this step's tokens would have come in so many steps.
                steps = step.emitted / size
                captured = self._facts.captured(0, size, self._k_max)
                alone_s = self._seconds(size, 0, captured)
                plain_s += steps * alone_s
                off_s += steps * alone_s * self._table.error(captured, iterations, size)
                alone_s -= self._costs.in_graph.draft(0) + (0.0 if captured else self._costs.piecewise_s)
                off_s += steps * alone_s
            if step.prefill_tokens:
                # Prompts take the same time on both.
                more_s = self._costs.piecewise.verify(size + step.prefill_tokens)
                more_s -= self._costs.in_graph.verify(size) if size else 0.0
                off_s += more_s
                plain_s += more_s
        return off_s / min(ours_s, plain_s)

    def _near_try(self, uniforms: list[Allocation], none: Allocation) -> Allocation | None:
        """Return an allocation that is nearly as good as no drafts, if the allowance covers its loss: running it shows
        whether it is better."""
        near = max(uniforms[1:], key=_score, default=none)
        lost_s = _lost_s(near, none.rate)
        if not near.depth or lost_s > min(_NEAR * none.seconds, self._allowance.seconds):
            return None
        self._allowance = self._allowance.spent(lost_s)
        return near

    def _graph_try(self, uniforms: list[Allocation], best: Allocation, size: int) -> Allocation | None:
        """Return an allocation to find out what a graph saves, if none has run yet and it may pay."""
        if not uniforms or self._table.graph_is_known:
            return None
        least = self._costs.piecewise.at_knot_s[0]
        for each in uniforms:
            if not self._facts.captured(each.depth, each.tokens, self._k_max):
                continue
            hope_s = each.seconds - max(0.0, MOST_SAVED * least - (least - self._costs.in_graph.at_knot_s[0]))
            hoped = each.score + size * log(each.seconds / max(hope_s, 0.1 * each.seconds))
            lost_s = _lost_s(each, best.rate)
            if hoped > best.score and lost_s <= self._allowance.seconds:
                self._allowance = self._allowance.spent(lost_s)
                return each
        return None

    def _is_plain(self, best: Allocation, none: Allocation) -> bool:
        """Return whether this step goes without drafts, to measure what drafts cost. Charges the loss."""
        if not best.depth:
            # Plain by itself.
            self._plain = self._plain.probed(self._step)
            return False
        if none.depth or self._plain.due > self._step:
            return False
        iterations = 0 if self._apart else self._facts.iterations(0, self._k_max)
        if self._table.is_known(self._facts.captured(0, none.tokens, self._k_max), iterations, none.tokens):
            return False
        lost_s = none.output / none.rate - none.output / best.rate
        if self._allowance.seconds < min(lost_s, _PLAIN_PAYS * best.seconds):
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
        self,
        batch: Batch,
        uniforms: list[Allocation],
        due: list[RequestState],
        tokens: int,
        taken: Allocation,
        decided: dict[str, Decision],
    ) -> Allocation:
        """Probe as many of the requests as the allowance covers, those that waited longest first; return the allocation
        with them."""
        allowed_s = self._allowance.seconds
        size = batch.size
        probes = affordable_probes(len(due), tokens, taken, size, self._mixed_cost, allowed_s)
        if not probes.requests and tokens > 1:
            # With a costly draft the allowance may never cover that many tokens.
            probes = affordable_probes(len(due), 1, taken, size, self._mixed_cost, allowed_s)
        if len(uniforms) > 1 and not taken.depth:
            # In a graph it may be cheaper to probe all.
            alike = min(uniforms[1:], key=lambda each: _lost_s(each, taken.rate))
            all_s = max(0.0, _lost_s(alike, taken.rate))
            if all_s <= (probes.lost_s if probes.requests else allowed_s):
                probes = Probes(size, alike.depth, all_s)
                due = [request for group in batch.autos for request in group]
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
            request.tau_state = request.tau_state.after(request.tau_now, drafted, accepted, step)
        if request.probing:
            request.probing = False
            request.backoff = request.backoff.succeeded(step) if accepted else request.backoff.failed(step)

    def _time(self, result: StepResult) -> None:
        """Learn one step's time. Lay the curve anew for another size of step, or after some more steps."""
        iterations = self._facts.iterations(result.depth, self._k_max)
        seconds = result.step_s
        if result.verify_s is not None:
            # With two ways to draft, no iterations may also mean that the entry's own draft did not run.
            if result.draft_s is not None and (iterations or not self._both_ways):
                self._table.observe_draft(result.draft_s, iterations)
            self._apart = True
            seconds, iterations = result.verify_s, 0
        if seconds is None:
            return
        captured = self._is_captured(result)
        table = self._table
        new = table.observe(StepTime(seconds, result.batched_tokens, captured, iterations), self._costs)
        if new or table.steps >= self._cost_due:
            self._costs = table.cost()
            self._cost_due = table.steps + min(_MOST_STEPS_A_CURVE, 1 + table.steps // 50)

    def _is_captured(self, result: StepResult) -> bool:
        if self._facts.graph == "none" or result.prefill:
            return False
        return self._facts.captured(result.uniform, result.batched_tokens, self._k_max)

    @property
    def _mixed_cost(self) -> StepCost:
        return self._costs.of(self._facts.graph == "any")

    def _uniforms(self, batch: Batch) -> list[Allocation]:
        """Return the allocations of one number of draft tokens to all, from 0 up; none where some requests differ."""
        if batch.stopped or batch.fixed:
            return []
        most = min([group.most for group in batch.allocator.groups])
        # Where drafts often fail to come, requests do not verify the same number.
        alike = batch.size == 1 or self._share > _MOST_COME
        step_s = []
        for k in range(most + 1):
            tokens = batch.size * (1 + k)
            captured = (not k or alike) and self._facts.captured(k, tokens, self._k_max)
            step_s.append(self._seconds(tokens, k, captured))
        return batch.allocator.uniforms(step_s)

    def _corrected(self, allocation: Allocation, batch: Batch) -> Allocation:
        """Return the allocation with the time that such steps were measured to take."""
        seconds = self._seconds(allocation.tokens, allocation.depth, False)
        return allocation._replace(
            seconds=seconds,
            rate=allocation.output / seconds,
            score=allocation.score - batch.size * log(seconds / allocation.seconds),
        )

    def _seconds(self, tokens: float, depth: int, captured: bool) -> float:
        iterations = 0 if self._apart else self._facts.iterations(depth, self._k_max)
        return self._costs.step_s(tokens, depth, captured, iterations)

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


def _lost_s(allocation: Allocation, rate: float) -> float:
    """Return how much longer a step takes than its output would take at that rate of tokens/s, s."""
    return allocation.seconds - allocation.output / rate


def _score(allocation: Allocation) -> float:
    return allocation.score


def _probe_due(request: RequestState) -> int:
    """Return the step from which on an idle request may be probed."""
    return request.backoff.due
