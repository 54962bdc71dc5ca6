"""Test that the table refuses what Linux refuses. tests/node/test_iproute2.py checks that iproute2 understands it."""

import errno
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from simnode.vf_table import PfState, VfState, VfTable
from tests.golden.netlink.capture import INDEX, sent


@pytest.fixture
def table(tmp_path: Path) -> VfTable:
    table = VfTable(tmp_path / "vfs.json")
    table.write({"pf0": PfState(index=INDEX, vfs=(VfState(),) * 4)})
    return table


def error_of(answer: bytes) -> int:
    length, kind = struct.unpack_from("=IH", answer)
    assert (kind, length) == (2, len(answer))
    return -int(struct.unpack_from("=i", answer, 16)[0])


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("vf-mac", VfState(mac="02:00:5e:10:00:01", mac_fixed=True)),
        ("vf-vlan-qos", VfState(vlan=100, qos=5)),
        ("vf-vlan-802.1ad", VfState(vlan=100, qos=5, vlan_proto=0x88A8)),
        ("vf-rates", VfState(min_tx_rate=100, max_tx_rate=1000)),
        ("vf-rate-old", VfState(max_tx_rate=1000)),
        ("vf-spoofchk-off", VfState(spoofchk=0)),
        ("vf-trust-on", VfState(trust=1)),
        ("vf-state-disable", VfState(link_state=2)),
        ("vf-node-guid", VfState(node_guid=0x0200_0000_0000_002A)),
        ("vf-port-guid", VfState(port_guid=0x0200_0000_0000_002A)),
    ],
)
def test_a_message_of_ip_changes_one_vf(table: VfTable, name: str, state: VfState) -> None:
    assert error_of(table.apply(sent()[name])) == 0
    assert table.read()["pf0"].vfs == (*(VfState(),) * 3, state)


def changed(name: str, at: int, octets: bytes) -> bytes:
    request = sent()[name]
    return request[:at] + octets + request[at + len(octets) :]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (changed("vf-mac", 20, struct.pack("=i", 78)), errno.ENODEV),
        (changed("vf-mac", 44, struct.pack("=I", 4)), errno.EINVAL),
        (changed("vf-mac", 48, b"\x01"), errno.EINVAL),
        (changed("vf-vlan-qos", 48, struct.pack("=I", 4096)), errno.EINVAL),
        (changed("vf-rates", 48, struct.pack("=I", 2000)), errno.EINVAL),
        (changed("vf-vlan-802.1ad", 44, struct.pack("=H", 18)), errno.EINVAL),  # fourteen octets, where the struct has sixteen
        (changed("vf-mac", 40, struct.pack("=H", 39)), errno.ERANGE),
        (changed("vf-mac", 40, struct.pack("=H", 200)), errno.EINVAL),
        (changed("vf-mac", 42, struct.pack("=H", 13)), errno.EOPNOTSUPP),
        (sent()["link-mtu"], errno.EOPNOTSUPP),
        (sent()["vf-mac"] + bytes(4), errno.EINVAL),
    ],
    ids=["device", "vf", "multicast", "vlan", "rates", "short vlan list", "short mac", "cut off", "attribute", "mtu", "length"],
)
def test_a_message_that_linux_refuses_changes_nothing(table: VfTable, request_: bytes, code: int) -> None:
    before = table.read()
    assert error_of(table.apply(request_)) == code
    assert table.read() == before


def test_the_answer_has_the_requests_number(table: VfTable) -> None:
    assert struct.unpack_from("=I", table.apply(changed("vf-mac", 8, struct.pack("=I", 77))), 8) == (77,)


def test_another_table_of_the_same_file_goes_on_where_it_ended(table: VfTable, tmp_path: Path) -> None:
    table.apply(sent()["vf-trust-on"])
    assert VfTable(tmp_path / "vfs.json").read() == table.read()


def test_changes_by_many_threads_are_all_kept(table: VfTable) -> None:
    requests = [changed(name, 44, struct.pack("=I", vf)) for name in ("vf-mac", "vf-trust-on", "vf-rates") for vf in range(4)]
    with ThreadPoolExecutor(8) as threads:
        assert all(error_of(answer) == 0 for answer in threads.map(table.apply, requests * 3))
    assert (
        table.read()["pf0"].vfs
        == (VfState(mac="02:00:5e:10:00:01", mac_fixed=True, trust=1, min_tx_rate=100, max_tx_rate=1000),) * 4
    )
