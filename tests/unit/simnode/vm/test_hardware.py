import itertools
from typing import Any

import pytest

from lading.errors import ConfigError
from simnode.profile import PciNode, Profile, load_profile
from simnode.vm.guest import PROFILE
from simnode.vm.hardware import place, render_cards, render_machine, render_nics

MEMORY_MIB = 3072


def devices(profile: Profile, kind: str) -> list[str]:
    words = render_machine(profile, MEMORY_MIB)
    return [word for flag, word in itertools.pairwise(words) if flag == "-device" and word.split(",")[0] == kind]


def tree(*nodes: dict[str, Any]) -> Profile:
    bridge = {"bus": "0000:40", "socket": 0, "numa": 0, "below": list(nodes)}
    return place(load_profile({"name": "test", "host_bridges": [bridge]}))


def port(bdf: str, *below: dict[str, Any]) -> dict[str, Any]:
    return {"bdf": bdf, "below": list(below)}


def nic(bdf: str, vfs: int, link_layer: str = "Ethernet") -> dict[str, Any]:
    entries = [{"bdf": f"0000:50:01.{number}", "ibdevs": [f"mlx5_{1 + number}"], "netdev": "v"} for number in range(vfs)]
    return {"bdf": bdf, "pf": {"ibdev": "mlx5_0", "netdev": "eth0", "link_layer": link_layer, "total_vfs": 16, "vfs": entries}}


def test_buses_are_numbered_depth_first_from_the_host_bridge_on() -> None:
    placed = place(load_profile("mn2a-one-bridge"))
    assert [bdf for bdf, _ in placed.gpus] == [
        *("0000:19:00.0", "0000:1a:00.0", "0000:1e:00.0", "0000:1f:00.0"),
        *("0000:9b:00.0", "0000:9c:00.0", "0000:a0:00.0", "0000:a1:00.0"),
    ]
    assert [bdf for bdf, _ in placed.pfs] == ["0000:18:00.0", "0000:1d:00.0", "0000:9a:00.0", "0000:9f:00.0"]


def test_the_profile_of_guests_has_the_addresses_of_a_guest() -> None:
    profile, placed = load_profile(PROFILE), place(load_profile(PROFILE))
    assert [node.bdf for _, node in placed.endpoints] == [node.bdf for _, node in profile.endpoints]
    assert [vf.bdf for _, pf in placed.pfs for vf in pf.vfs] == [vf.bdf for _, pf in profile.pfs for vf in pf.vfs]


def test_a_vf_has_the_address_that_an_igb_gives_it() -> None:
    ((_, pf),) = tree(port("0000:40:01.0", nic("0000:41:00.0", 5))).pfs
    assert [vf.bdf for vf in pf.vfs] == [f"0000:41:{rest}" for rest in ("10.0", "10.2", "10.4", "10.6", "11.0")]


def test_a_first_function_other_than_0_becomes_0() -> None:
    placed = tree(port("0000:40:01.1", nic("0000:41:00.0", 0), nic("0000:41:00.1", 0)))
    assert [node.bdf for node in placed.host_bridges[0].below] == ["0000:40:01.0"]
    assert [bdf for bdf, _ in placed.pfs] == ["0000:41:00.0", "0000:41:00.1"]
    assert all("multifunction=on" in device for device in devices(placed, "igb"))


def test_links_between_cards_follow_their_addresses() -> None:
    placed = place(load_profile("dgx-h100"))
    cards = {bdf for bdf, _ in placed.gpus}
    before = load_profile("dgx-h100")
    switches = {peer for _, gpu in before.gpus for peer in gpu.nvlinks} - {bdf for bdf, _ in before.gpus}
    assert {peer for _, gpu in placed.gpus for peer in gpu.nvlinks} <= cards | switches


def test_more_vfs_than_an_igb_has_are_refused() -> None:
    with pytest.raises(ConfigError, match="8 VFs"):
        tree(nic("0000:40:01.0", 8))


def test_an_infiniband_pf_becomes_an_ethernet_one() -> None:
    ((_, pf),) = tree(nic("0000:40:01.0", 1, link_layer="InfiniBand")).pfs
    assert (pf.link_layer, pf.vfs[0].driver) == ("Ethernet", "igbvf")


@pytest.mark.parametrize("name", ["mn2a-one-bridge", "demo-8gpu", "pcie-8gpu", "workstation", "dgx-a100", "dgx-h100"])
def test_every_function_of_a_profile_is_in_the_machine(name: str) -> None:
    placed = place(load_profile(name))
    assert len(devices(placed, "edu")) == len(placed.gpus)
    assert len(devices(placed, "igb")) == len(placed.pfs)
    assert len(devices(placed, "pxb-pcie")) == sum(bridge.bus != "0000:00" for bridge in placed.host_bridges)
    below: list[PciNode] = [node for bridge in placed.host_bridges for node in bridge.below]
    addresses = []
    for node in below:
        below.extend(node.below)
        addresses.append(node.bdf)
    assert len({*addresses}) == len(addresses)


def test_a_switch_is_an_upstream_port_with_downstream_ports_below_a_root_port() -> None:
    placed = tree(port("0000:40:01.0", port("0000:41:00.0", port("0000:42:00.0", nic("0000:43:00.0", 0)))))
    assert devices(placed, "pcie-root-port") == ["pcie-root-port,id=f40010,bus=hb40,addr=0x01.0,chassis=65,slot=0"]
    assert devices(placed, "x3130-upstream") == ["x3130-upstream,id=f41000,bus=f40010,addr=0x00.0"]
    assert devices(placed, "xio3130-downstream") == ["xio3130-downstream,id=f42000,bus=f41000,addr=0x00.0,chassis=67,slot=0"]
    assert devices(placed, "igb") == ["igb,netdev=f43000,bus=f42000,addr=0x00.0,mac=52:54:00:aa:43:00,rombar=0"]


def test_each_numa_node_has_memory_and_the_first_of_a_socket_its_processor() -> None:
    words = render_machine(place(load_profile("dgx-a100")), MEMORY_MIB)
    nodes = [word for flag, word in itertools.pairwise(words) if flag == "-numa"]
    assert len(nodes) == 8
    assert [node for node in nodes if "cpus" in node] == [
        "node,nodeid=0,memdev=m0,cpus=0",
        "node,nodeid=4,memdev=m4,cpus=1",
    ]
    assert "memory-backend-ram,id=m0,size=384M" in words


def test_a_node_of_one_socket_without_numa_has_no_numa_node() -> None:
    words = render_machine(place(load_profile("workstation")), MEMORY_MIB)
    assert "-numa" not in words
    assert "1,sockets=1,cores=1,threads=1" in words


def test_cards_are_listed_in_the_order_of_their_addresses() -> None:
    text = render_cards(place(load_profile("demo-8gpu")))
    assert "minors=2,3,0,1,6,7,4,5 version=550.127.05" in text
    assert text.endswith('model="NVIDIA H100 80GB HBM3"\n')


def test_a_line_for_a_pf_names_the_rdma_devices_of_itself_and_its_vfs() -> None:
    assert render_nics(tree(port("0000:40:01.0", nic("0000:41:00.0", 2)))) == "0000:41:00.0 2 mlx5_0 mlx5_1 mlx5_2\n"
