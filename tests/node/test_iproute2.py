"""Compare iproute2 with this project: it still sends the captured requests, and it works with the simulated table of VFs."""

import json
import os
import re
import shutil
import struct
from collections.abc import Iterable
from pathlib import Path

import pytest

from hooks.attach.netlink import HostKernel
from hooks.model.attachment import VfConfig, VfLinkState, VlanProtocol
from lading.vocabulary import PciAddress
from simnode.vf_table import PfState, VfState, VfTable
from tests.fakes.holders import SETTINGS
from tests.fakes.needs import need
from tests.fakes.netlink_peer import Run, compile_peer, run_with_peer
from tests.golden.netlink.capture import PROGRAMS, REQUESTS, capture

pytestmark = pytest.mark.node

_PF = PciAddress("0000:18:00.0")


@pytest.fixture(scope="module", autouse=True)
def _machine() -> None:
    need(os.geteuid() == 0, "root")
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    need(not missing, ", ".join(missing))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_peer(tmp_path_factory.mktemp("peer"))


@pytest.fixture
def table(tmp_path: Path) -> VfTable:
    table = VfTable(tmp_path / "vfs.json")
    table.write({"pf0": PfState(index=11, vfs=(VfState(),) * 4)})
    return table


@pytest.fixture
def kernel(tmp_path: Path, table: VfTable) -> HostKernel:
    (tmp_path / "sys/bus/pci/devices" / _PF / "net/pf0").mkdir(parents=True)
    return HostKernel(tmp_path, pf_exchange=table.apply)


def test_iproute2_sends_what_was_captured() -> None:
    assert capture() == json.loads(REQUESTS.read_text())


def ip(library: Path, table: VfTable, *text: str) -> Run:
    def answer(request: bytes) -> Iterable[bytes]:
        """Answer message by message, as the kernel does, without an acknowledgement where the request wants none."""
        data = table.apply(request)
        while data:
            length, kind = struct.unpack_from("=IH", data)
            (error,) = struct.unpack_from("=i", data, 16)
            if kind != 2 or error or struct.unpack_from("=H", request, 6)[0] & 4:
                yield data[:length]
            data = data[length + -length % 4 :]

    return run_with_peer(library, ["ip", *text], answer)


@pytest.mark.parametrize(
    ("words", "config"),
    [
        ("mac 02:00:5e:10:00:01", VfConfig(mac="02:00:5e:10:00:01")),
        ("vlan 100 qos 5 proto 802.1ad", VfConfig(vlan=100, vlan_qos=5, vlan_proto=VlanProtocol.DOT1AD)),
        ("vlan 7", VfConfig(vlan=7)),
        ("max_tx_rate 1000 min_tx_rate 100", VfConfig(min_tx_rate=100, max_tx_rate=1000)),
        ("spoofchk off", VfConfig(spoofchk=False)),
        ("trust on", VfConfig(trust=True)),
        ("state disable", VfConfig(link_state=VfLinkState.DISABLE)),
    ],
)
def test_what_ip_sets_is_what_we_read_and_would_have_set(
    library: Path, table: VfTable, kernel: HostKernel, words: str, config: VfConfig
) -> None:
    run = ip(library, table, "link", "set", "dev", "pf0", "vf", "2", *words.split())
    assert (run.status, run.output) == (0, "")
    by_ip, read = table.read(), kernel.read_vf(_PF, 2)
    table.write({"pf0": PfState(index=11, vfs=(VfState(),) * 4)})
    kernel.set_vf(_PF, 2, config)
    assert table.read() == by_ip
    assert kernel.read_vf(_PF, 2) == read


def test_what_we_set_is_what_ip_shows(library: Path, table: VfTable, kernel: HostKernel) -> None:
    kernel.set_vf(_PF, 2, SETTINGS.config)
    run = ip(library, table, "link", "show", "dev", "pf0")
    shown = {int(number): text for number, text in re.findall(r"^ +vf (\d+) +(.*)$", run.output, re.MULTILINE)}
    assert sorted(shown) == [0, 1, 2, 3], run.output
    for text in (
        "02:00:5e:10:00:01",
        "vlan 100",
        "qos 3",
        "vlan protocol 802.1ad",
        "tx rate 1000 (Mbps)",
        "max_tx_rate 1000Mbps",
        "min_tx_rate 100Mbps",
        "spoof checking off",
        "link-state enable",
        "trust on",
    ):
        assert text in shown[2]
        assert text not in shown[1]


def test_what_the_table_refuses_ip_says_with_its_words(library: Path, table: VfTable) -> None:
    run = ip(library, table, "link", "set", "dev", "pf0", "vf", "9", "trust", "on")
    assert run.status != 0
    assert "there is no VF 9" in run.output
