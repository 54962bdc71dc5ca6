"""Test which rail each PF is on: what the configuration says, else the order of equal PFs, else nothing."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from hooks.daemon.daemon import read_configured
from hooks.daemon.settings import Settings
from hooks.inventory.rails import with_rails
from hooks.model.inventory import ETHERNET, INFINIBAND, Pf
from hooks.report.build import build_status
from lading import nodedevices
from lading.errors import ConfigError
from lading.settings import convert
from lading.vocabulary import PciAddress
from simnode.build import SimNode
from tests.conftest import BuildNode

FAST, SLOW = "32.0 GT/s PCIe x16", "16.0 GT/s PCIe x8"


def pf(bus: str, pcie: str = FAST, *, layer: str = INFINIBAND, unhealthy: str = "") -> Pf:
    bdf = PciAddress(f"{bus}:00.0")
    return Pf(bdf=bdf, driver="mlx5_core", numa=0, link_layer=layer, pcie=pcie, unhealthy=unhealthy)


def rails(*pfs: Pf, configured: Mapping[str, int] | None = None) -> list[int | None]:
    named = {PciAddress(bdf): rail for bdf, rail in (configured or {}).items()}
    return [one.rail for one in with_rails(pfs, named)]


def test_equal_pfs_are_counted_in_pci_order() -> None:
    assert rails(pf("0000:b7"), pf("0000:18"), pf("10000:01"), pf("0000:3a")) == [2, 0, 3, 1]


def test_a_pf_without_a_link_keeps_its_place() -> None:
    assert rails(pf("0000:18"), pf("0000:3a", unhealthy="no port is active"), pf("0000:b7")) == [0, 1, 2]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_one_or_two_pfs_have_no_rail(number: int) -> None:
    assert rails(*[pf(f"0000:{bus}") for bus in (18, 19)[:number]]) == [None] * number


@pytest.mark.parametrize("other", [{"pcie": SLOW}, {"layer": ETHERNET}])
def test_pfs_of_another_fabric_have_no_rail_and_take_no_number(other: dict[str, str]) -> None:
    assert rails(pf("0000:18"), pf("0000:29", **other), pf("0000:3a"), pf("0000:b7")) == [0, None, 1, 2]


def test_of_two_fabrics_with_as_many_pfs_neither_has_rails() -> None:
    equal = [pf(f"0000:{bus}", layer=layer) for bus, layer in zip(range(10, 16), [ETHERNET, INFINIBAND] * 3, strict=True)]
    assert rails(*equal) == [None] * 6


def test_what_is_configured_replaces_the_whole_order() -> None:
    pfs = pf("0000:18"), pf("0000:3a"), pf("0000:b7")
    assert rails(*pfs, configured={"0000:b7:00.0": 0, "0000:18:00.0": 7}) == [7, None, 0]


def a_node_of_three(build_node: BuildNode) -> SimNode:
    below = [
        {
            "bdf": f"0000:{bus}:00.0",
            "pf": {
                "ibdev": f"mlx5_{n}",
                "netdev": f"eth{n}",
                "link_layer": ETHERNET,
                "total_vfs": 8,
                "vfs": [{"bdf": f"0000:{bus}:00.1", "ibdevs": [f"mlx5_{n + 3}"]}],
            },
        }
        for n, bus in enumerate(("18", "19", "1a"))
    ]
    return build_node({"name": "three", "host_bridges": [{"bus": "0000:15", "socket": 0, "numa": 0, "below": below}]})


def reported(node: SimNode, configured: Mapping[str, int] | None = None) -> nodedevices.Status:
    """Return what the node with this configuration reports, as a reader of the API server gets it."""
    settings = Settings(host_root=str(node.root), rails=dict(configured or {}))
    status = build_status(read_configured(settings, []), (), unmanaged={}, reconciled=True, boot_id="", reporter="")
    return msgspec.json.decode(msgspec.json.encode(status), type=nodedevices.Status)


def test_a_node_reports_the_rails_of_its_pfs(build_node: BuildNode) -> None:
    node = a_node_of_three(build_node)
    assert [one.rail for one in reported(node).pfs] == [0, 1, 2]
    for bus, width in (("18", "16"), ("19", "8"), ("1a", "16")):
        folder: Path = node.pci(f"0000:{bus}:00.0")
        (folder / "max_link_speed").write_text("32.0 GT/s PCIe\n")
        (folder / "max_link_width").write_text(f"{width}\n")
    assert [one.rail for one in reported(node).pfs] == [None, None, None]  # two equal ones are left


def test_a_node_reports_the_configured_rails_and_names_pfs_that_it_does_not_have(build_node: BuildNode) -> None:
    status = reported(a_node_of_three(build_node), {"0000:19:00.0": 3, "0000:3B:00.0": 4})
    assert [one.rail for one in status.pfs] == [None, 3, None]
    assert [text for text in status.problems if "rails" in text] == [
        "rails in the configuration has 0000:3b:00.0 = 4, and 0000:3b:00.0 is no RDMA PF of this node"
    ]


@pytest.mark.parametrize(("rail", "right"), [(-1, ">= 0"), (128, "<= 127"), ("0", "int")])
def test_a_rail_that_is_none_is_refused(rail: object, right: str) -> None:
    with pytest.raises(ConfigError, match=right) as e:
        convert(Settings, {"rails": {"0000:18:00.0": rail}}, {}, "hooks.toml")
    assert "rails" in e.value.message


class OlderPf(msgspec.Struct, frozen=True, kw_only=True):
    """Represent a PF as a reader sees it that does not know rails."""

    bdf: str
    vfs: tuple[nodedevices.Vf, ...] = ()


def test_reports_of_older_and_newer_nodes_are_read() -> None:
    newer = nodedevices.Pf(bdf=PciAddress("0000:18:00.0"), rail=3, vfs=(nodedevices.Vf(bdf=PciAddress("0000:18:00.1")),))
    assert msgspec.json.decode(msgspec.json.encode(newer), type=OlderPf) == OlderPf(bdf=newer.bdf, vfs=newer.vfs)
    older = msgspec.json.encode(OlderPf(bdf=newer.bdf, vfs=newer.vfs))
    assert msgspec.json.decode(older, type=nodedevices.Pf) == msgspec.structs.replace(newer, rail=None)
