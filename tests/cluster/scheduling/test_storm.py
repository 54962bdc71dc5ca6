"""Create hundreds of pods at once on nodes without kubelets: no device has two holders and none is lost, whichever process is
killed meanwhile."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from simnode.control_plane import ControlPlane
from simnode.scheduling import Scheduling, SigningKey, install
from tests.cluster.conftest import DEPLOY
from tests.cluster.scheduling.books import Auditor, by_assignment, by_report, read_reports
from tests.cluster.scheduling.fleet import CARD_MIB, CARDS, RESERVED_MIB, Fleet
from tests.cluster.scheduling.world import asks
from tests.logs import LOGS

pytestmark = pytest.mark.timeout(400)

NODES: Final = [f"storm-{n}" for n in range(8)]
SHARES: Final = 500
SHARE_GIB: Final = 9
ON_A_CARD: Final = (CARD_MIB - RESERVED_MIB) // (SHARE_GIB * 1024)  # 8
PODS: Final = "/api/v1/namespaces/default/pods"


class Storm:
    def __init__(self, plane: ControlPlane, scheduling: Scheduling, auditor: Auditor) -> None:
        self.plane = plane
        self.api = plane.api
        self.scheduling = scheduling
        self.auditor = auditor

    def create(self, names: Sequence[str], **kinds: Any) -> None:
        """Create pods by eight clients in parallel."""

        def one(name: str) -> None:
            main = {"name": "main", "image": "x", "resources": asks(**kinds)}
            spec = {"schedulerName": "lading", "automountServiceAccountToken": False, "containers": [main]}
            self.api.create_pod({"metadata": {"name": name}, "spec": spec})

        with ThreadPoolExecutor(8) as clients:
            list(clients.map(one, names))

    def bound(self) -> int:
        return sum("nodeName" in pod["spec"] for pod in self.api.pods())

    def await_bound(self, count: int, *, within_s: float = 180.0) -> None:
        self.plane.eventually(lambda: self.bound() >= count, f"{count} bound pods", within_s=within_s)

    def check(self) -> None:
        """Check that every bound pod has an assignment of its own, and that the nodes' reports agree with it."""
        bound = {pod["metadata"]["uid"] for pod in self.api.pods() if "nodeName" in pod["spec"]}
        assert set(by_assignment(self.api.pods())) == bound
        self.plane.eventually(lambda: set(by_report(read_reports(self.api))) == bound, "reports of all grants")
        assert self.auditor.found == set()

    def clear(self) -> None:
        self.api.call("DELETE", PODS, {"gracePeriodSeconds": 0})
        self.plane.eventually(lambda: not self.api.pods() and not by_report(read_reports(self.api)), "an empty cluster")


@pytest.fixture(scope="module")
def whole(assets: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Storm]:
    plane = ControlPlane(tmp_path_factory.mktemp("storm"), assets=assets)
    logs = pytestconfig.stash.setdefault(LOGS, [])
    logs.extend(plane.logs)
    with plane:
        plane.create_namespace("default")
        install(plane, DEPLOY)
        scheduling = Scheduling(plane, deploy=DEPLOY, key=SigningKey(plane.folder / "keys"))
        logs.extend(scheduling.logs)
        with Fleet(plane, NODES), scheduling, Auditor(plane.api) as auditor:
            yield Storm(plane, scheduling, auditor)


@pytest.fixture
def storm(whole: Storm) -> Iterator[Storm]:
    yield whole
    assert whole.auditor.found == set()
    whole.clear()


def test_five_hundred_shares(storm: Storm) -> None:
    names = [f"share-{n}" for n in range(SHARES)]
    began = time.monotonic()
    storm.create(names, memory=f"{SHARE_GIB}Gi", core=10)
    created = time.monotonic()
    storm.await_bound(SHARES)
    seconds = time.monotonic() - began
    took = f"created in {created - began:.1f} s, bound {seconds:.1f} s after the first was made"
    print(f"measured: {SHARES} shares {took}: {SHARES / seconds:.0f} pods/s")
    storm.check()
    cards = {uuid for holding in by_assignment(storm.api.pods()).values() for uuid in holding.cards}
    assert len(cards) == -(-SHARES // ON_A_CARD)  # binpack: no card is begun before it is needed


def test_more_than_there_is(storm: Storm) -> None:
    """Create a hundred pods for 64 cards; waiting pods get the cards of pods that end."""
    cards = len(NODES) * CARDS
    names = [f"card-{n}" for n in range(100)]
    storm.create(names, gpu=1)
    storm.await_bound(cards)
    storm.check()
    assert storm.bound() == cards
    began = time.monotonic()
    deleted = [pod["metadata"]["name"] for pod in storm.api.pods() if "nodeName" in pod["spec"]][: 100 - cards]
    for name in deleted:
        storm.api.delete_pod(name, grace_s=0)
    storm.await_bound(cards)
    print(f"measured: {len(deleted)} cards, from the first deletion to the last Binding: {time.monotonic() - began:.1f} s")
    storm.check()


def kill_leader(storm: Storm) -> None:
    storm.scheduling.leader.kill()


def kill_scheduler(storm: Storm) -> None:
    storm.scheduling.scheduler.kill()


def stop_leader(storm: Storm) -> None:
    storm.scheduling.leader.stop()


def kill_api_server(storm: Storm) -> None:
    storm.plane.server.kill()
    time.sleep(20.0)  # longer than central keeps its lease without the API server
    storm.plane.server.start()
    storm.plane.server.wait_until(storm.api.ready, "a ready API server")


@pytest.mark.parametrize("happens", [kill_leader, stop_leader, kill_scheduler, kill_api_server])
def test_under_load(storm: Storm, happens: Callable[[Storm], None]) -> None:
    names = [f"load-{n}" for n in range(200)]
    storm.create(names, memory=f"{SHARE_GIB}Gi")
    storm.await_bound(20)
    assert storm.bound() < len(names)  # the rest is under way
    happens(storm)
    storm.scheduling.restart_ended()
    storm.await_bound(len(names))
    storm.check()
    storm.scheduling.await_leader()
