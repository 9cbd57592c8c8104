"""Serve's status and the replicas' reports become one observation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ray.serve._private.common import DeploymentStatus, DeploymentStatusTrigger

from cluster.pool.messages import ReplicaReport
from cluster.pool.observe import TierDeployment, observe, tier_deployment
from router.observation import ClusterGpus, GpuSupply, Learned, TierState, Watts
from tests.unit.cluster.pool.reports import loading, overview, running
from tests.unit.router.profiles import small_profile

FAILURES = (("small-ngram", "no memory"),)


def eco(deployment: TierDeployment | None, *reports: ReplicaReport, measured_s: float | None = None) -> TierState:
    """The eco tier as observed."""
    deployments = {} if deployment is None else {"eco": deployment}
    cold_starts = {} if measured_s is None else {"eco": measured_s}
    return observe(small_profile(), deployments, reports, cold_starts).tier("eco")  # type: ignore[arg-type]


def test_every_tier_of_the_profile_is_observed_before_anything_is_known() -> None:
    observation = observe(small_profile(), {}, [], {})
    assert set(observation.tiers) == {"eco", "balanced", "performance", "ultra"}
    assert not any(state.warm for state in observation.tiers.values())


def test_an_idle_tier_is_scaled_to_zero_and_says_so() -> None:
    state = eco(TierDeployment())
    assert (state.running, state.starting, state.pending, state.failed) == (0, 0, 0, False)
    assert state.reason == "scaled to zero"


def test_a_running_replica_makes_a_tier_warm_and_shows_its_entry_and_load() -> None:
    state = eco(TierDeployment(running=2), running(busy=3, waiting=1), running(replica="b", busy=4))
    assert state.warm
    assert (state.running, state.active_entry, state.reason) == (2, "small-ngram", None)
    assert (state.engine_running, state.engine_waiting) == (7, 1)


def test_a_silent_replica_is_pending_and_a_loading_one_is_starting() -> None:
    state = eco(TierDeployment(starting=3), loading())
    assert (state.starting, state.pending) == (1, 2)
    assert not state.warm
    assert state.reason == "loading entry small-ngram"


def test_the_reason_names_a_replica_without_a_place() -> None:
    state = eco(TierDeployment(starting=1))
    assert (state.starting, state.pending) == (0, 1)
    assert state.reason == "waiting for a replica to be placed"


def test_pending_is_never_negative() -> None:
    state = eco(TierDeployment(starting=1), loading(), loading(replica="b"))
    assert (state.starting, state.pending) == (1, 0)


def test_failed_entries_are_shown_while_the_next_one_loads() -> None:
    state = eco(TierDeployment(starting=1), loading("small-alone", FAILURES))
    assert state.entry_failures == FAILURES
    assert state.reason == "entry small-ngram failed: no memory; loading entry small-alone"


def test_a_tier_after_an_engine_fallback_keeps_the_reason_while_it_runs() -> None:
    fallen = ReplicaReport("eco", "a", "running", "small-alone", FAILURES)
    state = eco(TierDeployment(running=1), fallen)
    assert (state.active_entry, state.entry_failures) == ("small-alone", FAILURES)
    assert state.reason == "entry small-ngram failed: no memory"


def test_a_tier_without_a_working_entry_is_failed_with_all_reasons() -> None:
    failures = (*FAILURES, ("small-alone", "weights missing"))
    state = eco(TierDeployment(failed=True, message="3 retries"), ReplicaReport("eco", "a", "failed", None, failures))
    assert state.failed
    assert state.reason == "entry small-ngram failed: no memory; entry small-alone failed: weights missing"


FAILED = ReplicaReport("eco", "a", "failed", None, FAILURES)


def test_a_tier_that_serve_no_longer_starts_is_failed() -> None:
    state = eco(TierDeployment(unhealthy=True), FAILED)
    assert (state.failed, state.reason) == (True, "entry small-ngram failed: no memory")


def test_an_unhealthy_tier_that_starts_again_is_not_failed() -> None:
    assert not eco(TierDeployment(unhealthy=True, starting=1), FAILED).failed


def test_a_tier_whose_running_replica_died_is_not_failed() -> None:
    state = eco(TierDeployment(unhealthy=True), running())
    assert (state.failed, state.reason) == (False, "scaled to zero")


def test_a_tier_that_failed_without_a_report_shows_serves_message() -> None:
    state = eco(TierDeployment(failed=True, message="the node has no such file"))
    assert (state.failed, state.reason) == (True, "the node has no such file")


def test_a_tier_with_a_running_replica_is_not_failed() -> None:
    assert not eco(TierDeployment(running=1, failed=True), running()).failed


def test_the_report_of_a_gone_replica_does_not_make_a_tier_active() -> None:
    state = eco(TierDeployment(), running())
    assert (state.warm, state.active_entry) == (False, None)
    assert state.reason == "scaled to zero"


def test_running_replicas_count_before_loading_and_failed_ones() -> None:
    failed = ReplicaReport("eco", "c", "failed", None, (("small-alone", "old"),))
    state = eco(TierDeployment(running=1, starting=1), running(), loading(failures=FAILURES, replica="b"), failed)
    assert (state.entry_failures, state.active_entry) == ((), "small-ngram")


def test_a_report_changes_only_its_own_tier() -> None:
    observation = observe(small_profile(), {"eco": TierDeployment(running=1)}, [running()], {})
    assert not observation.tier("balanced").warm
    assert observation.tier("balanced").active_entry is None


@pytest.mark.parametrize(("measured_s", "estimate_s"), [(None, 90), (12.5, 12.5)])
def test_the_cold_start_estimate_is_the_profiles_until_one_is_measured(
    measured_s: float | None, estimate_s: float
) -> None:
    assert eco(TierDeployment(), measured_s=measured_s).cold_start_s == estimate_s


@pytest.mark.parametrize(
    ("status", "replicas", "expected"),
    [
        (DeploymentStatus.HEALTHY, {}, TierDeployment()),
        (DeploymentStatus.HEALTHY, {"RUNNING": 2, "STOPPING": 1}, TierDeployment(running=2)),
        (DeploymentStatus.UPSCALING, {"STARTING": 1}, TierDeployment(starting=1)),
        (DeploymentStatus.UPDATING, {"UPDATING": 1, "RECOVERING": 2}, TierDeployment(starting=3)),
        (DeploymentStatus.DEPLOY_FAILED, {"STARTING": 1}, TierDeployment(starting=1, failed=True)),
        (DeploymentStatus.DEPLOY_FAILED, {"RUNNING": 1}, TierDeployment(running=1)),
        # A replica that lost its engine is replaced: the tier has not given up.
        (DeploymentStatus.UNHEALTHY, {"STARTING": 1}, TierDeployment(starting=1)),
    ],
)
def test_serves_status_becomes_a_tier_deployment(
    status: DeploymentStatus, replicas: dict[str, int], expected: TierDeployment
) -> None:
    state = tier_deployment(overview(status, **replicas))
    assert (state.running, state.starting, state.failed) == (expected.running, expected.starting, expected.failed)
    assert state.unhealthy is (status is DeploymentStatus.UNHEALTHY)
    assert state.message == "words of Serve"


@pytest.mark.parametrize(
    ("trigger", "failed"),
    [
        (DeploymentStatusTrigger.REPLICA_STARTUP_FAILED, True),
        # Where one dies in an update, or after a restart of Serve's controller, another one is started.
        (DeploymentStatusTrigger.HEALTH_CHECK_FAILED, False),
    ],
)
def test_a_tier_is_given_up_when_its_replicas_cannot_start_and_not_when_one_has_died(
    trigger: DeploymentStatusTrigger, failed: bool
) -> None:
    status = overview(DeploymentStatus.DEPLOY_FAILED, trigger, STARTING=1)
    assert tier_deployment(status).failed is failed
    in_json = replace(status, status="DEPLOY_FAILED", status_trigger=str(trigger.value))  # as the controller answers
    assert tier_deployment(in_json).failed is failed


def test_a_tier_shows_n_gram_drafting_as_soon_as_one_replica_has_switched() -> None:
    reports = [
        ReplicaReport("eco", "a", "running", "small-draft", drafts="own"),
        ReplicaReport("eco", "b", "running", "small-draft", drafts="ngram", drafts_reason="poor"),
        ReplicaReport("eco", "c", "running", "small-draft", drafts="own"),
    ]
    state = eco(TierDeployment(running=3), *reports)
    assert (state.drafts, state.drafts_reason) == ("ngram", "poor")
    state = eco(TierDeployment(running=1), reports[0])
    assert (state.drafts, state.drafts_reason) == ("own", None)
    assert eco(TierDeployment(running=1), running()).drafts is None


def test_a_tier_shows_the_mean_of_each_tau_and_an_advice_that_all_replicas_give() -> None:
    def report(name: str, learned: Learned) -> ReplicaReport:
        return ReplicaReport("eco", name, "running", "small-draft", learned=learned)

    advised = Learned({"code": 0.2, "math": 0.5}, "no_drafts", "drafts lose time")
    one, other = report("a", advised), report("b", Learned({"code": 0.4}))
    assert eco(TierDeployment(running=1), one).learned == advised
    both = eco(TierDeployment(running=2), one, other).learned
    assert both.tau == pytest.approx({"code": 0.3, "math": 0.5})
    assert (both.advice, both.reason) == (None, None)
    assert eco(TierDeployment(running=0)).learned == Learned()


def test_a_tier_shows_the_mean_of_its_replicas_measured_watts_and_a_reason_if_none_measures() -> None:
    def report(name: str, watts: Watts | None) -> ReplicaReport:
        return ReplicaReport("eco", name, "running", "small-draft", watts=watts)

    lost = report("c", Watts(reason="NVML: GPU is lost"))
    two = TierDeployment(running=2)
    both = eco(two, report("a", Watts(300.0, 50.0)), report("b", Watts(200.0)), lost)
    assert both.watts == Watts(250.0, 50.0)
    assert eco(two, lost).watts == Watts(reason="NVML: GPU is lost")
    assert eco(two, report("a", None)).watts is None


def test_the_reports_queue_waits_are_averaged_over_the_replicas_that_run() -> None:
    reports = [
        ReplicaReport("eco", "a", "running", "small-ngram", queue_wait_ms=10.0),
        ReplicaReport("eco", "b", "running", "small-ngram", queue_wait_ms=30.0),
        loading(replica="c"),
    ]
    assert eco(TierDeployment(running=2, starting=1), *reports).queue_wait_ms == 20.0
    assert eco(TierDeployment()).queue_wait_ms == 0.0


def of_gpus(gpus: ClusterGpus, deployment: TierDeployment) -> TierState:
    return observe(small_profile(), {"eco": deployment}, (), {}, gpus).tier("eco")


def test_a_tier_whose_gpu_the_cluster_cannot_have_is_failed_even_before_a_request() -> None:
    for deployment in (TierDeployment(), TierDeployment(starting=1)):
        state = of_gpus(ClusterGpus(), deployment)
        assert state.failed
        assert state.reason == "the cluster has no node with 1 L4 GPU, and it has no autoscaler to add one"


def test_a_replica_that_waits_for_a_node_says_what_is_being_added() -> None:
    state = of_gpus(ClusterGpus(autoscaler=True, coming={"g6": 1}), TierDeployment(starting=1))
    assert (state.failed, state.pending) == (False, 1)
    assert state.reason == "waiting for a node with 1 L4 GPU; being added: 1 x g6"


def test_a_running_tier_is_not_failed_when_its_last_node_drains() -> None:
    state = of_gpus(ClusterGpus(), TierDeployment(running=1))
    assert (state.failed, state.reason) == (False, None)


def test_the_observation_carries_the_clusters_gpus() -> None:
    gpus = ClusterGpus({"L4": GpuSupply(1, 1, 1, 1)})
    assert observe(small_profile(), {}, (), {}, gpus).gpus is gpus


def test_a_replica_that_runs_before_the_controller_says_so_still_loads() -> None:
    state = eco(TierDeployment(starting=1), running())
    assert (state.running, state.starting, state.pending) == (0, 1, 0)
    assert state.reason == "loading entry small-ngram"
