"""Test central's admission check with a real Kueue: jobs are admitted, retried, refused and preempted. The node has eight GPUs.

They need the program `kueue` and the file `kueue.yaml` (simnode/kueue.py) in the folder of the control plane's programs.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from lading.vocabulary import GANG, GANG_MIN, WORKLOAD
from simnode import kueue as manager
from simnode.kueue import Kueue
from tests.cluster.conftest import ASSETS
from tests.cluster.pods import Pods
from tests.cluster.scheduling.kueueing import LONG_AGO, OTHER_CHECK, QUEUE_LABEL, TWO_CHECKS, WORKLOADS, Kueueing
from tests.cluster.scheduling.world import World
from tests.logs import LOGS

pytestmark = [pytest.mark.node, pytest.mark.timeout(400)]

QUOTAS: Final = (64, 8)
PRIORITY_LABEL: Final = "kueue.x-k8s.io/priority-class"
PRIORITIES: Final = {"low": 1, "high": 1000}


@pytest.fixture(scope="session")  # so that it is asked before a cluster starts
def with_kueue(assets: Path) -> Path:
    absent = manager.missing(assets)
    if absent:
        pytest.skip(f"needs {' and '.join(absent)} in the folder {ASSETS} (simnode/kueue.py)")
    return assets


@pytest.fixture(scope="module")
def installed(with_kueue: Path, whole: World, pytestconfig: pytest.Config) -> Iterator[Kueueing]:
    kueue = Kueue(whole.cluster.control_plane, assets=with_kueue)
    pytestconfig.stash[LOGS].append(kueue.log)
    with kueue:
        kueueing = Kueueing(whole, kueue)
        kueueing.install(QUOTAS, PRIORITIES)
        yield kueueing


@pytest.fixture
def jobs(installed: Kueueing, world: World, pods: Pods) -> Iterator[Kueueing]:
    world.await_clean()
    yield installed
    pods.delete_all()
    installed.clear()


def test_a_job_is_admitted_and_its_pods_get_the_places_that_were_held(jobs: Kueueing, world: World, pods: Pods) -> None:
    jobs.submit("train", 2, 4)
    names = jobs.await_running("train", 2)
    world.check(pods, *names)


def test_pods_that_are_a_gang_too_start_in_the_places_that_were_held(jobs: Kueueing, world: World, pods: Pods) -> None:
    jobs.submit("gang", 2, 4, of_pods={GANG: "gang", GANG_MIN: "2"})
    world.check(pods, *jobs.await_running("gang", 2))


def test_central_answers_when_the_check_of_another_controller_is_ready(jobs: Kueueing, world: World) -> None:
    jobs.submit("checked", 1, 8, queue=TWO_CHECKS)
    jobs.await_true("checked", "QuotaReserved")
    jobs.await_answer("checked", "Pending")
    world.sit_out(3)
    assert jobs.entry("checked")["state"] == "Pending"
    ready = {"name": OTHER_CHECK, "state": "Ready", "message": "", "lastTransitionTime": LONG_AGO}
    jobs.apply(WORKLOADS, "Workload", jobs.workload("checked")["metadata"]["name"], {"admissionChecks": [ready]})
    jobs.await_running("checked", 1)


def test_a_job_without_room_is_sent_back_a_smaller_one_passes_and_it_is_admitted_when_room_is_there(
    jobs: Kueueing, world: World, pods: Pods
) -> None:
    jobs.submit("first", 1, 6)
    jobs.await_running("first", 1)
    jobs.submit("second", 2, 4)
    answer = jobs.await_answer("second", "Retry")
    assert (answer["message"], answer["requeueAfterSeconds"]) == ("there is no room for all of 2 pods now", 30)
    assert jobs.suspended("second")
    jobs.submit("small", 1, 2)
    jobs.await_running("small", 1)
    jobs.end(pods, "first")
    jobs.end(pods, "small")
    world.check(pods, *jobs.await_running("second", 2, within_s=120))
    assert jobs.entry("second")["retryCount"] == 1


def test_a_job_larger_than_the_cluster_is_deactivated_and_given_the_reason(jobs: Kueueing, world: World) -> None:
    jobs.submit("huge", 3, 4)
    evicted = jobs.await_true("huge", "Evicted")
    assert evicted["reason"] == "DeactivatedDueToAdmissionCheck"
    assert "of 3 pods that start together, 2 would have room on empty nodes" in evicted["message"]
    assert jobs.workload("huge")["spec"]["active"] is False
    assert jobs.pods("huge") == []


def test_places_are_free_when_the_job_is_deleted_or_its_pods_do_not_come(jobs: Kueueing, world: World, pods: Pods) -> None:
    """Use a service account that does not exist, with which no pod can be created."""
    for name in ("gone", "never"):
        jobs.submit(name, 2, 4, serviceAccountName="absent")
        jobs.await_true(name, "Admitted")
        world.create(pods, f"after-{name}", gpu=8)
        world.await_refused(f"after-{name}")
        if name == "gone":
            jobs.delete(name)
            world.await_bound(f"after-{name}", within_s=20)
        else:
            world.sit_out(60)
            assert not world.bound(f"after-{name}")
            world.await_bound(f"after-{name}", within_s=90)
            assert jobs.entry(name)["state"] == "Ready"
        pods.delete(f"after-{name}")


def test_plain_pods_of_a_group_start_together(jobs: Kueueing, world: World, pods: Pods) -> None:
    group = {"kueue.x-k8s.io/pod-group-name": "group", QUEUE_LABEL: "gpus-64"}
    names = ["group-0", "group-1"]
    for name in names:
        assert all(not world.bound(one) for one in names[: names.index(name)])
        world.create(pods, name, gpu=4, labels=group, annotations={"kueue.x-k8s.io/pod-group-total-count": "2"})
    for name in names:
        pods.wait_ready(name)
        assert WORKLOAD in world.api.pod(name)["metadata"]["annotations"]
    world.check(pods, *names)


def test_a_partially_admitted_job_gets_as_many_pods_placed_as_have_quota(jobs: Kueueing, world: World, pods: Pods) -> None:
    jobs.submit("elastic", 5, 2, queue="gpus-8", annotations={"kueue.x-k8s.io/job-min-parallelism": "1"})
    world.check(pods, *jobs.await_running("elastic", 4))
    (assigned,) = jobs.status("elastic")["admission"]["podSetAssignments"]
    assert assigned["count"] == 4


def test_a_job_that_kueue_preempts_gives_its_places_and_is_asked_about_again(jobs: Kueueing, world: World, pods: Pods) -> None:
    jobs.submit("humble", 2, 4, queue="gpus-8", labels={PRIORITY_LABEL: "low"})
    jobs.await_running("humble", 2)
    jobs.submit("urgent", 2, 4, queue="gpus-8", labels={PRIORITY_LABEL: "high"})
    world.check(pods, *jobs.await_running("urgent", 2, within_s=120))
    assert jobs.condition("humble", "Evicted")["reason"] == "Preempted"
    assert jobs.pods("humble") == []
    jobs.end(pods, "urgent")
    world.check(pods, *jobs.await_running("humble", 2, within_s=120))


def test_kueue_and_central_come_and_go_and_every_job_starts_once(jobs: Kueueing, world: World, pods: Pods) -> None:
    jobs.submit("before", 1, 2)
    (before,) = jobs.await_running("before", 1)
    started = pods.status(before)["containerID"]
    dead = world.scheduling.leader
    dead.kill()
    jobs.submit("leaderless", 1, 2)
    jobs.await_true("leaderless", "QuotaReserved")  # before its checks are there, or after
    jobs.await_answer("leaderless", "Pending")
    jobs.kueue.manager.kill()
    world.scheduling.await_leader()
    dead.start()
    world.cluster.eventually(
        lambda: "admission.failed" in world.scheduling.leader.log.read_text(), "an answer that Kueue's webhook does not take"
    )
    jobs.kueue.start()
    world.check(pods, *jobs.await_running("leaderless", 1, within_s=150))
    jobs.submit("after", 1, 4)
    world.check(pods, *jobs.await_running("after", 1), before)
    assert pods.status(before)["containerID"] == started
