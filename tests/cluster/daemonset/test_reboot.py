"""Test a node that reboots with pods bound to it: files on its disk remain, and state in memory is lost.

The order is that of a real boot: containerd first, which launches the guard that it has, then kubelet, which starts the pods of
the DaemonSets and all others at once.
"""

from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

import pytest

from hooks.frontends.nri.guard.launched import PROGRAM
from lading.vocabulary import NOT_READY
from simnode import leftovers
from tests.cluster.conftest import NODE
from tests.cluster.daemonset.referee import Referee
from tests.cluster.daemonset.site import NodeSite
from tests.cluster.pods import Pods

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]

ASKS: Final = {
    **{f"whole-{card}": str(card) for card in range(4)},
    **{f"share-{number}": "4:memory=7Gi" for number in range(3)},
    **{f"plain-{number}": "" for number in range(3)},
}
WITH_DEVICES: Final = {name for name, ask in ASKS.items() if ask}


@pytest.fixture
def referee(site: NodeSite, pods: Pods) -> Referee:
    return Referee(site=site, pods=pods)


@pytest.fixture
def running(site: NodeSite, referee: Referee) -> Referee:
    """Run ten pods on a node with all of `deploy/node`."""
    site.apply()
    site.label("nri")
    site.await_ready("lading-guard", "lading-node")
    site.cluster.eventually(lambda: not site.tainted(), "a node without the taint")
    assert (site.plugins / PROGRAM).is_file()
    for name, ask in ASKS.items():
        referee.create(name, ask)
    referee.await_ready()
    return referee


def power_off(site: NodeSite) -> None:
    site.cluster.power_off()
    site.runtime.power_off()
    leftovers.remove_tree(site.run)
    boot_id = site.node.root / "proc/sys/kernel/random/boot_id"
    boot_id.write_text(f"{uuid4()}\n")
    # lading-hooks does not see a loss of power; here it may have lived for some seconds without containerd.
    site.cluster.kubectl("taint", "node", NODE, f"{NOT_READY}-")


def boot(site: NodeSite) -> None:
    site.runtime.start()
    site.cluster.power_on()


def containers(pods: list[Any]) -> set[str]:
    """Return the ids of the containers that run, by the last news of kubelet: also those of before the boot."""
    statuses = [status for pod in pods for status in pod["status"].get("containerStatuses", [])]
    return {one["containerID"] for one in statuses if "running" in one["state"]}


def started(pods: list[Any]) -> datetime:
    """Return when the last of their containers was started."""
    statuses = [status for pod in pods for status in pod["status"]["containerStatuses"]]
    return max(datetime.fromisoformat(one["state"]["running"]["startedAt"]) for one in statuses)


def test_pods_wait_for_the_node_and_the_taint_is_there_meanwhile(site: NodeSite, running: Referee) -> None:
    ours = {name: containers(site.pods(name)) for name in ("lading-node", "lading-guard")}
    theirs = containers(site.cluster.api.pods())
    power_off(site)
    boot(site)
    began = datetime.now(UTC)
    observed: list[tuple[datetime, bool]] = []  # when, whether the taint is there

    def again() -> bool:
        parts = all(site.ready(name) and ours[name].isdisjoint(containers(site.pods(name))) for name in ours)
        observed.append((datetime.now(UTC), site.tainted()))
        now = site.cluster.api.pods()
        return parts and not observed[-1][1] and len(containers(now) - theirs) == len(ASKS) == len(running.ready())

    site.cluster.eventually(again, "all pods, after the boot", within_s=240.0)
    tainted = [when for when, taint in observed if taint]
    assert tainted
    untainted = min(when for when, _ in observed if when > tainted[-1])
    text = ("taint seen after", "taken away after", "all pods run after")
    times = (tainted[0], untainted, observed[-1][0])
    print("\n" + ", ".join(f"{what} {(when - began).total_seconds():.1f} s" for what, when in zip(text, times, strict=True)))
    assert max(started(site.pods(name)) for name in ours) <= untainted
    running.check()
    assert all(len(running.opened(name)) == 2 for name in ASKS), {name: running.opened(name) for name in ASKS}
    events = {name: site.cluster.api.pod_events(name) for name in WITH_DEVICES}
    assert any("ungranted" in event for one in events.values() for event in one)


def test_only_the_launched_guard_is_there_for_the_first_seconds(site: NodeSite, running: Referee, pods: Pods) -> None:
    """Check that the launched guard refuses guarded pods while plain pods run, and that the taint stays until lading-hooks and
    the other guard run too."""
    cluster = site.cluster
    before = containers(cluster.api.pods())
    for name in ("lading-node", "lading-guard"):
        site.keep_away(name)
    power_off(site)
    boot(site)

    def run() -> set[str]:
        return {pod["metadata"]["name"] for pod in cluster.api.pods() if containers([pod]) - before}

    plain = ASKS.keys() - WITH_DEVICES
    cluster.eventually(lambda: run() == plain, "the plain pods", within_s=120.0)
    cluster.eventually(
        lambda: all(any("ungranted" in event for event in cluster.api.pod_events(name)) for name in WITH_DEVICES),
        "a refusal of each pod with devices",
        within_s=120.0,
    )
    assert run() == plain
    site.keep_away("lading-node", False)
    cluster.eventually(site.tainted, "the taint", within_s=60.0)
    cluster.eventually(lambda: run() == ASKS.keys(), "all pods, as lading-hooks answers", within_s=120.0)
    running.create("late", "6")
    cluster.eventually(lambda: unplaced(site, "late"), "a pod that waits because of the taint")
    site.keep_away("lading-guard", False)
    site.await_ready("lading-guard", "lading-node")
    cluster.eventually(lambda: not site.tainted(), "the end of the taint")
    running.await_ready()
    running.check()


def unplaced(site: NodeSite, name: str) -> bool:
    conditions = site.cluster.api.pod(name)["status"].get("conditions", [])
    return any(one["type"] == "PodScheduled" and one.get("reason") == "Unschedulable" for one in conditions)
