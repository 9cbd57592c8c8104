"""Whether past runs show that drafts are waste, for requests that set nothing about speculation.

The engine's controller measures costs and follows each request, which no record of the past can do; so `auto` stays
`auto`. But the controller tries drafts on each new request. If hardly any were ever accepted, that is waste, and the
plan asks for none. Then nothing is drafted, so the evidence fades with further runs and with time, and once it is too
weak the plan tries `auto` again.

The entry's `tau`, a floor that somebody set, says what "hardly any" means. If the drafts of a category are accepted at
a rate under a quarter of tau, at most a quarter of them can belong to requests that reach tau (Markov's inequality):
tau would stop the others. An `auto` tau is none that somebody set.
"""

from __future__ import annotations

from router.registry import Speculation
from router.runs.statistics import highest_likely_rate
from router.runs.summary import RunSummary
from router.spec_params import SpecParams

NEAR_ZERO = 0.02
"""Acceptance rate (0-1) under which drafts are waste whatever tau is: a draft of k_max tokens costs some percent of a
step at least. Our own choice."""
SHARE_OF_TAU = 0.25
CERTAIN_Z = 2.0
"""Standard deviations by which the rate must be under the bound."""
RUN_TOKENS = 8.0
"""Draft tokens that are accepted or rejected together: each run of them counts as one trial, as in the drift alarm."""


def drafts_are_waste(speculation: Speculation | None, requested: SpecParams, past: RunSummary) -> bool:
    """Return whether past drafts were surely accepted so rarely that none should be made.

    They never count as waste if the client set anything about speculation, if the entry's `k` is fixed, or if the entry
    drafts in both ways: its engine then judges its drafts itself and needs them for that.

    Args:
        speculation: of the chain entry that will serve; None: it makes no drafts.
        requested: what the client set.
        past: recent runs of the tier and category.
    """
    if speculation is None or past.draft_tokens <= 0:
        return False
    if requested.model_fields_set or speculation.k != "auto" or speculation.drafts_both_ways:
        return False
    rate = min(1.0, past.accepted_tokens / past.draft_tokens)
    tau = 0.0 if speculation.tau == "auto" else speculation.tau
    bound = max(NEAR_ZERO, SHARE_OF_TAU * tau)
    return highest_likely_rate(past.draft_tokens / RUN_TOKENS, rate, CERTAIN_Z) < bound
