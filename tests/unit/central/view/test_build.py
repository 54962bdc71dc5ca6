"""Test what a node's view says of devices, holders and places; and what totals count."""

from typing import Any

import msgspec
import pytest

from central.view.build import node_view, totals
from central.view.model import DeviceState, NodeState, NodeView
from lading.nodedevices import NodeDevices
from simnode.reported import read_status
from tests.fakes.capacities import CARD_MIB
from tests.fakes.kube_objects import Json, devices, gpu_uuid, grant, share, vf_address, vfs
from tests.unit.central.world import World, uid_of


class Node:
    """Hold one node `n1` and its latest report."""

    def __init__(self, gpus: int = 2, vf_count: int = 0, **options: Any) -> None:
        self.world = World()
        self.world.readiness("n1", True)
        self.report = self._tell(devices("n1", gpus, vf_count, version=self.world.next_version(), **options))

    def _tell(self, text: Json) -> NodeDevices:
        report = msgspec.convert(text, NodeDevices)
        self.world.devices_feed.changed(report)
        return report

    def change(self, **status: Any) -> None:
        """Change these fields of the report's status."""
        text = msgspec.to_builtins(self.report)
        text["metadata"]["resourceVersion"] = str(self.world.next_version())
        self.report = self._tell(text | {"status": text["status"] | status})

    def change_gpu(self, number: int, **options: Any) -> None:
        gpus = list(msgspec.to_builtins(self.report)["status"]["gpus"])
        gpus[number] |= options
        self.change(gpus=gpus)

    @property
    def view(self) -> NodeView:
        return node_view(self.world.ledger, self.report, "n1")


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def one_card() -> Node:
    return Node(1)


def test_a_free_card_has_no_holders() -> None:
    (gpu, _) = Node().view.gpus
    assert (gpu.state, gpu.held_mib, gpu.held_percent, gpu.holders) == (DeviceState.FREE, 0, 0, ())


def test_a_whole_card_is_held_with_all_that_it_has(node: Node) -> None:
    node.world.bind("train", "n1")
    held, free = node.view.gpus
    assert (held.state, held.held_mib, held.held_percent) == (DeviceState.HELD, CARD_MIB, 100)
    assert [(one.pod, one.namespace, one.claims, one.whole) for one in held.holders] == [("train", "default", ("bound",), True)]
    assert free.state is DeviceState.FREE


def test_shares_add_up_and_leave_the_rest(one_card: Node) -> None:
    one_card.world.bind("a", "n1", share("8Gi", 30))
    one_card.world.bind("b", "n1", share("4Gi", 20))
    (gpu,) = one_card.view.gpus
    assert (gpu.state, gpu.held_mib, gpu.held_percent) == (DeviceState.SHARED, 12288, 50)
    assert [(one.pod, one.memory_mib, one.core_percent) for one in gpu.holders] == [("a", 8192, 30), ("b", 4096, 20)]


def test_the_isolations_of_shares_and_of_their_node(one_card: Node) -> None:
    one_card.change(isolations=("tokens", "none"))
    one_card.world.bind("a", "n1", share("8Gi", 30))
    one_card.world.bind("b", "n1", share("4Gi"))
    (gpu,) = one_card.view.gpus
    assert [(one.pod, one.isolation) for one in gpu.holders] == [("a", "tokens"), ("b", "tokens")]
    assert one_card.view.isolations == ("tokens", "none")


def test_a_card_without_memory_left_is_held(one_card: Node) -> None:
    one_card.world.bind("a", "n1", share("40Gi", 10))
    one_card.world.bind("b", "n1", share("40Gi", 10))
    assert one_card.view.gpus[0].state is DeviceState.HELD


def test_containers_are_those_of_the_nodes_grants(node: Node) -> None:
    node.world.bind("train", "n1")
    node.change(grants=[grant(uid_of("train"), "n1", 0)])
    (holder,) = node.view.gpus[0].holders
    assert (holder.claims, holder.containers) == (("bound", "granted"), ("main",))


def test_a_grant_without_a_pod_is_a_holder_too() -> None:
    node = Node(grants=[grant("uid-nobody", "n1", 1) | {"podName": "gone", "namespace": "ns"}])
    (holder,) = node.view.gpus[1].holders
    assert (holder.uid, holder.pod, holder.namespace, holder.claims) == ("uid-nobody", "gone", "ns", ("granted",))


@pytest.mark.parametrize("said", [{"unhealthy": "GPU is lost"}, {"usedBy": "pod ns/stranger"}, {"dirty": "90 MiB of it"}])
def test_an_unusable_card_says_why_and_keeps_its_holders(node: Node, said: Json) -> None:
    node.world.bind("train", "n1")
    node.change_gpu(0, **said)
    gpu = node.view.gpus[0]
    assert gpu.state is DeviceState.UNUSABLE
    assert next(iter(said.values())) in gpu.why
    assert (gpu.cordoned, [one.pod for one in gpu.holders]) == (False, ["train"])


def test_a_cordoned_card_is_reported_to_be() -> None:
    node = Node(cordon=gpu_uuid("n1", 1))
    ready, cordoned = node.view.gpus
    assert (ready.cordoned, ready.state) == (False, DeviceState.FREE)
    assert (cordoned.cordoned, cordoned.state) == (True, DeviceState.UNUSABLE)
    assert node.view.cordon == gpu_uuid("n1", 1)


def test_a_cordon_of_what_is_not_there_is_a_problem() -> None:
    assert Node(cordon="all").view.problems == ()
    (problem,) = Node(cordon="GPU-misspelt").view.problems
    assert "gpu-misspelt" in problem


def test_use_is_beside_what_is_held_and_not_added_to_it(node: Node) -> None:
    node.change(use=[{"uuid": gpu_uuid("n1", 0), "memoryUsedMiB": 512}], usedAt=1000)
    used, unknown = node.view.gpus
    assert used.use is not None
    assert (used.use.memory_mib, used.use.busy_percent, used.use.at) == (512, None, 1000)
    assert (used.held_mib, unknown.use) == (0, None)


def test_the_use_of_a_pod_is_the_sum_of_its_containers_if_each_is_reported(one_card: Node) -> None:
    for pod in ("a", "b"):
        one_card.world.bind(pod, "n1", share("8Gi", 30))
    card = gpu_uuid("n1", 0)
    grants = [grant(uid_of(pod), "n1", 0) | {"container": name} for pod, name in (("a", "x"), ("a", "y"), ("b", "x"))]
    each = [
        {"pod": uid_of(pod), "container": name, "memoryUsedMiB": mib}
        for pod, name, mib in (("a", "x", 256), ("a", "y", 512), ("b", "x", 0))
    ]
    one_card.change(grants=grants, use=[{"uuid": card, "containers": each}], usedAt=1000)
    assert [(one.pod, one.used_mib) for one in one_card.view.gpus[0].holders] == [("a", 768), ("b", 0)]
    one_card.change(use=[{"uuid": card, "containers": each[1:]}])
    assert [(one.pod, one.used_mib) for one in one_card.view.gpus[0].holders] == [("a", None), ("b", 0)]


def test_vfs_have_one_state_each() -> None:
    node = Node(1, 3)
    node.world.bind("net", "n1", vfs(1))
    (held,) = [vf for pf in node.view.pfs for vf in pf.vfs if vf.holders]
    assert (held.state, held.holders[0].pod) == (DeviceState.HELD, "net")
    port = msgspec.to_builtins(node.report)["status"]["pfs"][0]
    port["vfs"][2]["unhealthy"] = "no driver"
    node.change(pfs=[port])
    (pf,) = node.view.pfs
    assert [vf.state for vf in pf.vfs] == [DeviceState.HELD, DeviceState.FREE, DeviceState.UNUSABLE]
    assert pf.vfs[2].why == "no driver"


def test_a_nic_shows_its_rail_where_the_node_reports_it() -> None:
    node = Node(1, 2)
    port = msgspec.to_builtins(node.report)["status"]["pfs"][0]
    assert [pf.rail for pf in node.view.pfs] == [None]
    node.change(pfs=[port | {"rail": 0}])
    assert [pf.rail for pf in node.view.pfs] == [0]


def test_an_ill_nic_is_why_its_vfs_reach_no_one() -> None:
    node = Node(1, 2)
    port = msgspec.to_builtins(node.report)["status"]["pfs"][0] | {"unhealthy": "link is down"}
    node.change(pfs=[port])
    (pf,) = node.view.pfs
    assert pf.why == "link is down"
    assert [(vf.state, vf.why) for vf in pf.vfs] == [(DeviceState.UNUSABLE, "link is down")] * 2


def test_instances_of_a_card_in_mig_mode(one_card: Node) -> None:
    mig = [
        {"uuid": f"MIG-{n}", "gpuInstance": n, "computeInstance": 0, "memoryMiB": CARD_MIB // 4, "profile": "2g.20gb"}
        for n in range(2)
    ]
    taken = [{"pod": "uid-x", "container": "main", "gpus": [{"uuid": gpu_uuid("n1", 0), "migUuid": "MIG-0"}]}]
    one_card.change_gpu(0, migEnabled=True, mig=mig)
    one_card.change(grants=taken)
    (gpu,) = one_card.view.gpus
    assert (gpu.state, gpu.held_mib, gpu.held_percent) == (DeviceState.SHARED, CARD_MIB // 4, 25)
    assert [(one.state, [holder.uid for holder in one.holders]) for one in gpu.mig] == [
        (DeviceState.HELD, ["uid-x"]),
        (DeviceState.FREE, []),
    ]
    assert gpu.holders[0].mig == ("MIG-0",)


def test_positions_of_a_card_that_is_divided_on_demand(one_card: Node) -> None:
    """Check that held MIG instances are shown one by one, and possible instances as numbers."""
    large = {"memoryMiB": CARD_MIB // 2, "profile": "3g.40gb", "computeInstance": 0, "slices": 4}
    small = {"memoryMiB": CARD_MIB // 8, "profile": "1g.10gb", "computeInstance": 0, "slices": 1}
    mig = [{"uuid": f"MIG-3g@{start}", "gpuInstance": start, **large} for start in (0, 4)]
    mig += [{"uuid": f"MIG-1g@{start}", "gpuInstance": start, **small} for start in range(7)]
    one_card.change_gpu(0, migEnabled=True, mig=mig)
    assert one_card.view.gpus[0].mig == ()
    assert one_card.view.gpus[0].mig_positions == ("2 x 3g.40gb", "7 x 1g.10gb")
    taken = [{"pod": "uid-x", "container": "main", "gpus": [{"uuid": gpu_uuid("n1", 0), "migUuid": "MIG-1g@6"}]}]
    one_card.change(grants=taken)
    (gpu,) = one_card.view.gpus
    assert (gpu.state, gpu.held_mib, gpu.mig_positions) == (DeviceState.SHARED, CARD_MIB // 8, ("1 x 3g.40gb", "6 x 1g.10gb"))
    assert [(one.uuid, one.state) for one in gpu.mig] == [("MIG-1g@6", DeviceState.HELD)]


def test_a_device_with_several_holders_is_a_problem() -> None:
    grants = [
        {"pod": f"uid-{n}", "podName": f"pod-{n}", "namespace": "ns", "container": "main", "vfs": [vf_address(0)]} for n in "ab"
    ]
    view = Node(0, 1, grants=grants).view
    (problem,) = view.problems
    assert vf_address(0) in problem
    assert "ns/pod-a" in problem
    assert "ns/pod-b" in problem


def test_states_of_a_node() -> None:
    assert Node().view.state is NodeState.READY
    assert Node(reconciled=False).view.state is NodeState.NOT_RECONCILED
    node = Node(boot_id="a")
    node.world.readiness("n1", True, boot_id="b")
    assert node.view.state is NodeState.REBOOTED
    node = Node(reconciled=False)
    node.world.readiness("n1", False)
    assert node.view.state is NodeState.UNREACHABLE


@pytest.mark.parametrize("away", [True, False], ids=["unreachable", "not-reconciled"])
def test_a_node_that_gives_nothing_withholds_what_no_one_holds(away: bool) -> None:
    node = Node(4, 3)
    node.world.bind("train", "n1", {"lading.dev/gpu": "1", "lading.dev/rdma": "1"})
    node.world.bind("a", "n1", share("8Gi", 30))
    node.change_gpu(3, unhealthy="XID 79")
    if away:
        node.world.readiness("n1", False)
    else:
        node.change(reconciled=False)
    view = node.view
    assert sorted(gpu.state for gpu in view.gpus) == [
        DeviceState.HELD,
        DeviceState.UNUSABLE,
        DeviceState.WITHHELD,
        DeviceState.WITHHELD,
    ]
    assert sorted(vf.state for pf in view.pfs for vf in pf.vfs) == [
        DeviceState.HELD,
        DeviceState.WITHHELD,
        DeviceState.WITHHELD,
    ]
    sums = totals([view])
    assert (sums.gpus_free, sums.gpus_shared, sums.gpus_held, sums.gpus_withheld, sums.gpus_unusable) == (0, 0, 1, 2, 1)
    assert (sums.vfs_free, sums.vfs_held, sums.vfs_withheld, sums.vfs_unusable) == (0, 1, 2, 0)


def test_without_a_report_who_holds_something_is_a_problem(node: Node) -> None:
    node.world.bind("train", "n1")
    view = node_view(node.world.ledger, None, "n1")
    assert (view.state, view.gpus) == (NodeState.NO_REPORT, ())
    assert "default/train" in view.problems[0]
    assert node_view(World().ledger, None, "n2").problems == ()


def _reported(profile: str) -> NodeView:
    text = {"metadata": {"name": "n1"}, "status": msgspec.to_builtins(read_status(profile))}
    world = World()
    report = msgspec.convert(text, NodeDevices)
    world.devices_feed.changed(report)
    return node_view(world.ledger, report, "n1")


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ("demo-8gpu", [(0, 0, 2, 2), (0, 0, 2, 2), (1, 1, 2, 2), (1, 1, 2, 2)]),
        ("workstation", [(None, None, 1, 0)]),
        ("mig", [(0, 0, 2, 0)]),
    ],
)
def test_groups_are_switches_in_order_of_socket_and_address(
    profile: str, expected: list[tuple[int | None, int | None, int, int]]
) -> None:
    groups = _reported(profile).groups
    assert [(one.socket, one.numa, len(one.gpus), len(one.pfs)) for one in groups] == expected


@pytest.mark.parametrize("profile", ["demo-8gpu", "dgx-a100", "dgx-h100", "mn2a", "mn2a-one-bridge", "pcie-8gpu", "mig"])
def test_every_device_is_in_one_group(profile: str) -> None:
    view = _reported(profile)
    assert sorted(uuid for one in view.groups for uuid in one.gpus) == sorted(gpu.uuid for gpu in view.gpus)
    assert sorted(bdf for one in view.groups for bdf in one.pfs) == sorted(pf.bdf for pf in view.pfs)


def test_a_switch_of_switches_is_one_group_and_root_ports_are_several() -> None:
    assert len(_reported("dgx-a100").groups) < len(_reported("dgx-a100").gpus)
    assert all(len(one.gpus) <= 1 for one in _reported("pcie-8gpu").groups)


def test_indices_follow_addresses() -> None:
    gpus = _reported("demo-8gpu").gpus
    assert [gpu.index for gpu in gpus] == list(range(8))
    assert sorted(gpus, key=lambda gpu: gpu.bdf) == list(gpus)


def test_totals_count_each_device_once() -> None:
    node = Node(4, 3, cordon=gpu_uuid("n1", 3))
    node.world.bind("whole", "n1")
    node.world.bind("part", "n1", share("8Gi", 30))
    node.world.bind("net", "n1", vfs(2))
    sums = totals([node.view, node_view(node.world.ledger, None, "n2")])
    assert (sums.gpus, sums.gpus_free, sums.gpus_shared, sums.gpus_held, sums.gpus_unusable) == (4, 1, 1, 1, 1)
    assert (sums.memory_mib, sums.held_mib) == (4 * CARD_MIB, CARD_MIB + 8192)
    assert (sums.core_percent, sums.held_percent) == (400, 130)
    assert (sums.vfs, sums.vfs_free, sums.vfs_held, sums.vfs_unusable) == (3, 1, 2, 0)
    assert (sums.nodes, sums.nodes_not_ready) == (2, 1)


@pytest.mark.parametrize(
    ("use", "idle"),
    [
        ({"memoryUsedMiB": 1023, "busyPercent": 0}, True),
        ({"memoryUsedMiB": 0}, True),
        ({"busyPercent": 0}, True),
        ({"memoryUsedMiB": 1024, "busyPercent": 0}, False),
        ({"memoryUsedMiB": 0, "busyPercent": 5}, False),
        ({}, False),  # the card tells nothing
        (None, False),
    ],
)
def test_a_card_idles_where_its_node_says_that_nothing_of_it_is_used(node: Node, use: Json | None, idle: bool) -> None:
    node.world.bind("train", "n1")
    node.change(use=[{"uuid": gpu_uuid("n1", card)} | use for card in (0, 1)] if use is not None else [])
    held, free = node.view.gpus
    assert (held.idle, free.idle) == (idle, False)
    assert totals([node.view]).gpus_idle == int(idle)


def test_a_card_in_mig_mode_without_an_instance_is_not_free(node: Node) -> None:
    node.change_gpu(0, migEnabled=True)
    without, free = node.view.gpus
    assert (without.state, free.state) == (DeviceState.UNUSABLE, DeviceState.FREE)
    assert "MIG" in without.why
    assert totals([node.view]).gpu_counts == (1, 0, 1)


def test_a_node_that_is_unschedulable_has_no_free_devices() -> None:
    node = Node(vf_count=1)
    node.world.bind("train", "n1")
    _, before = node.world.ledger.claims_changed_since(-1)
    node.world.cordon("n1")
    assert node.world.ledger.claims_changed_since(before)[0] == ["n1"]  # the page shows it
    assert node.view.state is NodeState.UNSCHEDULABLE
    assert [gpu.state for gpu in node.view.gpus] == [DeviceState.HELD, DeviceState.WITHHELD]
    assert node.view.pfs[0].vfs[0].state is DeviceState.WITHHELD
    assert totals([node.view]).nodes_not_ready == 0
