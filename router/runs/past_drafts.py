"""What past runs say about drafting: the depth that a plan asks for where the user asked for none.

The engine's controller measures costs and follows each request, which no record of the past can; so `auto` stays
`auto`. But it tries drafts on each new request before it knows, and where they hardly ever were accepted that is
waste: there the plan asks for none. As nothing is drafted meanwhile, the evidence fades with further runs and with
time, and when it no longer suffices the plan tries `auto` again.

`tau` stays the step's: it is a floor that somebody set. It says what "hardly ever" means. Of a category
whose drafts are accepted at a rate under a quarter of tau, at most a quarter of the drafts can belong to requests that
reach tau (Markov's inequality): the others would be stopped by it.
"""

from __future__ import annotations

from router.registry import Speculation
from router.runs.summary import RunSummary
from router.runs.wilson import highest_likely_rate
from router.spec_params import SpecParams

NEAR_ZERO = 0.02
"""Acceptance rate (0-1) under which drafts are waste whatever tau is: a draft of k_max tokens costs some percent of a
step at least. This project's own choice."""
SHARE_OF_TAU = 0.25
CERTAIN_Z = 2.0
"""Standard deviations by which the rate must be under the bound, not by chance."""
RUN_TOKENS = 8.0
"""Draft tokens that stand and fall together: each run of them counts as one trial (as the drift alarm counts)."""


def drafts_are_waste(speculation: Speculation | None, requested: SpecParams, past: RunSummary) -> bool:
    """Return whether past drafts were surely accepted so rarely that none should be made.

    Never where the user said anything of speculation, where the step's depth is fixed, or where it has a `floor`: its
    engine then judges its drafts itself, and needs them for that.

    Args:
        speculation: of the chain entry that will serve; None: it makes no drafts.
        requested: what the client set.
        past: recent runs of the tier and category.
    """
    if speculation is None or past.draft_tokens <= 0:
        return False
    if requested.model_fields_set or speculation.k != "auto" or speculation.floor is not None:
        return False
    rate = min(1.0, past.accepted_tokens / past.draft_tokens)
    bound = max(NEAR_ZERO, SHARE_OF_TAU * speculation.tau)
    return highest_likely_rate(past.draft_tokens / RUN_TOKENS, rate, CERTAIN_Z) < bound
