"""Test the attacher on a model of the kernel: a VF moves into a pod and back; which settings move too, and what is refused."""

import asyncio
from dataclasses import replace

import pytest

from hooks.ledger.reconcile import GRACE_S
from hooks.model.assignment import Refusal
from hooks.model.attachment import Link, RdmaMode, Step, VfConfig, VfSettings
from lading.log import Event
from lading.reasons import Reason
from lading.vocabulary import SandboxId
from tests.vfs.life import MODES, SETTINGS, Node, path_of, pod_of, reason

pytestmark = pytest.mark.simulated_time

# ---- there and back


@pytest.mark.parametrize("mode", MODES)
async def test_a_vf_goes_into_the_pod_and_comes_back_as_it_was(mode: RdmaMode) -> None:
    node = Node(mode=mode)
    (row,) = await node.attached("p1-s0", 0)
    assert row.step is Step.ATTACHED
    assert row.rdma is (mode is RdmaMode.EXCLUSIVE)
    assert node.row() == row
    assert node.problems() == []
    assert node.place() == path_of("p1-s0")
    pod = node.kernel.pods[path_of("p1-s0")]
    assert pod.addresses == {"rdma0": {"10.0.0.2/24"}}
    assert pod.routes == {"rdma0": set(SETTINGS.routes)}
    assert (pod.ibdevs == {node.vfs[0].ibdev}) is (mode is RdmaMode.EXCLUSIVE)
    await node.stopping("p1-s0")
    assert node.all_free()
    assert node.records.events() == [Event.VF_ATTACHED, Event.VF_RELEASED]


async def test_what_no_one_asked_for_is_not_touched() -> None:
    node = Node()
    await node.attacher.attach(node.wanted(0, settings=VfSettings()), pod_of("p1-s0"))
    assert [change.split()[0] for change in node.kernel.changes] == ["move", "configure"]


async def test_the_pf_is_reset_before_the_device_whose_mac_it_insists_on() -> None:
    node = Node()
    await node.attach("p1-s0", 0)
    node.kernel.changes.clear()
    await node.stopping("p1-s0")
    assert [change.split()[0] for change in node.kernel.changes] == [
        *("move", "release_mac", "set_vf", "set_link", "rename", "set_link", "confirm_mac")
    ]
    assert node.kernel.changes[2] == "set_vf 0 vlan max_tx_rate trust"


async def test_what_a_pod_did_to_its_device_is_undone() -> None:
    node = Node()
    await node.attach("p1-s0", 0)
    links = node.kernel.pods[path_of("p1-s0")].links
    links["rdma0"] = replace(links["rdma0"], mac="02:00:00:00:00:66", mtu=576, up=True)
    await node.stopping("p1-s0")
    assert node.all_free()


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("own_macs", [False, True])
@pytest.mark.parametrize("driver", ["igb", "mlx5_core"])
async def test_the_side_that_decided_the_mac_decides_it_again(driver: str, own_macs: bool, trusted: bool) -> None:
    """Check who sets the MAC later: if the PF was given the MAC, the pod cannot change it; afterwards the PF keeps it fixed
    only if it did before."""
    node = Node(driver=driver, own_macs=own_macs, sandboxes=("p1-s0", "p2-s0"))
    settings = replace(SETTINGS, config=replace(SETTINGS.config, trust=trusted))
    for sandbox in ("p1-s0", "p2-s0"):
        rows = await node.attacher.attach(node.wanted(0, settings=settings), pod_of(sandbox))
        assert not isinstance(rows, Refusal), rows
        assert node.problems() == []
        await node.stopping(sandbox)
        assert node.all_free(), node.problems()


async def test_a_vf_whose_own_mac_is_the_wanted_one_is_bound_to_it() -> None:
    node = Node(driver="igb", own_macs=True)
    mac = node.before[node.vfs[0].bdf].config.mac
    await node.attacher.attach(node.wanted(0, settings=VfSettings(config=VfConfig(mac=mac))), pod_of("p1-s0"))
    assert node.shown()[node.vfs[0].bdf].mac_fixed


@pytest.mark.parametrize("ends_by_itself", [False, True])
async def test_what_a_device_keeps_from_its_pod_is_restored(ends_by_itself: bool) -> None:
    node = Node()
    await node.attached("p1-s0", 0)
    for name, value in (("xdp", "driver:7"), ("flags", "noarp promisc"), ("ring-rx", "64")):
        node.kernel.change_kept(node.vfs[0].bdf, name, value)
    if ends_by_itself:
        node.end("p1-s0")
    await node.stopping("p1-s0")
    assert node.all_free()


async def test_a_vf_that_is_not_as_it_was_is_given_to_no_one() -> None:
    node = Node(sandboxes=("p1-s0", "p2-s0"))
    await node.attached("p1-s0", 0)
    node.kernel.change_kept(node.vfs[0].bdf, "xdp", "driver:7")
    node.kernel.fail("restore_kept", count=100)
    await node.stopping("p1-s0")
    row = node.attachment()
    assert "restore_kept" in row.failure
    assert reason(await node.attach("p2-s0", 0)) is Reason.DEVICE_HELD
    node.kernel.heal()
    await node.reconcile()
    assert node.all_free()


async def test_several_vfs_have_names_of_their_own_in_the_order_asked() -> None:
    node = Node(4)
    first = await node.attacher.attach([*node.wanted(3, 2), *node.wanted(0, ifname="rdma0")], pod_of("p1-s0"))
    assert not isinstance(first, Refusal)
    assert [(row.bdf, row.ifname) for row in first] == [
        (node.vfs[3].bdf, "rdma1"),
        (node.vfs[2].bdf, "rdma2"),
        (node.vfs[0].bdf, "rdma0"),
    ]
    (other,) = await node.attached("p1-s0", 1)
    assert other.ifname == "rdma3"
    assert node.problems() == []
    assert await node.attach("p1-s0", 2, 0) == (first[1], first[2])  # the same ones
    await node.stopping("p1-s0")
    assert node.all_free()


async def test_a_name_that_the_pods_namespace_has_is_nobodys_choice() -> None:
    """Check a name that Multus gave before any container was created."""
    node = Node(3)
    pod = node.kernel.pods[path_of("p1-s0")]
    pod.links["rdma0"] = Link(index=99, name="rdma0", mac="02:00:00:00:00:99", mtu=1500, up=True)
    pod.links["net1"] = Link(index=98, name="net1", mac="02:00:00:00:00:98", mtu=1500, up=True, altnames=("rdma1",))
    rows = await node.attached("p1-s0", 0, 1)
    assert sorted(row.ifname for row in rows) == ["rdma2", "rdma3"]
    refused = await node.attacher.attach(node.wanted(2, ifname="rdma0"), pod_of("p1-s0"))
    assert isinstance(refused, Refusal)
    assert refused.reason is Reason.ATTACH_FAILED
    assert all(word in refused.message for word in ("rdma0", "ifname", "k8s.v1.cni.cncf.io/networks"))
    assert node.problems() == []
    assert pod.links["rdma0"].index == 99
    await node.stopping("p1-s0")
    assert node.all_free()


async def test_asked_again_meanwhile_and_after_it_is_one_attachment() -> None:
    node = Node()
    outcomes = await asyncio.gather(*(node.attached("p1-s0", 0) for _ in range(3)))
    assert len({row.generation for (row,) in outcomes}) == 1
    changes = list(node.kernel.changes)
    assert await node.attach("p1-s0", 0) == outcomes[0]
    assert node.kernel.changes == changes
    assert node.records.events() == [Event.VF_ATTACHED]


async def test_what_was_verified_is_not_verified_again_until_something_changes() -> None:
    """Check that a retry continues the check of the attached VF that began before. A check that began anew with each retry
    would never end if it takes longer than the runtime waits."""
    node = Node(mode=RdmaMode.EXCLUSIVE)
    asked: list[str] = []
    (first,) = await node.attached("p1-s0", 0)
    node.kernel.point = asked.append
    await node.attached("p1-s0", 0)
    assert asked == []
    node.start()  # another daemon knows nothing
    await node.attached("p1-s0", 0)
    assert "before host_link" in asked
    asked.clear()
    await node.attached("p1-s0", 0)
    assert asked == []
    node.kernel.reload_ibdev(node.vfs[0].bdf, "mlx5_9")
    (again,) = await node.attached("p1-s0", 0)
    assert again.generation > first.generation
    assert node.problems() == []


async def test_different_pods_go_in_parallel() -> None:
    node = Node(3, sandboxes=("p0-s0", "p1-s0", "p2-s0"))
    await asyncio.gather(*(node.attach(f"p{number}-s0", number) for number in range(3)))
    assert [node.place(number) for number in range(3)] == [path_of(f"p{number}-s0") for number in range(3)]
    await asyncio.gather(*(node.stopping(f"p{number}-s0") for number in range(3)))
    assert node.all_free()
    steps = [change for change in node.kernel.changes if change.startswith("set_vf")]
    assert [step.split()[1] for step in steps[:3]] == ["0", "1", "2"]  # each had begun before one was done


# ---- what is brought into the pod


async def test_without_a_network_device_nothing_has_to_be_done_in_shared_mode() -> None:
    node = Node()
    assert await node.attacher.attach(node.wanted(0, netdev=False), pod_of("p1-s0")) == ()
    assert node.kernel.changes == []


async def test_without_a_network_device_the_rdma_device_goes_in_exclusive_mode() -> None:
    node = Node(mode=RdmaMode.EXCLUSIVE)
    await node.attacher.attach(node.wanted(0, netdev=False), pod_of("p1-s0"))
    assert node.kernel.where_ibdev(node.vfs[0].ibdev) == path_of("p1-s0")
    assert node.place() == ""
    assert node.problems() == []
    await node.stopping("p1-s0")
    assert node.all_free()
    assert [change.split()[0] for change in node.kernel.changes] == ["move", "move"]


async def test_an_infiniband_vf_may_have_no_network_device() -> None:
    node = Node(ethernet=False)
    settings = VfSettings(config=VfConfig(trust=True))
    await node.attacher.attach(node.wanted(0, settings=settings), pod_of("p1-s0"))
    row = node.attachment()
    assert row.netdev is None
    assert node.problems() == []
    await node.stopping("p1-s0")
    assert node.all_free()
    assert node.kernel.changes == ["set_vf 0 trust", "set_vf 0 trust"]


async def test_a_release_that_waited_finds_another_generation_and_does_nothing() -> None:
    """Start a release for the old sandbox, and let it continue when the VF has a new owner."""
    node = Node()
    (old,) = await node.attached("p1-s0", 0)
    async with node.attacher._locks[old.bdf]:
        late = asyncio.create_task(node.attacher._release_own(old.bdf, old.generation))
        await asyncio.sleep(0)
        assert await node.attacher._release(old) == ""
        node.journal.begin(replace(old, sandbox=SandboxId("p1-s1"), netns=path_of("p1-s1"), step=Step.RECORDED))
    await late
    row = node.attachment()
    assert (row.sandbox, row.step) == ("p1-s1", Step.RECORDED)


# ---- refused


async def test_host_network_is_refused() -> None:
    node = Node()
    node.netns[SandboxId("p1-s0")] = ""
    assert reason(await node.attach("p1-s0", 0)) is Reason.HOST_NETWORK
    assert node.all_free()


@pytest.mark.parametrize("told", [None, "/run/netns/gone"])
async def test_a_namespace_that_is_not_found_is_refused(told: str | None) -> None:
    node = Node()
    node.netns[SandboxId("p1-s0")] = told
    assert reason(await node.attach("p1-s0", 0)) is Reason.ATTACH_FAILED
    assert node.all_free()


async def test_a_device_that_someone_else_took_is_not_searched() -> None:
    node = Node()
    link = node.kernel.host.links.pop(node.vfs[0].netdev)
    node.kernel.add_netns("/run/netns/other")
    node.kernel.pods["/run/netns/other"].links[link.name] = link
    assert reason(await node.attach("p1-s0", 0)) is Reason.ATTACH_FAILED
    assert node.journal.rows() == ()
    assert node.kernel.changes == []


async def test_a_stopped_sandbox_is_not_attached_to() -> None:
    node = Node()
    node.stopped.add(SandboxId("p1-s0"))
    assert reason(await node.attach("p1-s0", 0)) is Reason.SANDBOX_STOPPED
    assert node.all_free()


async def test_a_late_create_in_a_stopped_sandbox_leaves_the_vf_to_its_holder() -> None:
    node = Node(sandboxes=("p1-s0", "p2-s0"))
    await node.stopping("p1-s0")
    (row,) = await node.attached("p2-s0", 0)
    assert reason(await node.attach("p1-s0", 0)) is Reason.SANDBOX_STOPPED
    assert node.row() == row
    assert node.problems() == []


async def test_another_pod_does_not_get_what_has_not_come_back() -> None:
    node = Node(sandboxes=("p1-s0", "p2-s0"))
    await node.attach("p1-s0", 0)
    assert reason(await node.attach("p2-s0", 0)) is Reason.DEVICE_HELD
    node.kernel.fail("move_out", count=2)
    await node.stopping("p1-s0")
    node.ready.discard(SandboxId("p1-s0"))
    node.now += GRACE_S
    await node.reconcile()
    assert reason(await node.attach("p2-s0", 0)) is Reason.DEVICE_HELD
    await node.reconcile()
    assert node.all_free()
    await node.attach("p2-s0", 0)
    assert node.place() == path_of("p2-s0")
    assert node.problems() == []
