"""Read and detach BPF programs of a network device by bpf(2): TCX programs, and the links that attach XDP or TCX programs.

A device that changes its network namespace keeps both. rtnetlink shows no TCX, and refuses to detach a program that a link
attached. A device is named by its index in the namespace of the calling thread.

Source: linux/bpf.h (union bpf_attr, struct bpf_link_info); kernel/bpf/tcx.c (tcx_uninstall: when a device ends; Linux 6.6);
net/core/dev.c (dev_xdp_attach: EBUSY beside a link).

Tests: tests/node/test_netlink_kept.py
"""

import ctypes
import os
import platform
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_NUMBERS: Final = {"x86_64": 321, "aarch64": 280}
_SIZE: Final = 144  # octets of union bpf_attr; the kernel requires zeros in fields that it does not know

_PROG_DETACH: Final = 9
_PROG_GET_FD_BY_ID: Final = 13
_OBJ_GET_INFO_BY_FD: Final = 15
_PROG_QUERY: Final = 16
_LINK_GET_FD_BY_ID: Final = 30
_LINK_GET_NEXT_ID: Final = 31
_LINK_DETACH: Final = 34
_LINK_TYPE_XDP: Final = 6
_INFO_SIZE: Final = 128
_MOST: Final = 64  # BPF_MPROG_MAX
_COUNT_AT: Final = 24

TCX: Final = {"tcx-ingress": 46, "tcx-egress": 47}

_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def read_tcx(index: int) -> dict[str, str]:
    """Return the numbers of the TCX programs by direction; empty if this kernel has no TCX, or this process may not use BPF."""
    result = {}
    for name, kind in TCX.items():
        try:
            result[name] = " ".join(str(program) for program, _ in _query(index, kind))
        except OSError:
            continue
    return result


def detach_tcx(index: int, name: str, *, now: str, wanted: str) -> None:
    """Detach all TCX programs of one direction except `wanted`. Raise OSError."""
    for program, link in _query(index, TCX[name]):
        if str(program) in wanted.split():
            continue
        if link:
            _detach_link(link)
        else:
            with _opened(_PROG_GET_FD_BY_ID, program) as fd:
                _bpf(_PROG_DETACH, struct.pack("=IIII", index, fd, TCX[name], 0))


def detach_xdp_link(index: int, program: int) -> None:
    """Detach the link that attaches this program to the device, if there is one. Raise OSError."""
    for link in _links():
        info = ctypes.create_string_buffer(_INFO_SIZE)
        try:
            with _opened(_LINK_GET_FD_BY_ID, link) as fd:
                _bpf(_OBJ_GET_INFO_BY_FD, struct.pack("=IIQ", fd, _INFO_SIZE, ctypes.addressof(info)))
        except FileNotFoundError:  # the BPF link was detached after it was listed
            continue
        if struct.unpack_from("=I4xI4xI", info.raw) == (_LINK_TYPE_XDP, program, index):
            _detach_link(link)


def _query(index: int, kind: int) -> list[tuple[int, int]]:
    """Return the numbers of each attached program and of its link; the link is 0 if there is none."""
    programs, links = (ctypes.c_uint32 * _MOST)(), (ctypes.c_uint32 * _MOST)()
    request = struct.pack(
        "=IIIIQIIQQQQ", index, kind, 0, 0, ctypes.addressof(programs), _MOST, 0, 0, ctypes.addressof(links), 0, 0
    )
    (count,) = struct.unpack_from("=I", _bpf(_PROG_QUERY, request)[1], _COUNT_AT)
    return list(zip(programs[:count], links[:count], strict=True))


def _links() -> Iterator[int]:
    last = 0
    while True:
        try:
            _, answer = _bpf(_LINK_GET_NEXT_ID, struct.pack("=II", last, 0))
        except FileNotFoundError:  # the kernel has no further link
            return
        (last,) = struct.unpack_from("=I", answer, 4)
        yield last


def _detach_link(link: int) -> None:
    with _opened(_LINK_GET_FD_BY_ID, link) as fd:
        _bpf(_LINK_DETACH, struct.pack("=I", fd))


@contextmanager
def _opened(command: int, number: int) -> Iterator[int]:
    fd, _ = _bpf(command, struct.pack("=I", number))
    try:
        yield fd
    finally:
        os.close(fd)


def _bpf(command: int, request: bytes) -> tuple[int, bytes]:
    buffer = ctypes.create_string_buffer(request, _SIZE)
    result = _LIBC.syscall(_NUMBERS.get(platform.machine(), -1), command, buffer, _SIZE)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result, buffer.raw
