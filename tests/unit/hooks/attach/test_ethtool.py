"""Test requests and answers of ethtool with a model of a network device that has what a veth has not: rings, rules, RSS,
timestamps.

The real kernel's part is in tests/node/test_netlink_kept.py.
"""

import errno
import struct
from dataclasses import dataclass, field

import pytest

from hooks.attach import ethtool, ethtool_ioctl
from hooks.attach.messages import NetlinkMessage, parse_attributes, render_attribute

_RINGS = next(group for group in ethtool.GROUPS if "ring-rx" in group.names)
_PRIVATE = next(group for group in ethtool.GROUPS if "private-flags" in group.names)


def answer(*attributes: bytes) -> NetlinkMessage:
    return NetlinkMessage(21, 0, 1, b"\0" * 4 + b"".join(attributes))


def u32(kind: int, value: int) -> bytes:
    return render_attribute(kind, struct.pack("=I", value))


def attributes_of(request: bytes) -> dict[int, bytes]:
    return dict(parse_attributes(request[20:]))


def test_integers_are_read_and_only_those_that_differ_are_sent() -> None:
    message = answer(u32(2, 8192), u32(6, 512), u32(9, 512), render_attribute(13, b"\1"))
    now = ethtool.parse_group(_RINGS, message)
    assert now == {"ring-rx": "512", "ring-tx": "512", "ring-tx-push": "1"}
    sent = attributes_of(ethtool.render_set(21, _RINGS, 7, now=now, wanted={"ring-tx": "1024"}))
    assert sent.keys() == {1, 9}
    assert sent[9] == struct.pack("=I", 1024)
    assert dict(parse_attributes(sent[1])) == {1: struct.pack("=I", 7), 3: struct.pack("=I", 1)}


def test_of_a_set_of_bits_those_that_differ_are_sent() -> None:
    bits = u32(2, 40) + render_attribute(4, bytes([0b101, 0, 0, 0, 1, 0, 0, 0]))
    now = ethtool.parse_group(_PRIVATE, answer(render_attribute(2, bits)))
    assert now == {"private-flags": "0500000001000000"}
    request = ethtool.render_set(21, _PRIVATE, 7, now=now, wanted={"private-flags": "0600000001000000"})
    assert dict(parse_attributes(attributes_of(request)[2])) == {
        2: struct.pack("=I", 64),
        4: bytes([0b110, 0, 0, 0, 1, 0, 0, 0]),
        5: bytes([0b011, 0, 0, 0, 0, 0, 0, 0]),
    }


@dataclass
class Nic:
    """Answer the ioctls as a driver does (net/ethtool/ioctl.c): sizes are requested first, and a rule's place must be free or
    taken."""

    rules: dict[int, bytes] = field(default_factory=dict)
    table: bytes = struct.pack("=8I", *range(4), *range(4))
    key: bytes = bytes(range(40))
    timestamping: bytes = bytes(12)
    without: frozenset[int] = frozenset()

    def ioctl(self, request: int, device: str, buffer: bytearray) -> None:
        assert device == "vf0"
        (command,) = struct.unpack_from("=I", buffer)
        if request in self.without:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        if request == 0x89B1:
            buffer[:] = self.timestamping
        elif request == 0x89B0:
            self.timestamping = bytes(buffer)
        elif command == 0x2E:
            struct.pack_into("=I", buffer, 184, len(self.rules))
        elif command == 0x30:
            if struct.unpack_from("=I", buffer, 184)[0] < len(self.rules):
                raise OSError(errno.EMSGSIZE, "Message too long")
            struct.pack_into(f"={len(self.rules)}I", buffer, 188, *self.rules)
        elif command in {0x2F, 0x31}:
            (location,) = struct.unpack_from("=I", buffer, 176)
            if location not in self.rules:
                raise OSError(errno.ENOENT, "No such file or directory")
            buffer[16:176] = self.rules[location]
            if command == 0x31:
                del self.rules[location]
        else:
            self.rss(command, buffer)

    def rss(self, command: int, buffer: bytearray) -> None:
        entries, key = struct.unpack_from("=8xII", buffer)
        if (entries, key) == (0, 0):
            struct.pack_into("=II", buffer, 8, len(self.table) // 4, len(self.key))
            return
        if (entries, key) != (len(self.table) // 4, len(self.key)):
            raise OSError(errno.EINVAL, "Invalid argument")
        middle = 24 + len(self.table)
        if command == 0x46:
            buffer[24:] = self.table + self.key
        else:
            assert command == 0x47
            self.table, self.key = bytes(buffer[24:middle]), bytes(buffer[middle:])


def restore(nic: Nic, before: dict[str, str]) -> None:
    now = ethtool_ioctl.read("vf0", nic.ioctl)
    for name, value in before.items():
        if now[name] != value:
            ethtool_ioctl.write("vf0", name, now=now[name], wanted=value, do=nic.ioctl)


def test_what_a_pod_set_by_ioctl_is_restored() -> None:
    nic = Nic(rules={3: b"a" * 160})
    before = ethtool_ioctl.read("vf0", nic.ioctl)
    table, key = nic.table, nic.key
    nic.rules |= {1: b"b" * 160, 9: b"c" * 160}
    nic.table, nic.key, nic.timestamping = bytes(32), bytes(40), b"\1" * 12
    restore(nic, before)
    assert (nic.rules, nic.table, nic.key, nic.timestamping) == ({3: b"a" * 160}, table, key, bytes(12))
    assert ethtool_ioctl.read("vf0", nic.ioctl) == before


def test_a_rule_that_a_pod_replaced_is_removed() -> None:
    nic = Nic(rules={3: b"a" * 160})
    before = ethtool_ioctl.read("vf0", nic.ioctl)
    nic.rules[3] = b"b" * 160
    restore(nic, before)
    assert nic.rules == {}


def test_what_a_driver_does_not_have_is_left_out() -> None:
    nic = Nic(without=frozenset({0x8946, 0x89B1}))
    assert ethtool_ioctl.read("vf0", nic.ioctl) == {}


def test_a_device_that_is_deleted_is_an_error() -> None:
    def deleted(*_: object) -> None:
        raise OSError(errno.ENODEV, "No such device")

    with pytest.raises(OSError, match="No such device"):
        ethtool_ioctl.read("vf0", deleted)
