"""Test that the shipped nodes are as docs/reference.md describes them, by their reports."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from central.assignment.annotation import render_assignment
from central.request.model import DeviceRequest, PartitionPolicy, Policy
from central.search.fit import fit
from central.search.placement import Placement
from central.search.topology import Distance, distance
from hooks.grant.cards import UnassignedPolicy
from hooks.grant.decide import Rules, View, decide
from hooks.grant.pod import PodPolicy
from hooks.grant.rdma import RdmaInjection
from hooks.inventory.read import read_inventory
from hooks.isolation.unenforced import Unenforced
from hooks.model.assignment import Form, Trust
from hooks.model.container import Answer, Container, Sandbox
from hooks.vendors.nvidia.settings import NvidiaSettings
from hooks.vendors.nvidia.vendor import Nvidia
from lading.nodedevices import Gpu, Pf, Status
from lading.vocabulary import ASSIGNMENT, PodUid
from simnode.reported import build_reported, read_status
from tests.conftest import BuildNode
from tests.fakes.capacities import reported_capacity, request, whole


def switches(status: Status) -> dict[tuple[str, ...], tuple[list[int], list[str]]]:
    """Return cards by index and NICs below one upstream port. A function on a root port of its own is below no switch."""
    groups: dict[tuple[str, ...], tuple[list[int], list[str]]] = {}
    for index, gpu in enumerate(status.gpus):
        if len(gpu.place.path) > 2:
            groups.setdefault(gpu.place.path[:3], ([], []))[0].append(index)
    for pf in status.pfs:
        if len(pf.place.path) > 2:
            groups.setdefault(pf.place.path[:3], ([], []))[1].append(pf.ibdev)
    return groups


def host_bridges(devices: Iterable[Gpu | Pf]) -> int:
    return len({device.place.path[0] for device in devices})


PAIRS = [([0, 1], ["mlx5_0"]), ([2, 3], ["mlx5_1"]), ([4, 5], ["mlx5_2"]), ([6, 7], ["mlx5_3"])]


@pytest.mark.parametrize(("name", "bridges"), [("mn2a", 4), ("mn2a-one-bridge", 2)])
def test_mn2a_has_two_cards_and_a_nic_on_each_of_four_switches(name: str, bridges: int) -> None:
    status = read_status(name)
    assert list(switches(status).values()) == PAIRS
    assert host_bridges(status.gpus) == bridges
    assert {len(pf.vfs) for pf in status.pfs} == {4}
    assert [(gpu.place.numa, gpu.place.socket) for gpu in status.gpus] == [(0, 0)] * 4 + [(1, 1)] * 4


def test_dgx_a100_has_four_numa_nodes_with_two_cards_and_two_nics() -> None:
    status = read_status("dgx-a100")
    assert list(switches(status).values()) == [
        ([0, 1], ["mlx5_0", "mlx5_1"]),
        ([2, 3], ["mlx5_2", "mlx5_3"]),
        ([4, 5], ["mlx5_6", "mlx5_7"]),
        ([6, 7], ["mlx5_8", "mlx5_9"]),
    ]
    assert [gpu.place.numa for gpu in status.gpus] == [3, 3, 1, 1, 7, 7, 5, 5]
    assert [gpu.place.socket for gpu in status.gpus] == [0] * 4 + [1] * 4
    assert [pf.ibdev for pf in status.pfs if not pf.vfs] == ["mlx5_4", "mlx5_5", "mlx5_10", "mlx5_11"]  # storage
    assert {tuple((link.count, link.to) for link in gpu.links) for gpu in status.gpus} == {((12, ""),)}
    assert len(status.partitions) == 15


def test_dgx_a100_has_several_switches_between_any_two_devices_of_a_numa_node() -> None:
    """Check two devices for which `nvidia-smi topo -m` prints PXB."""
    status = read_status("dgx-a100")
    places = [*(gpu.place for gpu in status.gpus), *(pf.place for pf in status.pfs if pf.vfs)]
    beside = [distance(one, other) for one, other in combinations(places, 2) if one.numa == other.numa]
    assert Counter(beside) == {Distance.SWITCHES: 4 * 6}


def test_dgx_h100_has_a_nic_beside_each_card() -> None:
    status = read_status("dgx-h100")
    assert list(switches(status).values()) == [
        ([number], [f"mlx5_{nic}"]) for number, nic in enumerate((0, 3, 4, 5, 6, 9, 10, 11))
    ]
    assert [gpu.bdf[5:7] for gpu in status.gpus] == ["1b", "43", "52", "61", "9d", "c3", "d1", "df"]
    assert [pf.bdf[5:7] for pf in status.pfs if pf.vfs] == ["18", "40", "4f", "5e", "9a", "c0", "ce", "dc"]
    assert [gpu.place.numa for gpu in status.gpus] == [0] * 4 + [1] * 4
    assert [gpu.module_id for gpu in status.gpus] == [5, 7, 6, 8, 1, 3, 2, 4]
    assert {tuple((link.count, link.to) for link in gpu.links) for gpu in status.gpus} == {((18, ""),)}
    assert Counter(len(partition.modules) for partition in status.partitions) == {8: 1, 4: 2, 2: 4, 1: 8}


def test_a_box_without_switches_has_a_root_port_for_each_card() -> None:
    status = read_status("pcie-8gpu")
    assert switches(status) == {}
    assert len({gpu.place.path for gpu in status.gpus}) == 8
    assert host_bridges(status.gpus) == 4
    assert [(pf.place.path[0], pf.place.socket) for pf in status.pfs] == [("pci0000:40", 0), ("pci0000:c0", 1)]
    assert {gpu.links for gpu in status.gpus} == {()}
    assert (status.partitions, {gpu.module_id for gpu in status.gpus}) == ((), {None})


def test_a_workstations_numa_node_is_unknown() -> None:
    (gpu,) = read_status("workstation").gpus
    assert (gpu.place.numa, gpu.place.socket, gpu.module_id) == (None, None, None)


PAIR = replace(request(whole("train", 2, vfs=2)), partition=PartitionPolicy.HONOR)
MIG = replace(request(whole("train")), mig_profile="2g.20gb")


@pytest.mark.parametrize(
    ("name", "pod", "count"),
    [
        ("mn2a", request(whole("train", 2, vfs=2)), 2),
        ("mn2a-one-bridge", request(whole("train", 2, vfs=2)), 2),
        ("dgx-a100", request(whole("train", 4, vfs=4)), 4),
        ("dgx-h100", request(whole("train", 8, vfs=8)), 8),
        ("pcie-8gpu", request(whole("train", 2, vfs=1)), 2),
        ("workstation", request(whole("train")), 1),
        ("mig", MIG, 1),
        ("dgx-h100", PAIR, 2),
    ],
)
def test_a_node_grants_the_devices_that_central_places_there(
    build_node: BuildNode, fake_nvml: Path, name: str, pod: DeviceRequest, count: int
) -> None:
    """Check the way from the node's reading over its report, central's choice and the annotation to the node's decision."""
    uid = PodUid("11111111-2222-3333-4444-555555555555")
    node = build_node(name)
    result = fit(reported_capacity(build_reported(node, fake_nvml)), pod, policy=Policy.BINPACK)
    assert isinstance(result, Placement), result
    placed = result.containers["train"]
    roles = [(container.name, container.role) for container in pod.containers]
    sandbox = Sandbox(id="s0", uid=uid, annotations={ASSIGNMENT: render_assignment(uid, "n1", 1, result.containers, roles)})
    rules = Rules(
        node_name="n1",
        trust=Trust(accepted=frozenset({Form.UNSIGNED})),
        pod=PodPolicy(),
        unassigned=UnassignedPolicy(),
        vendors=(Nvidia(),),
        isolations=(Unenforced(),),
        rdma=RdmaInjection(),
    )
    view = View(inventory=read_inventory(node.root, vendors=[Nvidia(NvidiaSettings(nvml_library=str(fake_nvml)))]))
    answer = decide(sandbox, Container(name="train"), rules, view)
    assert isinstance(answer, Answer), answer
    assert answer.grant
    granted = answer.grant.devices
    assert len(granted.gpus) == count
    assert [(gpu.uuid, gpu.mig_uuid) for gpu in granted.gpus] == [(gpu.uuid, gpu.mig_uuid) for gpu in placed.gpus]
    assert [vf.bdf for vf in granted.vfs] == [vf.bdf for vf in placed.vfs]
    if pod is PAIR:
        module_of = {gpu.uuid: gpu.module_id for gpu in view.inventory.gpus}
        assert {module_of[gpu.uuid] for gpu in granted.gpus} in [{1, 3}, {2, 4}, {5, 7}, {6, 8}]
