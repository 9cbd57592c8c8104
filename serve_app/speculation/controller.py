"""The controller that the engine's scheduler asks at every step: how many draft tokens for which request, and why."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from math import exp, log
from typing import Final, NamedTuple

from router.observation import Learned
from router.registry import Drafts
from router.spec_params import SpecParams
from serve_app.speculation.acceptance import CategoryState
from serve_app.speculation.advice import Advisor, SeenStep
from serve_app.speculation.allocation import Allocation
from serve_app.speculation.batch import Batch, Decision, Reason, RequestState, sort_batch
from serve_app.speculation.cost import SHORTEST_S, STEP_S, CostTable, StepTime
from serve_app.speculation.drafters import KNOWN_TRIALS, Choice, Way
from serve_app.speculation.exploration import (
    Allowance,
    Backoff,
    Probes,
    affordable_probes,
    graph_trial,
    hopeful_trial,
    lost_s,
    near_trial,
)
from serve_app.speculation.settings import EngineFacts, SpeculationSettings
from serve_app.speculation.tau import MARGIN, PROBE_TOKENS, TauState, break_even
from sustainability.shares import StepParts

IDLE_PROBE_TOKENS: Final = 1
"""Draft tokens of a probe of an idle `auto` request."""
_REFRESH_STEPS: Final = 8
"""Steps after which an idle request's belief is formed again: its quick estimate fades and its category learns."""
_FIRST_PLAIN_STEPS: Final = 8
"""Steps between the first two steps without drafts that measure what drafts cost."""
_MOST_PLAIN_STEPS: Final = 512
"""Most steps between such plain steps (they back off, doubling each time)."""
_SEARCH_STEPS: Final = 32
"""Steps between searches at every depth; between them it climbs from the depth before."""
_SHARE_KEEP: Final = exp(-1 / 100)
"""What a step leaves of the measured share of requested drafts that come: older ones fade by e in 100 steps."""
_DRAFT_DELAY: Final = 4
"""Steps until the drafts requested now may have been observed. Rather too many: while more and more are requested,
drafts then seem to come more often than they do and the step to be fuller than it is, which is the harmless mistake."""
_SHARE_PRIOR: Final = 5.0
"""Draft tokens that are taken to have come as requested, before any were requested."""
_MOST_COME: Final = 0.98
"""Where a smaller share of the requested drafts comes, requests with one depth do not verify the same number."""
_TAU_STEPS: Final = 32
"""Steps after which the break-even acceptance is computed again."""


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
    """Time of the forward pass and of the device's wait for it, s, where the worker measured it apart from drafting."""
    draft_s: float | None = None
    """Time of drafting, s, where the worker measured it apart and the entry's own draft ran."""
    uniform: int | None = None
    """Draft tokens that the step was scheduled to verify for each request, invalid ones included: vLLM pads these, so
    they count for the graph. None: not the same for all, or prompt tokens in it."""


class DepthController:
    """Holds the state of requests, categories and costs; the formulas are in the modules that it calls.

    Not thread-safe: the scheduler calls it from one thread. Decisions may be a step or two ahead of observations, as
    in vLLM's asynchronous scheduling.

    Its exploration is bounded. Probes and plain steps together take at most `exploration_share` of the predicted engine
    time (and `SAVED_STEPS` steps once), and a request is probed at most once in `FIRST_INTERVAL_STEPS` steps.

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
        self._graph_if_alike = facts.graph in ("k_max", "per_k")
        self._exploration_share = settings.exploration_share
        self._step = 0
        self._requests: dict[str, RequestState] = {}
        self._choosers: set[str] = set()  # requests that n-gram lookup drafts for, or may
        self._categories: dict[tuple[str, Drafts], CategoryState] = {}
        self._table = CostTable(facts, k_max)
        self._costs = self._table.costs  # of the step that is decided
        self._advisor = Advisor()
        self._decisions = {reason: [Decision(k, reason) for k in range(k_max + 1)] for reason in Reason}
        self._by_ngram = {reason: [Decision(k, reason, "ngram") for k in range(k_max + 1)] for reason in Reason}
        self._depth = 0  # that the last search found
        self._allowance = Allowance(STEP_S)
        # Due at once: the prior of the costs is the least certain thing.
        self._plain = Backoff(_FIRST_PLAIN_STEPS, _MOST_PLAIN_STEPS, _FIRST_PLAIN_STEPS, due=0)
        self._taus_due = 0
        self._requested_tokens = self._drafted_tokens = 0.0
        self._requested_lately = deque([0] * _DRAFT_DELAY)
        self._decided: dict[str, Decision] = {}  # by the last `decide`, of requests that have not ended since
        self._share = 1.0  # of the requested draft tokens, those that come

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
        way = self._way(category, "ngram" if spec.drafts == "ngram" else "own", floor)
        chooses = spec.drafts == "auto" and k != 0
        self._choosers.discard(request_id)
        if spec.drafts == "ngram" or chooses:
            self._choosers.add(request_id)
        self._requests[request_id] = request = RequestState(
            id=request_id,
            k=k,
            why_fixed=Reason.SEEDED if seeded else Reason.ASKED,
            tau=tau,
            tau_state=TauState.new(step) if tau != 0.0 else None,
            floor=floor,
            way=way,
            choice=Choice(self._way(category, "ngram", floor), due=step) if chooses else None,
            backoff=Backoff.starting(step),
        )
        if not way.category.evidence.trials[0]:
            # The first request of a category is probed at once.
            request.backoff = request.backoff._replace(due=step)

    def _way(self, category: str, drafts: Drafts, floor: float) -> Way:
        """Return what is known of a way to draft for a request that begins."""
        state = self._categories.get((category, drafts))
        if state is None:
            state = self._categories[category, drafts] = CategoryState(category, self._k_max)
        return Way.new(drafts, state, self._step, floor, self._share)

    def remove(self, request_id: str) -> None:
        """Forget a request that has ended; unknown ones are no error."""
        self._requests.pop(request_id, None)
        self._choosers.discard(request_id)
        last = self._decided.pop(request_id, None)
        if last is not None:
            # Its last drafts never come: that it ended says nothing of how often drafts come.
            self._requested_lately[-1] -= last.k

    def tau(self, request_id: str) -> float | None:
        """Return the acceptance rate (0-1) below which this request stops drafting now; None: there is none."""
        request = self._requests.get(request_id)
        if request is None or request.tau_state is None:
            return None
        return request.way.category.tau if request.tau is None else request.tau

    def learned(self) -> Learned:
        """Return what was learned about when drafts pay."""
        taus: dict[str, float] = {}
        for (category, _), state in self._categories.items():
            if state.tau is not None and state.evidence.trials[0] >= KNOWN_TRIALS:
                taus[category] = min(state.tau, taus.get(category, 1.0))
        reason = self._advisor.reason
        return Learned(taus, "no_drafts", reason) if reason else Learned(taus)

    def decide(self, decoding: Sequence[str], prefill_tokens: int) -> dict[str, Decision]:
        """Return how many draft tokens to verify for each of these requests in its next step.

        Args:
            decoding: ids of the requests that will decode in that step; those that were not added get no decision.
            prefill_tokens: prompt tokens in that same step, as far as known.
        """
        requests = self._requests
        known = [request for key in decoding if (request := requests.get(key)) is not None]
        if not known:
            return {}
        self._step = step = self._step + 1
        self._share = min(1.0, (self._drafted_tokens + _SHARE_PRIOR) / (self._requested_tokens + _SHARE_PRIOR))
        if step >= self._taus_due:
            self._taus_due = step + _TAU_STEPS
            self._learn_taus(len(known))
        self._costs = self._table.costs
        if self._choosers:
            self._choose(known)
            if all(request.way.drafts == "ngram" for request in known):
                self._costs = self._table.costs.of_lookups()
        batch = sort_batch(known, prefill_tokens, self._costs.mixed, self._share)
        best = batch.allocator.best(None if step % _SEARCH_STEPS == 1 else self._depth)
        self._depth = best.iterations
        uniforms = self._uniforms(batch, prefill_tokens)
        none = uniforms[0] if uniforms and not uniforms[0].depth else batch.allocator.plain()
        if uniforms:
            if none is not uniforms[0]:
                none = self._corrected(none, batch)
            best = max([*uniforms, self._corrected(best, batch)], key=_score)
        if best.score <= none.score:
            best = none
        trial = self._trial(uniforms, best, batch.size)
        if trial is not None:
            best = trial
        plain = trial is None and self._is_plain(best, none)
        decided: dict[str, Decision] = {}
        reason = Reason.PLAIN if plain else Reason.TRIAL if trial is not None else Reason.AUTO
        idle = self._write(batch, best, reason, decided)
        taken = none if plain else best
        if not plain:
            stopped = [request for request in batch.stopped if request.probe_due <= step]
            for due, tokens in ((stopped, PROBE_TOKENS), (idle, IDLE_PROBE_TOKENS)):
                if due:
                    taken = self._probe(batch, uniforms, due, min(tokens, self._k_max), taken, decided)
        if self._choosers:
            for request in known:
                if request.way.drafts == "ngram":
                    decision = decided[request.id]
                    request.requested = decision.k
                    decided[request.id] = self._by_ngram[decision.reason][decision.k]
        self._allowance = self._allowance.earned(taken.seconds, self._exploration_share)
        self._decided = decided.copy()
        self._requested_lately.append(sum([decision.k for decision in decided.values()]))
        self._requested_tokens = self._requested_tokens * _SHARE_KEEP + self._requested_lately.popleft()
        return decided

    def observe(self, result: StepResult) -> None:
        """Learn from a step. Requests that have been removed since are skipped.

        Impossible counts are taken as the nearest possible ones (`possible_counts`).
        """
        total = emitted = 0
        requests, ngram, k_max, step, share = self._requests, result.ngram, self._k_max, self._step, self._share
        for request_id, (drafted, accepted) in result.requests.items():
            if not 0 <= accepted <= drafted <= k_max:
                drafted, accepted = possible_counts(drafted, accepted, k_max)
            emitted += accepted
            request = requests.get(request_id)
            looked_up = request_id in ngram
            if not drafted:
                if not (looked_up and request is not None and request.requested):
                    continue
                drafted = 1  # a lookup that found nothing is as good as a rejected draft
            total += drafted
            if request is None or (request.way.drafts == "ngram") != looked_up:
                continue
            request.way.learn(drafted, accepted, step, request.floor, share)
            if request.tau_state is not None:
                request.tau_state = request.tau_state.after(request.tau_now, drafted, accepted, step)
            if request.probing:
                request.probing = False
                request.backoff = request.backoff.succeeded(step) if accepted else request.backoff.failed(step)
        for state in self._categories.values():
            state.learn()
        self._drafted_tokens = self._drafted_tokens * _SHARE_KEEP + total
        captured = self._captured(result)
        if self._timed(result, captured):
            prefill_tokens = max(0, result.batched_tokens - result.decoding - total)
            seen = SeenStep(
                result.decoding,
                result.decoding + emitted,
                prefill_tokens,
                result.batched_tokens,
                result.depth,
                captured,
            )
            self._advisor.observe(seen, self._table)

    def parts_of(self, result: StepResult) -> StepParts:
        """Return the time of a step by its parts. Of what the worker did not measure apart, drafting is as expected."""
        seconds = result.step_s or 0.0
        costs, captured = self._table.costs, self._captured(result)
        if result.verify_s is not None and result.draft_s is not None:
            part = result.draft_s / max(result.verify_s + result.draft_s, SHORTEST_S)
        else:
            draft_s = costs.in_graph.draft(min(result.depth, self._k_max))
            cost = costs.in_graph if captured else costs.piecewise
            part = draft_s / (cost.verify(max(1, result.batched_tokens)) + draft_s)
        fixed = costs.fixed_part(result.batched_tokens, captured)
        return StepParts(seconds * (1 - part), seconds * part, fixed)

    def step_s(self, tokens: int) -> float:
        """Return the expected time of a step with so many tokens, s."""
        return self._table.costs.mixed_s(max(1, tokens), self._depth)

    def _captured(self, result: StepResult) -> bool:
        return not result.prefill and self._facts.captured(result.uniform, result.batched_tokens, self._k_max)

    def _timed(self, result: StepResult, captured: bool) -> bool:
        """Learn one step's time. Return whether that taught something."""
        iterations = self._facts.iterations(result.depth, self._k_max)
        seconds = result.step_s
        if result.verify_s is not None:
            self._table.observe_apart(result.draft_s, iterations)
            seconds, iterations = result.verify_s, 0
        return seconds is not None and self._table.observe(
            StepTime(seconds, result.batched_tokens, captured, iterations)
        )

    def _choose(self, known: Sequence[RequestState]) -> None:
        """Choose who drafts for the requests that leave it open, where that is due."""
        for request in known:
            choice = request.choice
            if choice is not None and choice.due <= self._step:
                choice.other.believe(self._step, request.floor, self._share)
                request.way = choice.review(request.way, self._table.costs.in_graph, len(known), self._step)

    def _learn_taus(self, size: int) -> None:
        """Learn for each category the acceptance at which drafts neither gain nor lose time in a batch of that size."""
        costs = self._table.costs
        times_s: dict[str, list[float]] = {
            drafts: [each.alike_s(size, k) for k in range(self._k_max + 1)]
            for drafts, each in (("own", costs), ("ngram", costs.of_lookups()))
        }
        for (_, drafts), state in self._categories.items():
            state.tau = break_even(times_s[drafts], state.curve(state.level, 0.0, self._share).output)

    def _uniforms(self, batch: Batch, prefill_tokens: int) -> list[Allocation]:
        """Return the allocations of one number of draft tokens to all, from 0 up; none where that brings no graph.

        Where requests may not draft as the others do, it is their number only, or none.
        """
        if prefill_tokens:
            return []
        groups = batch.allocator.groups
        chosen = {request.k or 0 for request in batch.fixed}
        if batch.stopped:
            chosen.add(0)
        if not chosen:
            depths = range(1 + min([group.most for group in groups]))
        elif len(chosen) == 1 and all(group.most >= max(chosen) for group in groups):
            depths = range(max(chosen), max(chosen) + 1)  # the others may do as these must
        else:
            return []
        return batch.allocator.uniforms([(k, self._alike_s(batch.size, k)) for k in depths])

    def _alike_s(self, size: int, k: int) -> float:
        """Return the time of a step for which each of `size` requests gets k draft tokens."""
        costs = self._costs
        if not k or size == 1 or self._share > _MOST_COME:
            return costs.alike_s(size, k)
        if not self._graph_if_alike:
            return costs.mixed_s(size * (1 + self._share * k), k)
        # Drafts often fail to come, so requests do not verify the same number.
        return costs.step_s(size * (1 + k), k, captured=False)

    def _corrected(self, allocation: Allocation, batch: Batch) -> Allocation:
        """Return the allocation with the time that such steps were measured to take."""
        seconds = self._costs.mixed_s(allocation.tokens, allocation.iterations)
        return allocation._replace(
            seconds=seconds,
            rate=allocation.output / seconds,
            score=allocation.score - batch.size * log(seconds / allocation.seconds),
        )

    def _trial(self, uniforms: list[Allocation], best: Allocation, size: int) -> Allocation | None:
        """Return what to try instead of the best allocation, to find out what it takes. Charges the loss."""
        if not uniforms:
            return None
        trial, allowed_s = None, self._allowance.seconds
        if self._graph_if_alike and not self._table.graph_is_known:
            trial = graph_trial(uniforms, best, size, self._costs, allowed_s)
        if trial is None:
            trial = hopeful_trial(uniforms, best, size, self._least_s, allowed_s)
        if trial is None and self._graph_if_alike and not best.depth:
            trial = near_trial(uniforms)
        if trial is None or lost_s(trial, best.rate) > allowed_s:
            return None
        self._allowance = self._allowance.spent(lost_s(trial, best.rate))
        return trial

    def _least_s(self, allocation: Allocation) -> float | None:
        captured = self._facts.captured(allocation.depth, allocation.tokens, self._k_max)
        return self._table.least_s(allocation.tokens, allocation.depth, captured)

    def _is_plain(self, best: Allocation, none: Allocation) -> bool:
        """Return whether this step goes without drafts, to measure what drafts cost. Charges the loss."""
        if not best.depth:
            # Plain by itself.
            self._plain = self._plain.probed(self._step)
            return False
        if none.depth or self._plain.due > self._step:
            return False
        captured = self._facts.captured(0, none.tokens, self._k_max)
        if self._table.is_known(self._costs.key(none.tokens, 0, captured)):
            return False
        lost = lost_s(none, best.rate)
        if lost > self._allowance.seconds:
            return False
        self._allowance = self._allowance.spent(lost)
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
        given = self._decisions[reason]
        off = given[0] if reason is Reason.TRIAL else self._decisions[Reason.AUTO_OFF][0]
        due = []
        for requests, k in zip(batch.autos, best.depths, strict=True):
            if k:
                decision = given[0] if reason is Reason.PLAIN else given[k]
                for request in requests:
                    request.idle = False
                    decided[request.id] = decision
                continue
            for request in requests:
                decided[request.id] = off
                if not request.idle:
                    request.idle, request.probing = True, False
                    request.refresh = step + _REFRESH_STEPS
                    request.backoff = request.backoff.succeeded(step)
                    continue
                if request.refresh <= step:
                    request.refresh = step + _REFRESH_STEPS
                    request.way.believe(step, request.floor, self._share)
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
        allowed_s, step_s = self._allowance.seconds, self._costs.mixed_s
        probes = affordable_probes(len(due), tokens, taken, step_s, allowed_s)
        if not probes.requests and tokens > 1:
            # With a costly draft the allowance may never cover that many tokens.
            probes = affordable_probes(len(due), 1, taken, step_s, allowed_s)
        if self._graph_if_alike and len(uniforms) > 1 and not taken.depth:
            # In a graph it may be cheaper to probe all.
            alike = min(uniforms[1:], key=lambda each: lost_s(each, taken.rate))
            all_s = max(0.0, lost_s(alike, taken.rate))
            if all_s <= (probes.lost_s if probes.requests else allowed_s):
                probes = Probes(batch.size, alike.depth, all_s)
                due = [request for group in batch.autos for request in group]
        if not probes.requests:
            return taken
        by_tau = due[0].stopped
        self._allowance = self._allowance.spent(probes.lost_s)
        if probes.requests < len(due):
            due.sort(key=lambda request: request.probe_due)
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
            iterations=max(taken.iterations, probes.tokens),
            tokens=taken.tokens + probes.requests * probes.tokens,
            seconds=taken.seconds + probes.lost_s,
        )


def possible_counts(drafted: int, accepted: int, k_max: int) -> tuple[int, int]:
    """Return these counts, or the nearest ones with 0 <= accepted <= drafted <= k_max."""
    drafted = min(k_max, max(0, drafted))
    return drafted, min(drafted, max(0, accepted))


def _score(allocation: Allocation) -> float:
    return allocation.score
