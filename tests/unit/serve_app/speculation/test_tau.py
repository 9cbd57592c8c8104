"""The acceptance floor: stopping, probing, resuming, and how often at most."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from serve_app.speculation.exploration import FIRST_INTERVAL_STEPS, MOST_INTERVAL_STEPS, Backoff
from serve_app.speculation.tau import MIN_TOKENS, TauState

TAU = 0.5
ENOUGH = MIN_TOKENS // 4
"""Steps of 4 draft tokens that are enough evidence."""


def new(step: int = 0) -> TauState:
    return TauState.new(step)


def after(state: TauState, step: int, *outcomes: tuple[int, int], tau: float = TAU) -> TauState:
    for index, (drafted, accepted) in enumerate(outcomes):
        state = state.after(tau, drafted, accepted, step + index)
    return state


def stopped(step: int = 3) -> TauState:
    return after(new(), step - ENOUGH + 1, *[(4, 0)] * ENOUGH)


def test_a_request_stops_when_its_acceptance_is_under_tau() -> None:
    assert not after(new(), 0, *[(4, 1)] * (ENOUGH - 1)).stopped
    assert after(new(), 0, *[(4, 1)] * ENOUGH).stopped


def test_a_request_at_tau_goes_on() -> None:
    assert not after(new(), 0, *[(4, 2)] * 100).stopped


def test_recent_acceptance_counts_and_old_acceptance_does_not() -> None:
    good = after(new(), 0, *[(4, 4)] * 1000)
    assert not after(good, 1000, *[(4, 0)] * 5).stopped
    assert after(good, 1000, *[(4, 0)] * 15).stopped


def test_a_step_without_drafts_changes_nothing() -> None:
    assert after(new(), 0, *[(0, 0)] * 1000) == new()


def test_a_stopped_request_waits_before_it_is_probed() -> None:
    assert stopped(step=3).backoff.due == 3 + 8


def test_drafts_left_over_from_before_the_stop_are_no_probe() -> None:
    assert after(stopped(), 4, (4, 4), (4, 4)) == stopped()


def test_a_probe_clearly_above_tau_resumes() -> None:
    # 0.75 is at least 0.5 + 0.1; the run begins with no evidence.
    resumed = after(stopped().probed(11), 12, (4, 3))
    assert (resumed.stopped, resumed.drafted, resumed.seen) == (False, 0.0, 0)


def test_a_probe_just_above_tau_does_not_resume_and_waits_twice_as_long() -> None:
    # 0.5 is under 0.5 + 0.1.
    again = after(stopped().probed(11), 12, (4, 2))
    assert (again.stopped, again.backoff.interval, again.backoff.due) == (True, 16, 12 + 16)


def test_small_probes_are_added_up_to_a_verdict() -> None:
    state = after(stopped().probed(11), 12, (2, 2))
    assert state.stopped
    assert not after(state.probed(20), 21, (2, 1)).stopped


def test_at_tau_1_everything_must_be_accepted() -> None:
    strict = after(new(), 0, (MIN_TOKENS, MIN_TOKENS - 1), tau=1.0)
    assert strict.stopped
    assert after(strict.probed(9), 10, (4, 3), tau=1.0).stopped
    assert not after(strict.probed(9), 10, (4, 4), tau=1.0).stopped


def test_a_request_that_resumed_by_luck_waits_longer_after_its_next_stop() -> None:
    lucky = after(stopped().probed(11), 12, (4, 4), *[(4, 0)] * ENOUGH)
    assert (lucky.stopped, lucky.backoff.interval, lucky.backoff.due) == (True, 16, 12 + ENOUGH + 16)


def test_a_run_that_proves_itself_ends_the_long_waits() -> None:
    proved = after(stopped().probed(11), 12, (4, 4), *[(4, 3)] * ENOUGH)
    assert (proved.stopped, proved.backoff.interval) == (False, 8)


@given(
    st.lists(
        st.integers(0, 8).flatmap(lambda drafted: st.tuples(st.just(drafted), st.integers(0, drafted))), max_size=300
    ),
    st.floats(0.01, 1),
)
def test_no_outcomes_make_it_flap_faster_than_its_bounds(outcomes: list[tuple[int, int]], tau: float) -> None:
    state, since, drafted_since, probes = new(), 0, 0, [-100]
    for step, (drafted, accepted) in enumerate(outcomes):
        if state.stopped:
            if state.backoff.due > step:
                continue
            assert step - probes[-1] >= FIRST_INTERVAL_STEPS
            probes.append(step)
            state = state.probed(step)
        was = state
        state = state.after(tau, drafted, accepted, step)
        drafted_since += drafted
        assert state.backoff.interval <= MOST_INTERVAL_STEPS
        if state.stopped != was.stopped:
            if state.stopped:
                assert drafted_since >= MIN_TOKENS
            else:
                assert step - since >= FIRST_INTERVAL_STEPS
            since, drafted_since = step, 0


@given(
    st.lists(
        st.integers(1, 8).flatmap(lambda drafted: st.tuples(st.just(drafted), st.integers(0, drafted))), max_size=60
    ),
    st.floats(0.01, 0.99),
    st.floats(0.01, 0.99),
)
def test_a_higher_tau_stops_no_later(outcomes: list[tuple[int, int]], one: float, other: float) -> None:
    def stop(tau: float) -> int:
        state = new()
        for step, (drafted, accepted) in enumerate(outcomes):
            state = state.after(tau, drafted, accepted, step)
            if state.stopped:
                return step
        return len(outcomes)

    assert stop(max(one, other)) <= stop(min(one, other))


# --- back-off ---


def test_intervals_double_up_to_their_bound_and_start_over_after_a_success() -> None:
    backoff, intervals = Backoff.starting(0, first=8, most=40), []
    for _ in range(4):
        backoff = backoff.failed(backoff.due)
        intervals.append(backoff.interval)
    assert intervals == [16, 32, 40, 40]
    assert backoff.succeeded(500) == Backoff(first=8, most=40, interval=8, due=508)


def test_a_probe_without_an_outcome_is_repeated_after_the_same_interval() -> None:
    assert Backoff.starting(0, 8, 64).failed(8).probed(30) == Backoff(8, 64, 16, due=46)


def test_a_bound_below_the_first_interval_is_the_first_interval() -> None:
    assert Backoff.starting(0, first=8, most=2).failed(8).interval == 8
