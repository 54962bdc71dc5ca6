"""Test what a node would report. `demo-8gpu.json` is what is sent for that profile; a change of it is a change of the wire."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hooks.inventory.read import read_inventory
from hooks.ledger.period import Began, End, past_of, period_of
from hooks.ledger.share_bypass import How, ShareBypass
from hooks.ledger.use import Part
from hooks.model.assignment import Form, GrantedDevices, GrantedGpu, GrantedVf
from hooks.model.grant import Grant, GrantKey
from hooks.model.inventory import Inventory, NvLink, Partition, Pf
from hooks.report.build import MAX_BYPASSES, MAX_CONTAINERS, MAX_TEXT, build_status, coarse_use
from hooks.vendors.nvidia.settings import NvidiaSettings
from hooks.vendors.nvidia.vendor import Nvidia
from lading.devices.isolation import IsolationName
from lading.nodedevices import ContainerUse, Status, Summary, Use
from lading.nodedevices import GrantedGpu as ReportedGpu
from lading.nodedevices import NvLink as ReportedLink
from lading.vocabulary import PciAddress, PodUid
from simnode.nvml import GPU_IS_LOST, Failure, NvmlState
from tests.conftest import BuildNode
from tests.fakes.holders import BOOT, NOW, grant, share, vfs, whole
from tests.unit.hooks.inventories import gpu, inventory, mig_gpu, mig_uuid, uuid, vf

GOLDEN = Path(__file__).with_name("demo-8gpu.json")


def status(result: Inventory, *grants: Grant, **more: Any) -> Status:
    return build_status(result, grants, **{"unmanaged": {}, "reconciled": True, "boot_id": BOOT, "reporter": "1.2.3", **more})


def test_the_demo_node_as_it_is_sent(build_node: BuildNode, fake_nvml: Path) -> None:
    """Check a node with one card lost, one used without a grant, one granted whole with a VF, and one shared."""
    node = build_node("demo-8gpu")
    NvmlState(profile=node.profile, failures=(Failure(gpu=3, status=GPU_IS_LOST),)).write(node.nvml_state)
    result = read_inventory(node.root, vendors=[Nvidia(NvidiaSettings(nvml_library=str(fake_nvml)))])
    cards = [card.uuid for card in result.gpus]
    train = GrantedDevices(gpus=(GrantedGpu(uuid=cards[0]),), vfs=(GrantedVf(bdf=PciAddress("0000:18:00.2"), ifname="rdma0"),))
    side = GrantedDevices(gpus=(GrantedGpu(uuid=cards[1], memory_mib=8138, core_percent=30),))
    grants = (dataclasses.replace(grant("pod-2", "main", side), form=Form.SIGNED, gen=7), grant("pod-1", "train", train))
    built = build_status(result, grants, unmanaged={cards[7]: "process 42"}, reconciled=True, boot_id=BOOT, reporter="1.2.3")
    assert json.loads(msgspec.json.encode(built)) == json.loads(GOLDEN.read_text())
    assert msgspec.json.decode(GOLDEN.read_bytes(), type=Status) == built


def test_a_node_without_devices_has_empty_columns() -> None:
    built = status(Inventory())
    assert built == Status(reporter="1.2.3", boot_id=BOOT, reconciled=True)
    assert built.summary == Summary()


def test_columns() -> None:
    down = dataclasses.replace(inventory(vfs=(vf(0), vf(1))).pfs[0], unhealthy="no port is active")
    well = inventory(gpus=(gpu(0), gpu(1, unhealthy="lost"), mig_gpu(2)), vfs=(vf(2), vf(3, unhealthy="vfio")))
    result = dataclasses.replace(well, pfs=(*well.pfs, down), problems=("cannot read",))
    mine = GrantedDevices(gpus=(GrantedGpu(uuid=uuid(0)),))
    built = status(
        result, grant("a", devices=mine), grant("b", devices=mine), grant("c", devices=vfs(0)), unmanaged={uuid(2): "x"}
    )
    assert (built.summary.gpus, built.summary.models, built.summary.vfs) == ("2/3", "NVIDIA H100", "1/4")
    assert built.summary.held == "2 GPUs, 1 VF"
    assert "lost" in built.summary.problems
    assert "3 more" in built.summary.problems  # the VF, the PF, and what could not be read


def test_a_dirty_card_says_why_unless_it_has_a_holder_or_instances() -> None:
    result = inventory(gpus=(gpu(0), gpu(1), mig_gpu(2), gpu(3)))
    mine = GrantedDevices(gpus=(GrantedGpu(uuid=uuid(1)),))
    built = status(result, grant("a", devices=mine), dirty={uuid(number): "90 MiB of it\n" for number in range(3)})
    assert [card.dirty for card in built.gpus] == ["90 MiB of it\\x0a", "", "", ""]
    assert built.summary.gpus == "4/4"
    assert "dirty: 90 MiB" in built.summary.problems


def test_links_name_cards_and_not_addresses() -> None:
    links = (
        NvLink(count=4, peer=gpu(1).bdf),
        NvLink(count=2, peer=PciAddress("0000:f0:00.0")),  # a card of another virtual machine
        NvLink(count=12),
    )
    built = status(inventory(gpus=(dataclasses.replace(gpu(0), links=links), gpu(1))))
    assert built.gpus[0].links == (ReportedLink(count=4, to=uuid(1)), ReportedLink(count=12))


def test_partitions_are_those_of_which_every_gpu_is_there() -> None:
    pair, half, one = (Partition(id=n, modules=modules) for n, modules in enumerate([(1, 3), (1, 2, 3, 4), (2,)]))
    on_board = tuple(dataclasses.replace(gpu(n), module_id=module) for n, module in enumerate((3, 1, None)))
    result = dataclasses.replace(inventory(gpus=on_board), partitions=(pair, half, one))
    assert [(each.id, each.modules) for each in status(result).partitions] == [(0, (1, 3))]
    assert status(dataclasses.replace(result, gpus=on_board[2:])).partitions == ()


def test_every_kind_of_share_is_distinguished() -> None:
    held = GrantedDevices(
        gpus=(
            GrantedGpu(uuid=uuid(0)),
            GrantedGpu(uuid=uuid(1), memory_mib=1024, pod_wide=True),
            GrantedGpu(uuid=uuid(1), memory_mib=1024, core_percent=10, pod_memory_mib=1536, pod_core_percent=10),
            GrantedGpu(uuid=uuid(2), core_percent=10, core_limit_percent=60, isolation=IsolationName.TOKENS),
            GrantedGpu(uuid=uuid(2), mig_uuid=mig_uuid(20)),
        )
    )
    (reported,) = status(Inventory(), grant(devices=held)).grants
    assert reported.gpus == (
        ReportedGpu(uuid=uuid(0)),
        ReportedGpu(uuid=uuid(1), memory_mib=1024, pod_wide=True),
        ReportedGpu(uuid=uuid(1), memory_mib=1024, core_percent=10, pod_memory_mib=1536, pod_core_percent=10),
        ReportedGpu(uuid=uuid(2), core_percent=10, core_limit_percent=60, isolation="tokens"),
        ReportedGpu(uuid=uuid(2), mig_uuid=mig_uuid(20)),
    )
    assert [gpu.whole for gpu in reported.gpus] == [True, False, False, False, False]


def test_who_held_what_before() -> None:
    held = dataclasses.replace(
        grant("a", devices=GrantedDevices(gpus=whole(0).gpus, vfs=vfs(1).vfs)), form=Form.SIGNED, pod_name="x\n" * 1000
    )
    over = dataclasses.replace(period_of(held, began=Began.CREATED), end=End(at=NOW))
    card, vf_ = status(Inventory(), past=past_of([over])).past
    assert (card.device, vf_.device) == (whole(0).names[0], vfs(1).names[0])
    assert (card.pod, card.namespace, card.container, card.by) == ("a", "default", "train", "signed")
    assert (card.since, card.until) == (held.granted_at, NOW)
    assert len(card.pod_name) == MAX_TEXT
    assert "\n" not in card.pod_name


@pytest.mark.parametrize(("used_mib", "told_mib"), [(0, 0), (127, 0), (128, 256), (383, 256), (384, 512), (81559, 81559)])
@pytest.mark.parametrize(("busy", "told"), [(0, 0), (2, 0), (3, 5), (97, 95), (98, 100), (100, 100)])
def test_what_is_in_use_is_reported_in_steps(used_mib: int, told_mib: int, busy: int, told: int) -> None:
    card = dataclasses.replace(gpu(0), used_mib=used_mib, busy_percent=busy)
    assert coarse_use(inventory(gpus=(card,)), {}) == (Use(uuid=uuid(0), memory_used_mib=told_mib, busy_percent=told),)


def test_of_what_a_card_does_not_tell_nothing_is_reported() -> None:
    cards = (gpu(0), dataclasses.replace(gpu(1), used_mib=512), dataclasses.replace(gpu(2), busy_percent=50))
    assert coarse_use(inventory(gpus=cards), {}) == (Use(uuid=uuid(1), memory_used_mib=512), Use(uuid=uuid(2), busy_percent=50))
    assert status(inventory(gpus=cards)).use == ()  # the reporter adds the use


def test_the_use_of_containers_is_reported_beside_their_cards() -> None:
    parts = {Part(uuid(0), GrantKey(PodUid("b"), "x")): 3000, Part(uuid(0), GrantKey(PodUid("a"), "y")): 100}
    instance = {Part(mig_uuid(11), GrantKey(PodUid("c"), "z")): 10_000}
    card, split, other = coarse_use(
        inventory(gpus=(gpu(0), mig_gpu(1), dataclasses.replace(gpu(2), used_mib=1))), parts | instance
    )
    assert card.containers == (
        ContainerUse(pod=PodUid("a"), container="y", memory_used_mib=0),
        ContainerUse(pod=PodUid("b"), container="x", memory_used_mib=3072),
    )
    assert split.containers == (ContainerUse(pod=PodUid("c"), container="z", memory_used_mib=9984, mig_uuid=mig_uuid(11)),)
    assert other.containers == ()


def test_no_more_containers_are_reported_than_are_taken() -> None:
    many = {Part(uuid(0), GrantKey(PodUid("a"), f"c{number:03}")): 1 for number in range(MAX_CONTAINERS + 1)}
    (card,) = coarse_use(inventory(gpus=(gpu(0),)), many)
    assert len(card.containers) == MAX_CONTAINERS


def test_bypasses_of_shares_are_reported_with_their_pods() -> None:
    one = ShareBypass(
        pod=PodUid("a"), container="c", namespace="n", pod_name="p", card=uuid(0), how=How.PROCESS, process_ids=(7,)
    )
    built = status(Inventory(), share_bypasses=(one,) * (MAX_BYPASSES + 1))
    assert len(built.share_bypasses) == MAX_BYPASSES
    assert (built.share_bypasses[0].pod, built.share_bypasses[0].uuid, built.share_bypasses[0].pod_name) == ("a", uuid(0), "p")
    assert "process 7" in built.share_bypasses[0].why


HELD = [grant("a", "x", whole(0)), grant("a", "y", share(1)), grant("b", "x", vfs(1)), grant("c", "x", vfs(2))]


@given(st.permutations(HELD))
def test_the_order_in_which_grants_came_is_no_news(grants: list[Grant]) -> None:
    assert status(Inventory(), *grants) == status(Inventory(), *HELD)


def test_a_name_that_is_no_text_can_be_sent() -> None:
    pf = Pf(bdf=PciAddress("0000:3b:00.0"), driver="mlx5_core", numa=None, netdev="eth\udcff\n")
    assert msgspec.json.encode(status(Inventory(pfs=(pf,))))
