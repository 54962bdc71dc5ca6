"""Compare requests octet by octet with literals from rdma/rdma_netlink.h, and with the requests of rdma(8)."""

import errno
import os
import struct

import pytest

from hooks.attach.messages import RefusedError, render_attribute, render_message
from hooks.attach.rdma_netlink import (
    list_devices,
    read_mode,
    render_get_mode,
    render_list_devices,
    render_move_device,
    render_rename_device,
)
from hooks.model.attachment import RdmaDevice, RdmaMode
from tests.golden.netlink.capture import NETNS_FD, RDMA_INDEX, sent

_ACK = render_message(2, 0, bytes(20))


def refusal(code: int) -> bytes:
    return render_message(2, 0, struct.pack("=i", -code) + bytes(16))


@pytest.mark.parametrize(
    ("name", "request_", "literal"),
    [
        # nlmsghdr: length 16, type 5 << 10 | 6, NLM_F_REQUEST | NLM_F_ACK, sequence 0, port 0
        ("rdma-mode", render_get_mode(), "10000000 0614 0500 00000000 00000000"),
        # … | 1, and NLM_F_DUMP
        ("rdma-list", render_list_devices(), "10000000 0114 0503 00000000 00000000"),
        # length 32, … | 2; DEV_INDEX (1) 7, NET_NS_FD (68) 9
        (
            "rdma-move",
            render_move_device(RDMA_INDEX, NETNS_FD),
            "20000000 0214 0500 00000000 00000000  0800 0100 07000000  0800 4400 09000000",
        ),
        # length 36, … | 2; DEV_INDEX (1) 7, DEV_NAME (2) with its NUL, and a padding octet
        (
            "rdma-rename",
            render_rename_device(RDMA_INDEX, "mlx5_7"),
            "24000000 0214 0500 00000000 00000000  0800 0100 07000000  0b00 0200 6d6c78355f3700 00",
        ),
    ],
)
def test_a_request_is_what_the_kernel_defines_and_rdma_sends(name: str, request_: bytes, literal: str) -> None:
    assert request_ == bytes.fromhex(literal.replace(" ", ""))
    assert request_ == sent()[name]


@pytest.mark.parametrize(("number", "mode"), [(0, RdmaMode.EXCLUSIVE), (1, RdmaMode.SHARED)])
def test_the_mode_is_read(number: int, mode: RdmaMode) -> None:
    attributes = render_attribute(66, bytes([number]))
    assert read_mode(lambda _: render_message(5 << 10 | 6, 0, attributes) + _ACK) is mode


@pytest.mark.parametrize(
    "answer",
    [refusal(errno.EINVAL), refusal(errno.EOPNOTSUPP), render_message(5 << 10 | 6, 0) + _ACK],
    ids=["no such command", "not supported", "no such attribute"],
)
def test_an_older_kernel_shares_every_device(answer: bytes) -> None:
    assert read_mode(lambda _: answer) is RdmaMode.SHARED


def test_another_refusal_is_no_mode() -> None:
    with pytest.raises(RefusedError) as caught:
        read_mode(lambda _: refusal(errno.EPERM))
    assert caught.value.code == errno.EPERM


def test_devices_are_listed_by_name_whole() -> None:
    devices = b"".join(
        render_message(
            5 << 10 | 1,
            2,
            render_attribute(1, struct.pack("=I", index)) + render_attribute(2, name) + render_attribute(3, bytes(4)),
        )
        for index, name in ((3, b"mlx5_1\0"), (12, b"mlx5_10\0"))
    )
    answer = devices + render_message(3, 2, bytes(4))
    assert list_devices(lambda _: answer) == {RdmaDevice(3, "mlx5_1"), RdmaDevice(12, "mlx5_10")}
    assert list_devices(lambda _: render_message(3, 2, bytes(4))) == frozenset()


def test_a_name_that_is_no_text_is_read_as_sysfs_is() -> None:
    attributes = render_attribute(1, struct.pack("=I", 3)) + render_attribute(2, b"\xff\0")
    answer = render_message(5 << 10 | 1, 2, attributes) + render_message(3, 2, bytes(4))
    assert list_devices(lambda _: answer) == {RdmaDevice(3, os.fsdecode(b"\xff"))}
