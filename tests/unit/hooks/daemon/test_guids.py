"""Test `lading-hooks set-guids` on a simulated sysfs, with a table of VFs in place of the PF's driver."""

import json
from pathlib import Path

import pytest

from hooks.attach.netlink import HostKernel
from hooks.daemon.guids import derive_guid, rebind, set_missing
from hooks.main import main
from hooks.model.inventory import Vf
from lading.vocabulary import PciAddress
from simnode.build import SimNode
from simnode.vf_table import PfState, VfState, VfTable
from tests.conftest import BuildNode

PF = "ibp12s0"
FIRST, SECOND = PciAddress("0000:0c:00.1"), PciAddress("0000:0c:00.2")
DEVICES = {FIRST: "mlx5_12", SECOND: "mlx5_13"}
NONE = "0000:0000:0000:0000"


class Driver:
    """Act as mlx5_core, which reads the GUIDs of a VF from the PF when it is bound."""

    def __init__(self, node: SimNode) -> None:
        self.node = node
        self.table = VfTable(node.root / "vfs.json")
        self.table.write({PF: PfState(index=11, vfs=(VfState(link_state=2),) * 2)})
        self.kernel = HostKernel(node.root, pf_exchange=self.table.apply)
        self.bound: list[str] = []

    def guid(self, vf: PciAddress) -> Path:
        return self.node.pci(vf) / "infiniband" / DEVICES[vf] / "node_guid"

    def bind(self, host_root: Path, vf: Vf) -> None:
        self.bound.append(vf.bdf)
        digits = f"{self.table.read()[PF].vfs[vf.index].node_guid:016x}"
        self.guid(vf.bdf).write_text(":".join(digits[n : n + 4] for n in range(0, 16, 4)) + "\n")


@pytest.fixture
def driver(build_node: BuildNode) -> Driver:
    return Driver(build_node("dgx-a100"))


def test_a_vf_without_a_guid_gets_one_of_its_own(driver: Driver) -> None:
    """Check both GUIDs and the link policy, and that a neighbour with GUIDs stays as it is."""
    driver.guid(SECOND).write_text(NONE)
    (outcome,) = set_missing(driver.node.root, driver.kernel, granted=frozenset(), rebind=driver.bind)
    first, second = driver.table.read()[PF].vfs
    guid = int(outcome.guid.replace(":", ""), 16)
    assert (outcome.vf, outcome.index, outcome.problem) == (SECOND, 1, "")
    assert second == VfState(node_guid=guid, port_guid=guid, link_state=0)
    assert first == VfState(link_state=2)
    assert driver.bound == [SECOND]
    assert list(set_missing(driver.node.root, driver.kernel, granted=frozenset(), rebind=driver.bind)) == []


def test_a_vf_that_a_container_has_is_not_touched(driver: Driver) -> None:
    driver.guid(FIRST).write_text(NONE)
    (outcome,) = set_missing(driver.node.root, driver.kernel, granted=frozenset({FIRST}), rebind=driver.bind)
    assert "a container has it" in outcome.problem
    assert driver.bound == []
    assert driver.table.read()[PF].vfs[0].node_guid == 0


def test_a_vf_that_fails_does_not_keep_the_next_from_its_guid(driver: Driver) -> None:
    for vf in DEVICES:
        driver.guid(vf).write_text(NONE)

    def bind(host_root: Path, vf: Vf) -> None:
        if vf.bdf == FIRST:
            raise OSError(19, "No such device")
        driver.bind(host_root, vf)

    first, second = set_missing(driver.node.root, driver.kernel, granted=frozenset(), rebind=bind)
    assert first.problem == "cannot bind mlx5_core to it again: [Errno 19] No such device"
    assert second.problem == ""


@pytest.mark.parametrize("refused", ["node_guid", "port_guid", "link_state"])
def test_what_the_pf_refuses_is_reported_and_the_driver_stays_bound(driver: Driver, refused: str) -> None:
    driver.guid(FIRST).write_text(NONE)
    driver.table.change(PF, lambda pf: PfState(index=pf.index, vfs=pf.vfs, refuse={refused: "EPERM"}))
    (outcome,) = set_missing(driver.node.root, driver.kernel, granted=frozenset(), rebind=driver.bind)
    assert refused.replace("_guid", " GUID").replace("_", " ") in outcome.problem
    assert "EPERM" in outcome.problem
    assert driver.bound == []


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_driver_that_does_not_take_the_guid(driver: Driver, monkeypatch: pytest.MonkeyPatch, comes_back: bool) -> None:
    monkeypatch.setattr("hooks.daemon.guids._SCAN_EVERY_S", 0)
    driver.guid(FIRST).write_text(NONE)

    def bind(host_root: Path, vf: Vf) -> None:
        if not comes_back:
            driver.guid(FIRST).parent.rename(host_root / "gone")

    (outcome,) = set_missing(driver.node.root, driver.kernel, granted=frozenset(), rebind=bind)
    assert ("goes on with the GUID 00:00" if comes_back else "no RDMA device") in outcome.problem


def test_guids_are_local_stable_and_all_different() -> None:
    guids = [derive_guid(f"0c42:a103:00{pf:02x}:0000", index) for pf in range(16) for index in range(128)]
    assert len(set(guids)) == len(guids)
    assert all(guid.to_bytes(8)[0] & 3 == 2 for guid in guids)
    assert guids[0] == derive_guid("0c42:a103:0000:0000", 0) == 1650933153486731657


def test_the_driver_is_unbound_and_bound(driver: Driver) -> None:
    """Check that the driver is unbound and bound by the VF's PCI address, in the driver's folder of sysfs."""
    vf = Vf(bdf=FIRST, pf=PciAddress("0000:0c:00.0"), index=0, driver="mlx5_core", numa=None)
    rebind(driver.node.root, vf)
    folder = driver.node.root / "sys/bus/pci/drivers/mlx5_core"
    assert [(folder / name).read_text() for name in ("unbind", "bind")] == [FIRST, FIRST]


def test_the_command_says_what_it_did(driver: Driver, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["set-guids", "--host-root", str(driver.node.root), "--state-dir", str(tmp_path), "--config", str(tmp_path / "none")]
    (tmp_path / "none").touch()
    main(argv)
    assert capsys.readouterr().out == "no InfiniBand VF is without a GUID\n"
    driver.guid(FIRST).write_text(NONE)
    with pytest.raises(SystemExit) as end:  # this machine has no such PF
        main([*argv, "-o", "json"])
    (outcome,) = json.loads(capsys.readouterr().out)
    assert (end.value.code, outcome["vf"], outcome["index"]) == (1, FIRST, 0)
    assert "ENODEV" in outcome["problem"]
