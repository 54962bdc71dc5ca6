"""Render and parse NETLINK_RDMA messages: the machine's RDMA mode, the devices of a namespace, their moves and new names.

Requests equal those of `rdma system`, `rdma dev` and `rdma dev set … netns`. A device is identified by its number, because a
process that may configure its namespace's network may rename the device. A driver that is loaded again makes another device,
with a number that no device of this boot had. The kernel reports no PCI addresses here: only sysfs has them, for devices of the
host. A kernel without RDMA has no such protocol (EPROTONOSUPPORT): that is `RdmaMode.NONE`, not an error.

Source: rdma/rdma_netlink.h (enum rdma_nldev_command, rdma_nldev_attr), drivers/infiniband/core/nldev.c and device.c
(assign_name: numbers repeat only after 2**31 devices; ib_device_rename: names are unique on a machine), rdma-system(8).
"""

import errno
from typing import Final

from hooks.attach.messages import (
    ASK,
    NLM_F_DUMP,
    Exchange,
    NetlinkMessage,
    RefusedError,
    parse_answer,
    parse_attributes,
    parse_number,
    parse_text,
    render_message,
    render_number,
    render_text,
)
from hooks.model.attachment import RdmaDevice, RdmaMode

_RDMA_NL_NLDEV: Final = 5
_CMD_GET: Final = 1
_CMD_SET: Final = 2
_CMD_SYS_GET: Final = 6

_ATTR_DEV_INDEX: Final = 1
_ATTR_DEV_NAME: Final = 2
_ATTR_SYS_NETNS_MODE: Final = 66
_ATTR_NET_NS_FD: Final = 68

_MODES: Final = {0: RdmaMode.EXCLUSIVE, 1: RdmaMode.SHARED}

# Kernels before 5.1 and 5.2 refuse the command, or the attribute: there all namespaces see all devices.
_OLDER: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP})


def render_get_mode() -> bytes:
    return _render(_CMD_SYS_GET, ASK)


def render_list_devices() -> bytes:
    return _render(_CMD_GET, ASK | NLM_F_DUMP)


def render_move_device(index: int, netns_fd: int) -> bytes:
    body = render_number(_ATTR_DEV_INDEX, index) + render_number(_ATTR_NET_NS_FD, netns_fd)
    return _render(_CMD_SET, ASK, body)


def render_rename_device(index: int, name: str) -> bytes:
    body = render_number(_ATTR_DEV_INDEX, index) + render_text(_ATTR_DEV_NAME, name)
    return _render(_CMD_SET, ASK, body)


def read_mode(exchange: Exchange) -> RdmaMode:
    """Return the machine's RDMA network namespace mode. Raise RefusedError, OSError."""
    try:
        (answer, *_) = parse_answer(exchange(render_get_mode()))
    except RefusedError as e:
        if e.code in _OLDER:
            return RdmaMode.SHARED
        raise
    return _MODES.get(dict(parse_attributes(answer.body)).get(_ATTR_SYS_NETNS_MODE, b"\1")[0], RdmaMode.SHARED)


def list_devices(exchange: Exchange) -> frozenset[RdmaDevice]:
    """Return the RDMA devices of the socket's namespace. Raise RefusedError, OSError."""
    return frozenset(_parse_device(message) for message in parse_answer(exchange(render_list_devices())))


def _parse_device(message: NetlinkMessage) -> RdmaDevice:
    attributes = dict(parse_attributes(message.body))
    return RdmaDevice(parse_number(attributes[_ATTR_DEV_INDEX]), parse_text(attributes[_ATTR_DEV_NAME]))


def _render(command: int, flags: int, body: bytes = b"") -> bytes:
    return render_message(_RDMA_NL_NLDEV << 10 | command, flags, body)
