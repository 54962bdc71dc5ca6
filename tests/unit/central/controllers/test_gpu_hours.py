"""Test GPU-seconds by namespace: requested, held and used. The test sets the clock."""

import asyncio

import pytest

from central.controllers import gpu_hours as module
from central.controllers.gpu_hours import OTHERS, GpuHours, UseFeed, gpus_requested
from central.request.model import ContainerRequest, DeviceRequest, Role, Share
from lading.kube.objects import AnnotatedMetadata
from lading.nodedevices import NodeDevices, Status, Use
from lading.vocabulary import GpuUuid
from simnode.reported import read_status
from tests.fakes.kube_objects import NAMESPACE, gpu_uuid, share
from tests.fakes.records import made_faults
from tests.unit.central.world import World


class Rig:
    def __init__(self) -> None:
        self.world = World()
        self.use = UseFeed()
        self.hours = GpuHours(
            self.world.ledger, self.world.pending, self.use, clock=lambda: self.world.now, faults=made_faults()
        )

    def scan(self, after_s: float = 0.0) -> None:
        self.world.now += after_s
        asyncio.run(self.hours.scan())

    def say(self, node: str, *busy: int) -> None:
        uses = tuple(Use(uuid=GpuUuid(gpu_uuid(node, number)), busy_percent=percent) for number, percent in enumerate(busy))
        metadata = NodeDevices(metadata=AnnotatedMetadata(name=node), status=Status(use=uses))
        self.use.changed(metadata)

    def counted(self, namespace: str = NAMESPACE) -> tuple[float, float, float]:
        hours = self.hours
        requested, held, used = (round(each.get(namespace, 0.0), 3) for each in (hours.requested, hours.held, hours.used))
        return requested, held, used


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.world.node("n1", 4)
    return made


def test_a_pod_asks_while_it_waits_and_holds_when_it_is_bound(rig: Rig) -> None:
    rig.world.show("a", {"lading.dev/gpu": "2"})
    rig.scan()
    rig.scan(10)
    assert rig.counted() == (20, 0, 0)
    rig.world.bind("a", "n1", {"lading.dev/gpu": "2"})
    rig.scan()
    rig.scan(5)
    assert rig.counted() == (30, 10, 0)
    rig.world.deleted("a")
    rig.scan()
    rig.scan(100)
    assert rig.counted() == (30, 10, 0)


def test_a_share_counts_as_the_larger_of_its_parts(rig: Rig) -> None:
    rig.world.bind("memory", "n1", share("20Gi", 10))
    rig.world.bind("compute", "n1", share("8Gi", 50))
    rig.scan()
    rig.scan(100)
    assert rig.counted() == (75, 75, 0)  # 20 of 80 GiB, and half of the compute


def test_a_card_works_for_its_pods_by_what_they_hold(rig: Rig) -> None:
    rig.world.bind("a", "n1", share("20Gi", 30), namespace="a")
    rig.world.bind("b", "n1", share("40Gi", 10), namespace="b")
    rig.world.bind("whole", "n1", {"lading.dev/gpu": "1"})
    rig.say("n1", 80, 50, 100)  # the third is not held
    rig.scan()
    rig.scan(100)
    assert rig.counted("a") == (30, 30, 30)
    assert rig.counted("b") == (50, 50, 50)
    assert rig.counted() == (100, 100, 50)


def test_use_counts_from_its_first_report(rig: Rig) -> None:
    rig.world.bind("a", "n1", {"lading.dev/gpu": "1"})
    rig.scan()
    rig.say("n1", 100)
    rig.scan(10)
    rig.scan(10)
    assert rig.counted() == (20, 20, 10)
    rig.use.replaced([], "2")
    rig.scan()
    rig.scan(10)
    assert rig.counted() == (30, 30, 10)


def test_instances_count_as_their_part_of_the_memory() -> None:
    rig = Rig()
    rig.world.node("n1", 0)
    metadata = AnnotatedMetadata(name="n1", resource_version=str(rig.world.next_version()))
    report = NodeDevices(metadata=metadata, status=read_status("mig"))
    rig.world.devices_feed.changed(report)
    annotations = {"lading.dev/mig-profile": "3g.40gb"}
    rig.world.bind("a", "n1", {"lading.dev/gpu": "1"}, annotations=annotations)
    rig.scan()
    rig.scan(1000)
    assert rig.counted()[1] == pytest.approx(499, abs=1)  # 40448 of 81008 MiB


def test_namespaces_have_a_bound(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_NAMESPACES", 2)
    for namespace in "abcd":
        rig.world.show(f"pod-{namespace}", {"lading.dev/gpu": "1"}, namespace=namespace)
    rig.scan()
    rig.scan(10)
    assert set(rig.hours.requested) == {"a", "b", OTHERS}
    assert rig.counted(OTHERS) == (20, 0, 0)


@pytest.mark.parametrize(
    ("ask", "gpus"),
    [
        (DeviceRequest(containers=(ContainerRequest(name="a", gpus=2), ContainerRequest(name="b", gpus=1))), 3),
        (DeviceRequest(containers=(ContainerRequest(name="i", role=Role.INIT, gpus=4), ContainerRequest(name="a", gpus=1))), 4),
        (DeviceRequest(containers=(ContainerRequest(name="a", share=Share(memory_mib=2500, core_percent=10)),)), 0.25),
        (DeviceRequest(containers=(ContainerRequest(name="a", share=Share(memory_mib=2500, core_percent=50, cards=2)),)), 1),
        (DeviceRequest(containers=(ContainerRequest(name="a", gpus=2),), mig_profile="1g.1gb"), 0.2048),
        (DeviceRequest(containers=(ContainerRequest(name="a", vfs=1),)), 0),
    ],
)
def test_the_gpus_that_a_waiting_pod_requests(ask: DeviceRequest, gpus: float) -> None:
    assert gpus_requested(ask, 10_000) == pytest.approx(gpus)


def test_before_any_card_is_known_memory_says_nothing() -> None:
    assert gpus_requested(DeviceRequest(containers=(ContainerRequest(name="a", share=Share(memory_mib=2500)),)), 0.0) == 0
