"""Test changes of VFs by others: drivers, namespaces that end, pods with rights on them."""

from dataclasses import replace

import pytest

from hooks.model.attachment import RdmaMode, Step, VfSettings
from lading.reasons import Reason
from tests.vfs.life import MODES, Node, path_of, pod_of, reason
from tests.vfs.model import UNTOUCHED, Crash

pytestmark = pytest.mark.simulated_time

# ---- a driver that is reloaded, or VFs that are made anew


def make_anew(node: Node, name: str) -> None:
    """Replace the VF's device in the pod by a new one in the host's namespace, and let the PF forget the VF's settings."""
    pod, one = node.kernel.pods[path_of("p1-s0")], node.vfs[0]
    link = pod.links.pop("rdma0")
    node.kernel.host.links[name] = replace(link, name=name, mac=node.before[one.bdf].link.mac, mtu=1500, up=False)  # type: ignore[union-attr]
    node.kernel.table[one.pf, one.index] = UNTOUCHED


@pytest.mark.parametrize("name", ["ens1v0", "eth0", "dev7"])
async def test_the_next_container_brings_in_anew_what_came_back_by_itself(name: str) -> None:
    node = Node()
    (first,) = await node.attached("p1-s0", 0)
    make_anew(node, name)
    (again,) = await node.attached("p1-s0", 0)
    assert again.generation > first.generation
    assert node.place() == path_of("p1-s0")
    assert node.problems() == []
    await node.stopping("p1-s0")
    assert node.all_free()


async def test_looking_for_what_is_attached_takes_nothing_away() -> None:
    node = Node()
    (row,) = await node.attached("p1-s0", 0)
    node.start()  # another daemon: it looks
    node.kernel.fail("host_link")
    assert reason(await node.attach("p1-s0", 0)) is Reason.ATTACH_FAILED
    assert node.row() == row
    assert node.place() == path_of("p1-s0")
    pod = node.kernel.pods[path_of("p1-s0")]
    pod.links["mine"] = replace(pod.links.pop("rdma0"), name="mine")  # the pod chose this name
    assert await node.attached("p1-s0", 0) == (row,)


async def test_an_address_that_is_the_kernels_own_is_not_set() -> None:
    """Check IPoIB's address, which begins with the number of a queue pair."""
    node = Node()
    address, number = "00:00:10:86:fe:80:00:00:00:00:00:00:00:11:22:33:44:55:66:77", "00:00:10:99"
    node.kernel.host.links["ens1v0"] = replace(node.kernel.host.links["ens1v0"], mac=address)
    await node.attacher.attach(node.wanted(0, settings=VfSettings(mtu=2044)), pod_of("p1-s0"))
    pod = node.kernel.pods[path_of("p1-s0")]
    pod.links["rdma0"] = replace(pod.links["rdma0"], mac=number + address[11:])
    await node.stopping("p1-s0")
    assert node.journal.rows() == ()
    assert node.kernel.host.links["ens1v0"].mac.startswith(number)


# ---- a namespace that is gone


@pytest.mark.parametrize("mode", MODES)
async def test_a_namespace_that_is_deleted_still_gets_all_reset(mode: RdmaMode) -> None:
    node = Node(mode=mode)
    node.kernel.late = True
    await node.attach("p1-s0", 0)
    node.end("p1-s0")
    await node.stopping("p1-s0")
    row = node.attachment()
    assert row.failure
    assert node.problems() == []
    node.kernel.arrive()
    await node.reconcile()
    assert node.all_free()


async def test_another_namespace_at_the_same_path_is_not_entered() -> None:
    node = Node()
    await node.attach("p1-s0", 0)
    node.end("p1-s0")
    node.run("p1-s0")
    node.kernel.pods[path_of("p1-s0")].links["rdma0"] = replace(node.kernel.host.links["rdma0"], index=99)
    await node.stopping("p1-s0")
    assert "rdma0" in node.kernel.pods[path_of("p1-s0")].links
    assert node.all_free()


async def test_nor_is_it_when_an_attach_goes_on_after_a_crash() -> None:
    node = Node(parents=False)
    node.kernel.point = lambda at: node.kernel.die() if at == "before configure" else None
    with pytest.raises(Crash):
        await node.attach("p1-s0", 0)
    node.kernel.point = lambda _: None
    node.end("p1-s0")
    node.run("p1-s0")
    pod = node.kernel.pods[path_of("p1-s0")]
    other = pod.links["rdma0"] = replace(node.kernel.host.links["rdma0"], index=99)
    node.start()
    assert reason(await node.attach("p1-s0", 0)) is Reason.ATTACH_FAILED
    assert pod.links == {"rdma0": other}
    assert node.all_free()


# ---- a pod that may configure its network


async def test_a_device_that_a_pod_made_under_our_name_stays_there() -> None:
    node = Node()
    await node.attach("p1-s0", 0)
    pod = node.kernel.pods[path_of("p1-s0")]
    pod.links["mine"] = replace(pod.links.pop("rdma0"), name="mine")
    pod.links["rdma0"] = replace(pod.links["mine"], name="rdma0", index=99, parent="")
    await node.stopping("p1-s0")
    row = node.attachment()
    assert (row.step, bool(row.failure)) == (Step.RETURNING, True)
    assert "rdma0" in pod.links
    node.end("p1-s0")  # with its namespace it comes back, by whatever name
    await node.reconcile()
    assert node.all_free()


# ---- a crash between a move and a new name


@pytest.mark.parametrize("parents", [True, False])
@pytest.mark.parametrize("crashed", [Step.MOVING, Step.RETURNING])
async def test_a_device_that_was_moved_and_not_renamed_is_found(crashed: Step, parents: bool) -> None:
    """Find a device that was moved but not renamed: Linux moves first, and the daemon may be killed in between."""
    node = Node(parents=parents)
    (row,) = await node.attached("p1-s0", 0)
    pod = node.kernel.pods[path_of("p1-s0")]
    name = node.vfs[0].netdev
    pod.links[name] = replace(pod.links.pop("rdma0"), name=name, up=False)
    node.journal.reach(row.bdf, row.generation, crashed)
    node.start()
    if crashed is Step.MOVING:
        (row,) = await node.attached("p1-s0", 0)
        assert row.generation == 1
        assert node.problems() == []
    await node.stopping("p1-s0")
    assert node.all_free()
