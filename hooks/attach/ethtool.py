"""List the network-device settings of ethtool's generic netlink, render their requests, and parse the answers.

A setting is an attribute that a driver reports in an answer of ETHTOOL_MSG_*_GET and takes in *_SET. Settings of the port (link
modes, pause frames, FEC) are left out, because they belong to the PF. A request changes only the bits of a set that differ: a
driver may refuse other bits even if they do not change.

Source: linux/ethtool_netlink.h; Documentation/networking/ethtool-netlink.rst; net/ethtool/bitset.c (compact form).
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from hooks.attach.messages import (
    ASK,
    NetlinkMessage,
    parse_attributes,
    parse_number,
    render_attribute,
    render_message,
    render_nested,
    render_number,
    render_text,
)

_GENL_HEADER: Final = struct.Struct("=BBxx")  # struct genlmsghdr: command, version
_GENL_ID_CTRL: Final = 16
_CTRL_CMD_GETFAMILY: Final = 3
_CTRL_ATTR_FAMILY_ID: Final = 1
_CTRL_ATTR_FAMILY_NAME: Final = 2
_FAMILY: Final = "ethtool"

_HEADER: Final = 1  # ETHTOOL_A_*_HEADER
_HEADER_DEV_INDEX: Final = 1
_HEADER_FLAGS: Final = 3
_COMPACT_BITSETS: Final = 1

_BITSET_SIZE: Final = 2
_BITSET_VALUE: Final = 4
_BITSET_MASK: Final = 5

_BITS: Final = 0  # size of a set of bits; any other size is the octets of an integer


@dataclass(frozen=True, slots=True)
class Group:
    """Hold the settings of one pair of commands. `settings` has the name and the value's size by attribute."""

    get: int
    set: int
    settings: Mapping[int, tuple[str, int]]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.settings.values())


# Private flags and channels come first, because they can change the settings after them.
GROUPS: Final = (
    Group(13, 14, {2: ("private-flags", _BITS)}),
    Group(17, 18, {6: ("channels-rx", 4), 7: ("channels-tx", 4), 8: ("channels-other", 4), 9: ("channels-combined", 4)}),
    Group(
        15,
        16,
        {
            6: ("ring-rx", 4),
            7: ("ring-rx-mini", 4),
            8: ("ring-rx-jumbo", 4),
            9: ("ring-tx", 4),
            10: ("ring-rx-buffer", 4),
            11: ("ring-tcp-data-split", 1),
            12: ("ring-cqe-size", 4),
            13: ("ring-tx-push", 1),
            14: ("ring-rx-push", 1),
            15: ("ring-tx-push-buffer", 4),
            17: ("ring-header-split-threshold", 4),
        },
    ),
    Group(
        19,
        20,
        {
            2: ("coalesce-rx-usecs", 4),
            3: ("coalesce-rx-frames", 4),
            4: ("coalesce-rx-usecs-irq", 4),
            5: ("coalesce-rx-frames-irq", 4),
            6: ("coalesce-tx-usecs", 4),
            7: ("coalesce-tx-frames", 4),
            8: ("coalesce-tx-usecs-irq", 4),
            9: ("coalesce-tx-frames-irq", 4),
            10: ("coalesce-statistics-usecs", 4),
            11: ("coalesce-adaptive-rx", 1),
            12: ("coalesce-adaptive-tx", 1),
            13: ("coalesce-rate-low", 4),
            14: ("coalesce-rx-usecs-low", 4),
            15: ("coalesce-rx-frames-low", 4),
            16: ("coalesce-tx-usecs-low", 4),
            17: ("coalesce-tx-frames-low", 4),
            18: ("coalesce-rate-high", 4),
            19: ("coalesce-rx-usecs-high", 4),
            20: ("coalesce-rx-frames-high", 4),
            21: ("coalesce-tx-usecs-high", 4),
            22: ("coalesce-tx-frames-high", 4),
            23: ("coalesce-sample-interval", 4),
            24: ("coalesce-cqe-mode-tx", 1),
            25: ("coalesce-cqe-mode-rx", 1),
            26: ("coalesce-tx-aggregated-octets", 4),
            27: ("coalesce-tx-aggregated-frames", 4),
            28: ("coalesce-tx-aggregated-usecs", 4),
        },
    ),
    Group(11, 12, {3: ("features", _BITS)}),  # the wanted features: which features are active depends on other settings too
    Group(7, 8, {2: ("message-level", _BITS)}),
)


def render_get_family() -> bytes:
    return _render(_GENL_ID_CTRL, _CTRL_CMD_GETFAMILY, render_text(_CTRL_ATTR_FAMILY_NAME, _FAMILY))


def parse_family(message: NetlinkMessage) -> int:
    """Return the number that this kernel gave to ethtool's generic netlink family."""
    return parse_number(_attributes(message)[_CTRL_ATTR_FAMILY_ID])


def render_get(family: int, group: Group, index: int) -> bytes:
    return _render(family, group.get, _device(index))


def parse_group(group: Group, message: NetlinkMessage) -> dict[str, str]:
    """Return the values by name: an integer in decimal, a set of bits in hexadecimal."""
    reported = _attributes(message)
    return {
        name: dict(parse_attributes(reported[kind])).get(_BITSET_VALUE, b"").hex()
        if size == _BITS
        else str(parse_number(reported[kind]))
        for kind, (name, size) in group.settings.items()
        if kind in reported
    }


def render_set(family: int, group: Group, index: int, *, now: Mapping[str, str], wanted: Mapping[str, str]) -> bytes:
    """Render the request that changes the settings in `wanted`, which differ from those of `now`."""
    return _render(family, group.set, _device(index) + b"".join(_changes(group, now, wanted)))


def _changes(group: Group, now: Mapping[str, str], wanted: Mapping[str, str]) -> Iterator[bytes]:
    for kind, (name, size) in group.settings.items():
        if name not in wanted:
            continue
        if size == _BITS:
            value, current = bytes.fromhex(wanted[name]), bytes.fromhex(now.get(name, ""))
            changed = bytes(a ^ b for a, b in zip(value, current.ljust(len(value), b"\0"), strict=False))
            bits = render_attribute(_BITSET_VALUE, value), render_attribute(_BITSET_MASK, changed)
            yield render_nested(kind, render_number(_BITSET_SIZE, 8 * len(value)), *bits)
        else:
            yield render_number(kind, int(wanted[name]), size)


def _device(index: int) -> bytes:
    return render_nested(_HEADER, render_number(_HEADER_DEV_INDEX, index), render_number(_HEADER_FLAGS, _COMPACT_BITSETS))


def _attributes(message: NetlinkMessage) -> dict[int, bytes]:
    return dict(parse_attributes(message.body[_GENL_HEADER.size :]))


def _render(family: int, command: int, attributes: bytes) -> bytes:
    return render_message(family, ASK, _GENL_HEADER.pack(command, 1) + attributes)
