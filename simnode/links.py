"""Read network devices by rtnetlink, without entering their namespace, and independently of the tested code.

A socket is opened once in a namespace, by its path. It lists the namespace's links, and can read a link of another namespace
that has a number in this one (IFLA_LINK_NETNSID of a veth's peer). It reports an event when a link changes in any of them. A
refusal of the kernel is an OSError. Source: rtnetlink(7), netlink(7), linux/if_link.h.
"""

import contextlib
import ctypes
import os
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_NETLINK_ROUTE: Final = 0
_RTMGRP_LINK: Final = 1
_SOL_NETLINK, _LISTEN_ALL_NSID, _ADD_MEMBERSHIP = 270, 8, 1
_NEWLINK, _GETLINK = 16, 18
_ERROR, _DONE = 2, 3
_REQUEST, _DUMP = 0x1, 0x300
_HEADER: Final = struct.Struct("=LHHLL")  # nlmsghdr
_LINK: Final = struct.Struct("=BxHiII")  # ifinfomsg
_ATTRIBUTE: Final = struct.Struct("=HH")
_ADDRESS, _IFNAME, _MTU, _PEER, _IFALIAS, _PEER_NETNSID, _TARGET_NETNSID = 1, 3, 4, 5, 20, 37, 46
_IFF_UP: Final = 1
_FLAGS: Final = {"noarp": 0x80, "promisc": 0x100, "allmulti": 0x200, "multicast": 0x1000}
_KEPT: Final = {"tx-queue-length": 13, "group": 27, "gso-max-segments": 40, "gso-max-octets": 41}
_XDP, _XDP_ATTACHED = 43, 2
_CLONE_NEWNET: Final = 0x40000000
_LARGEST: Final = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedLink:
    index: int
    name: str
    mac: str
    mtu: int
    up: bool
    alias: str  # stays with the device from namespace to namespace
    peer: int  # the index of a veth's other end; 0: it has none
    peer_netnsid: int | None  # in this namespace's numbers; None: the other end is in this namespace too
    kept: Mapping[str, str]  # settings that the device keeps when it changes its namespace


def enter(netns: Path) -> None:
    """Enter that namespace in this thread and in those that it starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(fd, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {netns}: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(fd)


def open_socket(netns: Path, *, listening: bool = False) -> socket.socket:
    """Open a socket in that namespace; with `listening`, one that becomes readable when a link changes there or in a namespace
    that has a number there. A socket keeps the namespace that it was opened in, so a thread that ends opens it."""
    opened: list[socket.socket | OSError] = []

    def work() -> None:
        try:
            enter(netns)
            made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_ROUTE)
            if listening:
                made.setsockopt(_SOL_NETLINK, _LISTEN_ALL_NSID, 1)
            made.bind((0, _RTMGRP_LINK if listening else 0))
            opened.append(made)
        except OSError as e:
            opened.append(e)

    thread = threading.Thread(target=work, name="netns")
    thread.start()
    thread.join()
    if isinstance(opened[0], OSError):
        raise opened[0]
    return opened[0]


def list_links(sock: socket.socket) -> list[ObservedLink]:
    """Return all links of the socket's namespace."""
    return list(_ask(sock, _DUMP, _LINK.pack(0, 0, 0, 0, 0)))


def find_link(sock: socket.socket, index: int, *, netnsid: int | None = None) -> ObservedLink | None:
    """Return a link of the socket's namespace, or of another by that one's number; None where either does not exist."""
    target = b"" if netnsid is None else _ATTRIBUTE.pack(8, _TARGET_NETNSID) + struct.pack("=i", netnsid)
    try:
        return next(_ask(sock, 0, _LINK.pack(0, 0, index, 0, 0) + target), None)
    except OSError:
        return None


def drain(sock: socket.socket) -> None:
    """Read the messages that woke a listening socket."""
    with contextlib.suppress(OSError):  # EAGAIN: that was all; ENOBUFS: some were lost
        while True:
            sock.recv(_LARGEST, socket.MSG_DONTWAIT)


def _ask(sock: socket.socket, flags: int, content: bytes) -> Iterator[ObservedLink]:
    sock.send(_HEADER.pack(_HEADER.size + len(content), _GETLINK, _REQUEST | flags, 1, 0) + content)
    more = True
    while more:
        data = sock.recv(_LARGEST)
        while data:
            length, kind, *_ = _HEADER.unpack_from(data)
            body, data = data[_HEADER.size : length], data[(length + 3) & ~3 :]
            if kind == _ERROR:
                (error,) = struct.unpack_from("=i", body)
                raise OSError(-error, os.strerror(-error))
            more = kind != _DONE and bool(flags & _DUMP)
            if kind == _NEWLINK:
                yield _parse_link(body)


def _parse_link(body: bytes) -> ObservedLink:
    _, _, index, flags, _ = _LINK.unpack_from(body)
    result = dict(_attributes(body[_LINK.size :]))
    nsid = result.get(_PEER_NETNSID)
    return ObservedLink(
        index=index,
        name=result[_IFNAME].rstrip(b"\0").decode(),
        mac=result.get(_ADDRESS, b"").hex(":"),
        mtu=_number(result[_MTU]),
        up=bool(flags & _IFF_UP),
        alias=result.get(_IFALIAS, b"").rstrip(b"\0").decode(),
        peer=_number(result[_PEER]) if _PEER in result else 0,
        peer_netnsid=None if nsid is None else _number(nsid),
        kept={
            "flags": " ".join(name for name, bit in _FLAGS.items() if flags & bit),
            "xdp": "attached" if dict(_attributes(result.get(_XDP, b""))).get(_XDP_ATTACHED, b"\0") != b"\0" else "",
            **{name: str(_number(result[kind])) for name, kind in _KEPT.items() if kind in result},
        },
    )


def render_kept(kept: Mapping[str, str]) -> str:
    """Return the words of `ip link set` that give a new device what one had that died with its namespace. A real function's
    device does not die, and keeps it (net/core/dev.c, default_device_exit_net and __dev_change_net_namespace)."""
    flags = kept["flags"].split()
    text = [
        *("promisc", "on" if "promisc" in flags else "off", "allmulticast", "on" if "allmulti" in flags else "off"),
        *("arp", "off" if "noarp" in flags else "on", "multicast", "on" if "multicast" in flags else "off"),
        *("txqueuelen", kept["tx-queue-length"], "group", kept["group"]),
        *("gso_max_segs", kept["gso-max-segments"], "gso_max_size", kept["gso-max-octets"]),
    ]
    return " ".join(text)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        yield kind & 0x3FFF, data[_ATTRIBUTE.size : length]
        data = data[(length + 3) & ~3 :]


def _number(raw: bytes) -> int:
    return int.from_bytes(raw, "little", signed=True)
