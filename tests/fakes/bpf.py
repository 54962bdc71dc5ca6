"""Load BPF programs for tests, and attach them to a network device in every way that a pod can use.

`python -m tests.fakes.bpf DEVICE` attaches an XDP program to a device of its namespace.

Source: bpf(2); linux/bpf.h.
"""

import ctypes
import os
import platform
import socket
import struct
import sys
from typing import Final

from hooks.attach.messages import NLA_F_NESTED, parse_answer, render_attribute
from hooks.attach.rtnetlink import render_link_message
from hooks.attach.sockets import NETLINK_ROUTE, NetlinkSocket

XDP_PROGRAM: Final = 6
TC_PROGRAM: Final = 3
TCX_INGRESS: Final = 46
TCX_EGRESS: Final = 47

_PROG_LOAD, _PROG_ATTACH, _LINK_CREATE = 5, 8, 28
_XDP: Final = 37
XDP_GENERIC: Final = 2
XDP_DRIVER: Final = 4
_IFLA_XDP: Final = 43
_NUMBER: Final = {"x86_64": 321, "aarch64": 280}
_PASS: Final = struct.pack("=BBhi", 0xB7, 0, 0, 2) + struct.pack("=BBhi", 0x95, 0, 0, 0)  # r0 = XDP_PASS; exit
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def load(kind: int) -> int:
    """Load a program that lets everything pass; return its descriptor."""
    code, licence = ctypes.create_string_buffer(_PASS), ctypes.create_string_buffer(b"GPL")
    return _bpf(_PROG_LOAD, struct.pack("=IIQQ", kind, 2, ctypes.addressof(code), ctypes.addressof(licence)))


def attach_tcx(index: int, direction: int) -> None:
    fd = load(TC_PROGRAM)
    _bpf(_PROG_ATTACH, struct.pack("=IIII", index, fd, direction, 0))
    os.close(fd)


def link_tcx(index: int, direction: int) -> int:
    """Return the link's descriptor: while it is open, the program is attached."""
    return _bpf(_LINK_CREATE, struct.pack("=IIII", load(TC_PROGRAM), index, direction, 0))


def link_xdp(index: int) -> int:
    return _bpf(_LINK_CREATE, struct.pack("=IIII", load(XDP_PROGRAM), index, _XDP, XDP_GENERIC))


def attach_xdp(index: int, mode: int) -> None:
    """Attach by rtnetlink; `mode`: XDP_FLAGS_*."""
    fd = load(XDP_PROGRAM)
    content = render_attribute(1, struct.pack("=i", fd)) + render_attribute(3, struct.pack("=I", mode))
    with NetlinkSocket(NETLINK_ROUTE) as sock:
        parse_answer(sock.exchange(render_link_message(index, render_attribute(_IFLA_XDP | NLA_F_NESTED, content))))
    os.close(fd)


def _bpf(command: int, request: bytes) -> int:
    buffer = ctypes.create_string_buffer(request, 144)
    result: int = _LIBC.syscall(_NUMBER[platform.machine()], command, buffer, 144)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


if __name__ == "__main__":
    attach_xdp(socket.if_nametoindex(sys.argv[1]), XDP_GENERIC)
