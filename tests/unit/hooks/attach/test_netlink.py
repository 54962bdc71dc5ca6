"""Test the PF's calls to the real kernel against the table of VFs, without root or a device. The rest is in
tests/node/test_netlink.py."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from hooks.attach.kernel import KernelError
from hooks.attach.messages import RefusedError, parse_messages, render_message
from hooks.attach.netlink import HostKernel
from hooks.model.attachment import VfConfig
from lading.vocabulary import PciAddress
from simnode.vf_table import PfState, VfState, VfTable
from tests.fakes.holders import SETTINGS

_PF = PciAddress("0000:18:00.0")
_MAC = "02:00:5e:10:00:01"


@pytest.fixture
def table(tmp_path: Path) -> VfTable:
    table = VfTable(tmp_path / "vfs.json")
    table.write({"ens1f0": PfState(index=11, vfs=(VfState(),) * 4), "ens2f0": PfState(index=12, vfs=())})
    return table


@pytest.fixture
def asked(table: VfTable) -> list[bytes]:
    return []


@pytest.fixture
def kernel(tmp_path: Path, table: VfTable, asked: list[bytes]) -> HostKernel:
    (tmp_path / "sys/bus/pci/devices" / _PF / "net/ens1f0").mkdir(parents=True)

    def exchange(request: bytes) -> bytes:
        asked.append(request)
        return table.apply(request)

    return HostKernel(tmp_path, pf_exchange=exchange)


def code_of(error: KernelError) -> int:
    assert isinstance(error.__cause__, RefusedError)
    return error.__cause__.code


def test_what_is_set_is_what_is_read(kernel: HostKernel, table: VfTable) -> None:
    kernel.set_vf(_PF, 3, SETTINGS.config)
    assert kernel.read_vf(_PF, 3) == SETTINGS.config
    assert table.read()["ens1f0"].vfs == (
        *(VfState(),) * 3,
        VfState(
            mac=_MAC,
            mac_fixed=True,
            vlan=100,
            qos=3,
            vlan_proto=0x88A8,
            min_tx_rate=100,
            max_tx_rate=1000,
            spoofchk=0,
            trust=1,
            link_state=1,
        ),
    )


def test_what_is_as_wanted_is_not_sent_again(kernel: HostKernel, asked: list[bytes]) -> None:
    kernel.set_vf(_PF, 0, VfConfig(max_tx_rate=100, vlan=7))
    del asked[:]
    kernel.set_vf(_PF, 0, VfConfig(max_tx_rate=100, vlan=7, spoofchk=True))
    assert len(asked) == 1  # it was read


def test_a_mac_that_the_pf_reports_is_sent_all_the_same(kernel: HostKernel, table: VfTable) -> None:
    """Check that the MAC is sent although it is reported: that may be the VF's own, and the PF fixes a MAC only once it was
    set."""
    table.change("ens1f0", lambda pf: replace(pf, vfs=(VfState(mac=_MAC), *pf.vfs[1:])))
    kernel.set_vf(_PF, 0, VfConfig(mac=_MAC))
    assert table.read()["ens1f0"].vfs[0] == VfState(mac=_MAC, mac_fixed=True)


def test_a_vf_that_owned_its_mac_may_change_it_again(kernel: HostKernel, table: VfTable) -> None:
    kernel.set_vf(_PF, 0, VfConfig(mac=_MAC))
    kernel.release_mac(_PF, 0, unless="")
    assert table.read()["ens1f0"].vfs[0] == VfState()


def test_a_mac_that_the_pf_reports_again_is_not_taken_away(kernel: HostKernel, table: VfTable, asked: list[bytes]) -> None:
    table.change("ens1f0", lambda pf: replace(pf, vfs=(VfState(mac=_MAC), *pf.vfs[1:])))
    kernel.release_mac(_PF, 0, unless=_MAC)
    kernel.confirm_mac(_PF, 0, _MAC)
    assert table.read()["ens1f0"].vfs[0] == VfState(mac=_MAC)


def test_a_mac_that_the_pf_does_not_report_was_given_to_it(kernel: HostKernel, table: VfTable) -> None:
    kernel.confirm_mac(_PF, 0, _MAC)
    assert table.read()["ens1f0"].vfs[0] == VfState(mac=_MAC, mac_fixed=True)


def test_nothing_wanted_asks_nothing(kernel: HostKernel, asked: list[bytes]) -> None:
    kernel.set_vf(_PF, 0, VfConfig())
    assert asked == []


def test_a_mac_that_the_driver_loses_is_set_again(kernel: HostKernel, table: VfTable) -> None:
    table.change("ens1f0", lambda pf: replace(pf, lose_mac=1))
    kernel.set_vf(_PF, 1, VfConfig(mac=_MAC))
    assert kernel.read_vf(_PF, 1).mac == _MAC


def test_a_mac_that_the_driver_never_keeps_is_an_error(
    kernel: HostKernel, table: VfTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hooks.attach.netlink._MAC_PAUSE_S", 0)
    table.change("ens1f0", lambda pf: replace(pf, lose_mac=1000))
    with pytest.raises(KernelError, match=_MAC):
        kernel.set_vf(_PF, 1, VfConfig(mac=_MAC))
    assert table.read()["ens1f0"].lose_mac > 900  # not for ever


def test_what_was_set_before_a_refusal_stays_and_what_comes_after_is_not_sent(kernel: HostKernel, table: VfTable) -> None:
    table.change("ens1f0", lambda pf: replace(pf, refuse={"spoofchk": "EOPNOTSUPP"}))
    with pytest.raises(KernelError, match="EOPNOTSUPP") as caught:
        kernel.set_vf(_PF, 2, VfConfig(vlan=5, spoofchk=False, trust=True))
    assert code_of(caught.value) == errno.EOPNOTSUPP
    assert all(word in caught.value.message for word in (_PF, "VF 2"))
    assert table.read()["ens1f0"].vfs[2] == VfState(vlan=5)


def test_an_error_carries_the_kernels_words(kernel: HostKernel) -> None:
    with pytest.raises(KernelError, match="EINVAL: a multicast MAC"):
        kernel.set_vf(_PF, 2, VfConfig(mac="03:00:5e:10:00:01"))


def test_what_the_driver_does_not_tell_is_none(kernel: HostKernel, table: VfTable) -> None:
    table.change("ens1f0", lambda pf: replace(pf, untold=("trust",)))
    vf = kernel.read_vf(_PF, 0)
    assert (vf.trust, vf.spoofchk) == (None, True)


def test_a_vf_that_is_not_there_is_an_error(kernel: HostKernel) -> None:
    with pytest.raises(KernelError, match="VF 4"):
        kernel.read_vf(_PF, 4)


def test_an_answer_about_vfs_that_is_broken_is_an_error_that_names_the_pf(tmp_path: Path, table: VfTable) -> None:
    def broken(request: bytes) -> bytes:
        (message, *rest) = parse_messages(table.apply(request))
        body = render_message(message.kind, message.flags, message.body[:-8])
        return body + b"".join(render_message(one.kind, one.flags, one.body) for one in rest)

    (tmp_path / "sys/bus/pci/devices" / _PF / "net/ens1f0").mkdir(parents=True)
    with pytest.raises(KernelError, match=f"cannot read the VFs of PF {_PF} by network device ens1f0"):
        HostKernel(tmp_path, pf_exchange=broken).read_vf(_PF, 0)


def test_a_pf_without_a_network_device_is_an_error(kernel: HostKernel) -> None:
    with pytest.raises(KernelError, match="0000:19:00"):
        kernel.read_vf(PciAddress("0000:19:00.0"), 0)


def test_of_a_pfs_devices_the_one_that_tells_of_vfs_is_asked(tmp_path: Path, kernel: HostKernel) -> None:
    """Check a PF in switchdev mode, which has the representors of its VFs beside its own device."""
    (tmp_path / "sys/bus/pci/devices" / _PF / "net/ens1f0").rename(tmp_path / "sys/bus/pci/devices" / _PF / "net/ens2f0")
    (tmp_path / "sys/bus/pci/devices" / _PF / "net/ens3").mkdir()
    with pytest.raises(KernelError):
        kernel.read_vf(_PF, 0)
    (tmp_path / "sys/bus/pci/devices" / _PF / "net/ens3").rename(tmp_path / "sys/bus/pci/devices" / _PF / "net/ens1f0")
    assert kernel.read_vf(_PF, 0).vlan == 0
