"""Observations with past runs, and limits, for property tests of the router."""

from __future__ import annotations

from hypothesis import strategies as st

from router.difficulty.categories import CATEGORIES
from router.observation import Observation, TierState
from router.registry import TIER_NAMES
from router.runs.summary import Recent, RunSummary

LIMIT_NAMES = ("max_ttft_ms", "max_total_ms", "max_cost_usd", "max_energy_wh", "max_co2_g")


def recents(most: float) -> st.SearchStrategy[Recent | None]:
    """One quantity, or nothing known of it."""
    return st.none() | st.builds(Recent, st.floats(0, most), st.floats(0, most), st.floats(0, 100))


drafts = st.tuples(st.floats(0, 1e5), st.floats(0, 1)).map(lambda pair: (pair[0], pair[0] * pair[1]))


@st.composite
def summaries(draw: st.DrawFn) -> RunSummary:
    """Recent runs."""
    drafted, accepted = draw(drafts)
    return RunSummary(
        runs=draw(st.floats(0, 100)),
        engine_ttft_ms=draw(recents(1e5)),
        ms_per_token=draw(recents(1e3)),
        completion_tokens=draw(recents(1e4)),
        watts=draw(recents(2e3)),
        usd_per_hour=draw(recents(50)),
        draft_tokens=drafted,
        accepted_tokens=accepted,
    )


states = st.builds(
    TierState,
    running=st.integers(0, 2),
    starting=st.integers(0, 2),
    failed=st.booleans(),
    active_entry=st.none() | st.sampled_from(["small-ngram", "small-alone", "large-alone", "huge", "gone"]),
    queue_wait_ms=st.floats(0, 1e6),
    cold_start_s=st.floats(0, 1e4),
    recent=summaries(),
    recent_by_category=st.dictionaries(st.sampled_from(CATEGORIES), summaries(), max_size=2),
)
observations = st.builds(Observation, st.dictionaries(st.sampled_from(TIER_NAMES), states))
"""Anything that may be known of the tiers; some of which nothing is known."""

limit_values = st.floats(1e-9, 1e9)
limits = st.dictionaries(st.sampled_from(LIMIT_NAMES), limit_values, max_size=4)
goals = st.none() | st.sampled_from(["faster", "cheaper", "greener", "better"])
