"""Parse and restore the rtnetlink settings that a network device keeps when it changes its network namespace.

`parse_kept` takes the kernel's answer about a link, and returns values by name; `render_kept` renders the requests that restore
one of them. When a device changes its namespace, Linux resets only the queueing disciplines and the lists of unicast and
multicast addresses.

Source: net/core/dev.c (__dev_change_net_namespace: dev_close, dev_shutdown, dev_uc_flush, dev_mc_flush; dev_xdp_uninstall: only
in unregister_netdevice_many; __dev_change_flags: the flags that can be set), net/core/rtnetlink.c (do_setlink, rtnl_xdp_fill,
rtnl_fill_ifinfo), linux/if_link.h.

Tests: tests/node/test_netlink_kept.py
"""

import struct
from collections.abc import Iterator
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
)
from hooks.attach.rtnetlink import LINK_HEADER, RTM_NEWLINK, link_attributes, render_link_message

XDP: Final = "xdp"
_FLAGS: Final = "flags"

_BITS: Final = {
    "debug": 0x4,
    "notrailers": 0x20,
    "noarp": 0x80,
    "promisc": 0x100,
    "allmulti": 0x200,
    "multicast": 0x1000,
    "portsel": 0x2000,
    "automedia": 0x4000,
    "dynamic": 0x8000,
}
_NUMBERS: Final = {
    "group": 27,
    "tx-queue-length": 13,
    "gso-max-segments": 40,
    "gso-max-octets": 41,
    "gro-max-octets": 58,
    "gso-ipv4-max-octets": 63,
    "gro-ipv4-max-octets": 64,
}
_OCTET_NUMBERS: Final = {"link-mode": 17, "proto-down": 39}
_OCTETS: Final = {"broadcast": 2, "alias": 20}
_TEXT: Final = frozenset({"alias"})  # settings reported with a NUL at the end, which is not part of the value

_IFLA_XDP: Final = 43
_IFLA_XDP_FD: Final = 1
_IFLA_XDP_FLAGS: Final = 3
_NO_PROGRAM: Final = struct.pack("=i", -1)
# Each XDP mode has an attribute for its program, and a flag (XDP_FLAGS_*_MODE).
_MODES: Final = {"driver": (5, 4), "generic": (6, 2), "offloaded": (7, 8)}

NAMES: Final = frozenset({XDP, _FLAGS, *_NUMBERS, *_OCTET_NUMBERS, *_OCTETS})


def parse_kept(message: NetlinkMessage) -> dict[str, str]:
    """Return the values by name: an integer in decimal, octets in hexadecimal, flags as words, XDP programs as mode and number
    (`generic:12`). An older kernel reports fewer settings."""
    _, _, _, flags, _ = LINK_HEADER.unpack_from(message.body)
    reported = link_attributes(message)
    kept = {XDP: " ".join(_programs(reported.get(_IFLA_XDP, b"")))}
    kept[_FLAGS] = " ".join(name for name, bit in _BITS.items() if flags & bit)
    for name, kind in (_NUMBERS | _OCTET_NUMBERS).items():
        if kind in reported:
            kept[name] = str(parse_number(reported[kind]))
    for name, kind in _OCTETS.items():
        octets = reported.get(kind, b"")
        kept[name] = (octets.rstrip(b"\0") if name in _TEXT else octets).hex()
    return kept


def render_kept(index: int, name: str, *, now: str, wanted: str) -> Iterator[bytes]:
    """Yield the requests that restore one setting. XDP programs are only detached: a removed program cannot be attached
    again."""
    if name == XDP:
        for program in now.split():
            mode = program.partition(":")[0]
            if program not in wanted.split():
                flags = render_number(_IFLA_XDP_FLAGS, _MODES[mode][1])
                yield render_link_message(index, render_nested(_IFLA_XDP, render_attribute(_IFLA_XDP_FD, _NO_PROGRAM), flags))
    elif name == _FLAGS:
        bits = sum(_BITS.get(word, 0) for word in wanted.split())
        yield render_message(RTM_NEWLINK, ASK, LINK_HEADER.pack(0, 0, index, bits, sum(_BITS.values())))
    elif name in _OCTETS:
        yield render_link_message(index, render_attribute(_OCTETS[name], bytes.fromhex(wanted)))
    else:
        size = 1 if name in _OCTET_NUMBERS else 4
        yield render_link_message(index, render_number((_NUMBERS | _OCTET_NUMBERS)[name], int(wanted), size))


def _programs(xdp: bytes) -> Iterator[str]:
    reported = dict(parse_attributes(xdp))
    for mode, (kind, _) in _MODES.items():
        if kind in reported:
            yield f"{mode}:{parse_number(reported[kind])}"
