"""Test the names that a pod gave to its devices: no device waits for a name, and each gets its own back."""

from dataclasses import replace

import pytest

from hooks.attach.plan import parking_name
from hooks.ledger.attachment import render_attachment
from hooks.ledger.reconcile import GRACE_S
from hooks.model.attachment import RdmaMode
from tests.vfs.life import Node, path_of
from tests.vfs.model import vf

pytestmark = pytest.mark.simulated_time

# ---- network devices


def give_altnames(node: Node, sandbox: str, *altnames: str, name: str = "rdma0") -> None:
    links = node.kernel.pods[path_of(sandbox)].links
    links[name] = replace(links[name], altnames=altnames)


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("altname", ["ens1v1", parking_name(vf(1).bdf)])
async def test_a_name_that_a_pod_gave_besides_keeps_no_other_vf_from_coming_back(altname: str, ended: bool) -> None:
    node = Node(sandboxes=("p1-s0", "p2-s0"))
    await node.attach("p1-s0", 0)
    await node.attach("p2-s0", 1)
    give_altnames(node, "p1-s0", altname, "more")
    if ended:  # the pod's device comes back with all of its names, and no one has looked yet
        node.end("p1-s0")
    else:
        await node.stopping("p1-s0")
        assert node.kernel.host.links["ens1v0"].altnames == ()
    await node.stopping("p2-s0")
    assert node.row(1) is None
    await node.stopping("p1-s0")
    assert node.all_free()


@pytest.mark.parametrize("kept", [True, False])
async def test_alternative_names_that_the_host_gave_come_back(kept: bool) -> None:
    node = Node()
    given = ("enp59s0f0v0", "enx02005e000000")
    node.kernel.host.links["ens1v0"] = replace(node.kernel.host.links["ens1v0"], altnames=(*given, "two words"))
    node.before = node.shown()
    (row,) = await node.attached("p1-s0", 0)
    assert row.netdev is not None
    assert row.netdev.altnames == given  # a name that no host gives is not kept
    assert node.kernel.pods[path_of("p1-s0")].links["rdma0"].altnames == ()
    if kept:
        give_altnames(node, "p1-s0", *given)
    await node.stopping("p1-s0")
    assert node.journal.rows() == ()
    assert set(node.kernel.host.links["ens1v0"].altnames) == set(given)


@pytest.mark.parametrize(
    "names",
    [
        ("ens1v1", "ens1v0"),
        (parking_name(vf(1).bdf), parking_name(vf(0).bdf)),
        ("ens1v1", "ens1v2", "ens1v0"),
        ("ens1v1", "ens1v0", parking_name(vf(0).bdf), parking_name(vf(1).bdf)),
    ],
)
async def test_devices_that_came_back_by_each_others_names_do_not_wait_for_each_other(names: tuple[str, ...]) -> None:
    """Let the pod rename several VFs, and end its namespace before they are moved back."""
    node = Node(len(names))
    rows = await node.attached("p1-s0", *range(len(names)))
    links = node.kernel.pods[path_of("p1-s0")].links
    named = {name: replace(links[row.ifname], name=name) for row, name in zip(rows, names, strict=True)}
    links.clear()
    links.update(named)
    node.end("p1-s0")
    for _ in names:
        node.now += GRACE_S
        await node.reconcile()
    assert node.all_free()


async def test_its_names_are_given_back_before_its_pf_is_asked_for_anything() -> None:
    """Check that names are restored first, so that a driver's refusal for one VF does not leave a name occupied."""
    node = Node(sandboxes=("p1-s0", "p2-s0"))
    await node.attach("p1-s0", 0)
    await node.attach("p2-s0", 1)
    links = node.kernel.pods[path_of("p1-s0")].links
    links["ens1v1"] = replace(links.pop("rdma0"), name="ens1v1")
    node.end("p1-s0")
    node.kernel.fail("set_vf")
    await node.stopping("p1-s0")
    row = node.attachment()
    assert row.failure
    await node.stopping("p2-s0")
    assert node.row(1) is None
    await node.reconcile()
    assert node.all_free()


# ---- a pod that may rename its RDMA devices, or a driver that does


@pytest.mark.parametrize("ended", [False, True])
async def test_an_rdma_device_is_found_by_whatever_name_and_has_its_own_again(ended: bool) -> None:
    node = Node(mode=RdmaMode.EXCLUSIVE)
    await node.attach("p1-s0", 0, 1)
    node.kernel.rename_ibdev("mlx5_1", "mine")
    node.kernel.rename_ibdev("mlx5_2", "mlx5_77")
    assert await node.attached("p1-s0", 0)
    assert len(node.kernel.pods[path_of("p1-s0")].ibdevs) == 2
    if ended:
        node.end("p1-s0")
    await node.stopping("p1-s0")
    assert node.all_free()


async def test_an_rdma_device_whose_name_another_pod_took_is_free_all_the_same() -> None:
    node = Node(mode=RdmaMode.EXCLUSIVE, sandboxes=("p1-s0", "p2-s0"))
    await node.attach("p1-s0", 0)
    await node.attach("p2-s0", 1)
    node.kernel.rename_ibdev("mlx5_2", "mine")
    node.kernel.rename_ibdev("mlx5_1", "mlx5_2")
    await node.stopping("p2-s0")
    assert node.row(1) is None
    assert node.kernel.ibdev_of(node.vfs[1].bdf) == parking_name(node.vfs[1].bdf)
    node.run("p3-s0")
    (row,) = await node.attached("p3-s0", 1)
    assert (row.vf.bdf, row.vf.ibdev) == (node.vfs[1].bdf, parking_name(node.vfs[1].bdf))
    for sandbox in ("p1-s0", "p3-s0"):
        await node.stopping(sandbox)
    assert node.journal.rows() == ()
    assert node.kernel.host.ibdevs == {"mlx5_1", parking_name(node.vfs[1].bdf)}


@pytest.mark.parametrize("name", ["mlx5_1", "mlx5_9"])
async def test_an_rdma_device_that_its_driver_made_anew_is_known_by_its_function(name: str) -> None:
    node = Node(mode=RdmaMode.EXCLUSIVE)
    (first,) = await node.attached("p1-s0", 0)
    node.kernel.reload_ibdev(node.vfs[0].bdf, name)
    (again,) = await node.attached("p1-s0", 0)  # the next container gets the interface that is in the pod
    assert again.generation > first.generation
    assert again.ibdev_number != first.ibdev_number
    assert node.problems() == []
    node.kernel.reload_ibdev(node.vfs[0].bdf, name)
    await node.stopping("p1-s0")
    assert node.all_free()


async def test_a_row_from_before_numbers_were_recorded_goes_by_the_name() -> None:
    node = Node(mode=RdmaMode.EXCLUSIVE)
    (row,) = await node.attached("p1-s0", 0)
    old = render_attachment(replace(row, ibdev_number=None))
    node.db.execute("UPDATE attachments SET attachment = ?", (old,))
    node.start()
    await node.stopping("p1-s0")
    assert node.all_free()
