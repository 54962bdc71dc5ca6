"""Provide a netlink socket for one namespace and one thread: blocking, one exchange at a time, every answer read to its end.

Source: netlink(7); NETLINK_EXT_ACK and NETLINK_CAP_ACK of linux/netlink.h.
"""

import socket
import struct
from typing import Final

from hooks.attach.messages import NetlinkMessage, ends, parse_messages, stamp

NETLINK_ROUTE: Final = 0
NETLINK_GENERIC: Final = 16
NETLINK_RDMA: Final = 20

_SOL_NETLINK: Final = 270
_NETLINK_CAP_ACK: Final = 10
_NETLINK_EXT_ACK: Final = 11

# Seconds to wait for an answer, so that a thread does not wait forever. The kernel carries out a request within send(): however
# long a driver takes, the answer is there when send() returns.
_ANSWER_S: Final = 10


class NetlinkSocket(socket.socket):
    """Hold a netlink socket in the network namespace of the thread that made it; the socket stays there. Raises OSError."""

    def __init__(self, protocol: int) -> None:
        super().__init__(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        self._sequence = 0
        try:
            self.bind((0, 0))
            self.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", _ANSWER_S, 0))
            for option in (_NETLINK_CAP_ACK, _NETLINK_EXT_ACK):
                self.setsockopt(_SOL_NETLINK, option, 1)
        except OSError:
            self.close()
            raise

    def exchange(self, request: bytes) -> bytes:
        """Send a request and return its whole answer (an `Exchange`). Drop answers of other exchanges, and messages that are
        not from the kernel."""
        self._sequence += 1
        self.sendto(stamp(request, self._sequence), (0, 0))
        parts: list[bytes] = []
        while True:
            data, messages = self._receive()
            if any(message.sequence != self._sequence for message in messages):
                continue
            parts.append(data)
            if any(ends(message) for message in messages):
                return b"".join(parts)

    def _receive(self) -> tuple[bytes, list[NetlinkMessage]]:
        """Receive one datagram of the kernel, whatever its size: a PF reports its hundreds of VFs in one datagram."""
        while True:
            size = self.recv_into(bytearray(1), 1, socket.MSG_PEEK | socket.MSG_TRUNC)
            data, (port, _) = self.recvfrom(size)
            if port == 0:
                return data, list(parse_messages(data))
