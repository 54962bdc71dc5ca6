"""Compare the simulated node of a profile with real kernel objects of the same profile."""

import json
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lading.nodedevices import Gpu, Pf, Status
from simnode.reported import build_reported
from simnode.vm.guest import Guest
from tests.conftest import BuildNode
from tests.vm.node import VmNode

# Prints the report of the devices, as simnode.reported has it of a simulated node.
REPORT = """/opt/lading/current/bin/python - <<'END'
from pathlib import Path
import msgspec
from hooks.inventory.read import read_inventory
from hooks.report.build import build_status
from hooks.vendors.nvidia.settings import NvidiaSettings
from hooks.vendors.nvidia.vendor import Nvidia
inventory = read_inventory(Path("/"), vendors=[Nvidia(NvidiaSettings())])
status = build_status(inventory, (), unmanaged={}, reconciled=True, boot_id="", reporter="")
print(msgspec.json.encode(status).decode())
END
"""


@dataclass(frozen=True, slots=True)
class Reports:
    simulated: Status
    real: Status


def read_reports(guest: Guest, build_node: BuildNode, fake_nvml: Path) -> Reports:
    simulated = build_reported(build_node(msgspec.to_builtins(guest.profile)), fake_nvml)
    return Reports(simulated, msgspec.json.decode(guest.check(REPORT), type=Status))


def without_netdev(pf: Pf) -> Pf:
    return msgspec.structs.replace(pf, netdev="", driver="")


def test_the_inventory_is_that_of_the_simulated_node(node: VmNode, build_node: BuildNode, fake_nvml: Path) -> None:
    reports = read_reports(node.guest, build_node, fake_nvml)
    gpus: tuple[Gpu, ...] = reports.real.gpus
    assert gpus == reports.simulated.gpus
    assert list(map(without_netdev, reports.real.pfs)) == list(map(without_netdev, reports.simulated.pfs))
    assert {(pf.driver, *(vf.driver for vf in pf.vfs)) for pf in reports.real.pfs} == {("igb", *["igbvf"] * 3)}


def test_the_kernel_has_the_functions_at_the_addresses_of_the_profile(guest: Guest) -> None:
    listed = dict(line.split(" ", 1) for line in guest.check("lspci -Dn").splitlines())
    cards = {bdf for bdf, rest in listed.items() if rest.split()[1] == "1234:11e8"}
    assert cards == {bdf for bdf, _ in guest.profile.gpus}
    pfs = {bdf for bdf, rest in listed.items() if rest.split()[1] == "8086:10c9"}
    assert pfs == {bdf for bdf, _ in guest.profile.pfs}
    vfs = {bdf for bdf, rest in listed.items() if rest.split()[1] == "8086:10ca"}
    assert vfs == {vf.bdf for _, pf in guest.profile.pfs for vf in pf.vfs}


def test_each_function_has_its_rdma_device_and_network_device(node: VmNode) -> None:
    links = {link["ifname"]: link for link in json.loads(node.guest.check("rdma -j link"))}
    nodes = node.verbs_nodes()
    for bdf, pf in node.guest.profile.pfs:
        for address, ibdev in [(bdf, pf.ibdev), *((vf.bdf, vf.ibdevs[0]) for vf in pf.vfs)]:
            netdev = node.guest.check(f"ls /sys/bus/pci/devices/{address}/net").strip()
            (link,) = (link for link in links.values() if link["ifname"].split("/")[0] == ibdev)
            assert (link["netdev"], link["state"]) == (netdev, "ACTIVE")
            assert node.guest.check(f"ls /sys/bus/pci/devices/{address}/infiniband").strip() == ibdev
            assert nodes[ibdev]


def test_no_check_of_the_doctor_fails(node: VmNode) -> None:
    done = node.guest.run("lading-doctor")
    assert done.status == 0, done.out + done.err


def test_cgroups_are_of_version_2(guest: Guest) -> None:
    assert guest.check("stat -fc %T /sys/fs/cgroup") == "cgroup2fs\n"
