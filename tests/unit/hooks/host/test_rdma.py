"""Test RDMA functions of a simulated node, complete and damaged."""

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hooks.host import rdma as sysfs
from hooks.host.attributes import read_numa
from hooks.host.rdma import read_rdma
from hooks.model.inventory import Vf
from simnode.profile import PROFILES
from tests.conftest import BuildNode

VF = "0000:18:00.2"  # mlx5_8, uverbs1
ZERO_GID = "0000:0000:0000:0000:0000:0000:0000:0000\n"


def vf_of(root: Path, bdf: str = VF) -> Vf:
    pfs, _, _ = read_rdma(root)
    (vf,) = (vf for pf in pfs for vf in pf.vfs if vf.bdf == bdf)
    return vf


def one_pf(vfs: list[dict[str, Any]], **pf: Any) -> dict[str, Any]:
    function = {"ibdev": "mlx5_0", "netdev": "ib0", "link_layer": "Ethernet", "total_vfs": 8, "vfs": vfs, **pf}
    return {
        "name": "one-pf",
        "host_bridges": [{"bus": "0000:15", "socket": 0, "numa": 0, "below": [{"bdf": "0000:18:00.0", "pf": function}]}],
    }


def test_names_are_compared_whole(build_node: BuildNode) -> None:
    node = build_node(one_pf([{"bdf": VF, "ibdevs": ["mlx5_10"]}, {"bdf": "0000:18:00.3", "ibdevs": ["mlx5_1"]}]))
    ten, one = vf_of(node.root), vf_of(node.root, "0000:18:00.3")
    assert ten.uverbs is not None
    assert one.uverbs is not None
    assert (ten.uverbs.path, one.uverbs.path) == ("/dev/infiniband/uverbs1", "/dev/infiniband/uverbs2")
    assert [mad.path for mad in one.umad] == ["/dev/infiniband/issm2", "/dev/infiniband/umad2"]


def test_vf_index_is_its_virtfn_link_not_its_order(build_node: BuildNode) -> None:
    names = [{"bdf": f"0000:18:0{n // 8}.{n % 8}", "ibdevs": [f"mlx5_{n}"]} for n in range(1, 13)]
    node = build_node(one_pf(names))
    (pf,), _, _ = read_rdma(node.root)
    assert [(vf.index, vf.bdf) for vf in pf.vfs] == [(n, entry["bdf"]) for n, entry in enumerate(names)]


@pytest.mark.parametrize(
    ("vf", "named"),
    [
        ({"bdf": VF, "driver": "vfio-pci"}, "vfio-pci"),
        ({"bdf": VF, "driver": "mlx5_vfio_pci"}, "mlx5_vfio_pci"),
        ({"bdf": VF, "driver": ""}, "driver"),
        ({"bdf": VF}, "RDMA device"),
        ({"bdf": VF, "ibdevs": ["mlx5_3", "mlx5_4"]}, "mlx5_3, mlx5_4"),
    ],
)
def test_vf_that_no_container_can_use(build_node: BuildNode, vf: dict[str, Any], named: str) -> None:
    result = vf_of(build_node(one_pf([vf])).root)
    assert named in result.unhealthy
    assert result.uverbs is None
    assert result.ibdev == ""
    assert result.driver == vf.get("driver", "mlx5_core")


def test_pf_is_found_by_its_vfs_too(build_node: BuildNode) -> None:
    node = build_node(one_pf([{"bdf": VF, "ibdevs": ["mlx5_1"]}]))
    shutil.rmtree(node.pci("0000:18:00.0") / "infiniband")
    (pf,), _, _ = read_rdma(node.root)
    assert (pf.ibdev, [vf.ibdev for vf in pf.vfs]) == ("", ["mlx5_1"])


def test_functions_without_rdma_are_no_pfs(build_node: BuildNode) -> None:
    node = build_node(one_pf([{"bdf": VF}]))
    shutil.rmtree(node.pci("0000:18:00.0") / "infiniband")
    assert read_rdma(node.root) == ((), None, ())


def test_a_pf_is_well_while_one_port_is_active(build_node: BuildNode) -> None:
    node = build_node(one_pf([{"bdf": VF, "ibdevs": ["mlx5_1"]}]))
    ports = node.pci("0000:18:00.0") / "infiniband/mlx5_0/ports"

    def unhealthy() -> str:
        ((pf,), _, _) = read_rdma(node.root)
        assert vf_of(node.root).unhealthy == ""
        return pf.unhealthy

    assert unhealthy() == ""
    (ports / "1/state").write_text("1: DOWN\n")
    assert "mlx5_0 port 1 is 1: DOWN" in unhealthy()
    shutil.copytree(ports / "1", ports / "2")
    (ports / "2/state").write_text("4: ACTIVE\n")
    assert unhealthy() == ""
    shutil.rmtree(node.pci("0000:18:00.0") / "infiniband")  # the ports of a bond are another PF's
    assert unhealthy() == ""
    (node.pci("0000:18:00.0") / "driver").unlink()
    assert "driver" in unhealthy()


@pytest.mark.parametrize("damage", ["gids", "node_guid"])
def test_vf_without_an_address_of_its_own(build_node: BuildNode, damage: str) -> None:
    node = build_node("demo-8gpu")
    device = node.pci(VF) / "infiniband/mlx5_8"
    if damage == "gids":
        (device / "ports/1/gids/0").write_text("fe80:0000:0000:0000:0000:0000:0000:0000\n")  # a prefix and no GUID
    else:
        (device / "node_guid").write_text("0000:0000:0000:0000\n")
    assert "mlx5_8" in vf_of(node.root).unhealthy
    assert vf_of(node.root, "0000:18:00.3").unhealthy == ""


def test_one_gid_anywhere_in_the_table_is_enough(build_node: BuildNode) -> None:
    node = build_node("demo-8gpu")
    gids = node.pci(VF) / "infiniband/mlx5_8/ports/1/gids"
    (gids / "0").write_text(ZERO_GID)
    (gids / "1").write_text("0000:0000:0000:0000:0000:ffff:0a00:0001\n")  # RoCE: an IPv4 address
    assert vf_of(node.root).unhealthy == ""


def test_a_planted_uverbs_node(build_node: BuildNode) -> None:
    node = build_node("demo-8gpu")
    uverbs = node.root / "dev/infiniband/uverbs1"
    uverbs.unlink()
    uverbs.symlink_to("uverbs2")
    result = vf_of(node.root)
    assert result.uverbs is None
    assert "/dev/infiniband/uverbs1" in result.unhealthy


def test_no_uverbs_and_several(build_node: BuildNode) -> None:
    node = build_node("demo-8gpu")
    (node.root / "sys/class/infiniband_verbs/uverbs2/ibdev").write_text("mlx5_8\n")
    assert "uverbs1, uverbs2" in vf_of(node.root).unhealthy
    assert "mlx5_9" in vf_of(node.root, "0000:18:00.3").unhealthy


def test_a_bad_mad_node_is_a_problem_and_no_ill_health(build_node: BuildNode) -> None:
    node = build_node("demo-8gpu")
    (node.root / "dev/infiniband/umad1").unlink()
    result = vf_of(node.root)
    assert result.unhealthy == ""
    assert [mad.path for mad in result.umad] == ["/dev/infiniband/issm1"]
    _, _, (problem,) = read_rdma(node.root)
    assert "/dev/infiniband/umad1" in problem


def add_netdev(function: Path, name: str, *, index: int, lower: int) -> None:
    folder = function / "net" / name
    folder.mkdir(exist_ok=True)
    (folder / "ifindex").write_text(f"{index}\n")
    (folder / "iflink").write_text(f"{lower}\n")


def test_a_network_device_for_each_port_is_a_problem_and_no_ill_health(build_node: BuildNode) -> None:
    """Check ConnectX-3: its RDMA device is usable, but it is unknown which network device would move into a pod."""
    node = build_node("demo-8gpu")
    own = vf_of(node.root).netdev
    add_netdev(node.pci(VF), own, index=7, lower=7)
    add_netdev(node.pci(VF), f"{own}d1", index=8, lower=8)
    result = vf_of(node.root)
    assert (result.netdev, result.unhealthy) == (own, "")
    _, _, (problem,) = read_rdma(node.root)
    assert all(word in problem for word in (VF, own, f"{own}d1"))


def test_what_stands_on_a_functions_device_is_none_of_its_own(build_node: BuildNode) -> None:
    node = build_node("demo-8gpu")
    own = vf_of(node.root).netdev
    add_netdev(node.pci(VF), own, index=7, lower=7)
    add_netdev(node.pci(VF), "a0.8001", index=8, lower=7)
    assert vf_of(node.root).netdev == own
    assert read_rdma(node.root)[2] == ()


@pytest.mark.parametrize("deleted", ["dev/infiniband/rdma_cm", "sys/class/misc/rdma_cm/dev"])
def test_missing_rdma_cm_is_a_problem(build_node: BuildNode, deleted: str) -> None:
    node = build_node("demo-8gpu")
    (node.root / deleted).unlink()
    _, rdma_cm, (problem,) = read_rdma(node.root)
    assert rdma_cm is None
    assert "rdma_cm" in problem


def test_node_without_rdma_needs_no_rdma_cm(build_node: BuildNode) -> None:
    assert read_rdma(build_node("workstation").root) == ((), None, ())


def test_an_empty_sysfs_has_nothing(tmp_path: Path) -> None:
    assert read_rdma(tmp_path) == ((), None, ())


def test_virtfn_that_leads_nowhere_is_left_out(build_node: BuildNode) -> None:
    node = build_node("demo-8gpu")
    shutil.rmtree(node.pci(VF))
    pfs, _, _ = read_rdma(node.root)
    assert [vf.bdf for vf in pfs[0].vfs] == ["0000:18:00.3"]


def test_vf_that_vanishes_while_it_is_read_is_left_out(build_node: BuildNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node = build_node("demo-8gpu")

    def vanish(root: Path, bdf: str) -> int | None:
        if bdf == VF:
            shutil.rmtree(node.pci(VF))
        return read_numa(root, bdf)

    monkeypatch.setattr(sysfs, "read_numa", vanish)
    pfs, _, _ = read_rdma(node.root)
    assert [vf.bdf for vf in pfs[0].vfs] == ["0000:18:00.3"]
    assert len(pfs) == 8


def test_one_unreadable_function_does_not_hide_the_others(build_node: BuildNode) -> None:
    node = build_node("demo-8gpu")
    numa = node.pci("0000:18:00.0") / "numa_node"
    numa.unlink()
    numa.mkdir()  # EISDIR, where a sick device would answer EIO
    pfs, _, (problem,) = read_rdma(node.root)
    assert pfs[0].bdf == "0000:19:00.0"
    assert "0000:18:00.0" in problem


def test_a_domain_may_be_longer(build_node: BuildNode) -> None:
    profile = msgspec.json.decode((PROFILES / "mn2a.json").read_bytes())
    text = msgspec.json.encode(profile).decode().replace('"0000:18:', '"10000:18:')
    node = build_node(msgspec.json.decode(text))
    result = vf_of(node.root, "10000:18:00.1")
    assert (result.pf, result.unhealthy) == ("10000:18:00.0", "")


def test_open_descriptors_stay_few(build_node: BuildNode) -> None:
    node = build_node("mn2a")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are enough
    read_rdma(node.root)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
