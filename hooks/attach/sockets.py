"""A netlink socket for one namespace and one thread: blocking, one exchange at a time, every answer read to its end.

Source: netlink(7); NETLINK_EXT_ACK and NETLINK_CAP_ACK of linux/netlink.h.
"""

import socket
import struct
from types import TracebackType
from typing import Final, Self

from hooks.attach.messages import Message, ends, parse_messages, stamp

NETLINK_ROUTE: Final = 0
NETLINK_GENERIC: Final = 16
NETLINK_RDMA: Final = 20

_SOL_NETLINK: Final = 270
_NETLINK_CAP_ACK: Final = 10
_NETLINK_EXT_ACK: Final = 11

# The kernel carries a request out within send(), so an answer is there when that returns, however long a driver took. If none
# comes, a thread must not wait forever.
_ANSWER_S: Final = 10


class NetlinkSocket:
    """A socket that belongs to the network namespace in which its thread was when it was made, and stays there. Raises
    OSError."""

    def __init__(self, protocol: int) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        try:
            self._socket.bind((0, 0))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", _ANSWER_S, 0))
            for option in (_NETLINK_CAP_ACK, _NETLINK_EXT_ACK):
                self._socket.setsockopt(_SOL_NETLINK, option, 1)
        except OSError:
            self._socket.close()
            raise
        self._sequence = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def exchange(self, request: bytes) -> bytes:
        """Do an `Exchange`. Answers of other exchanges, and messages that are not from the kernel, are dropped."""
        self._sequence += 1
        self._socket.sendto(stamp(request, self._sequence), (0, 0))
        answer = b""
        while True:
            data, messages = self._receive()
            if any(message.sequence != self._sequence for message in messages):
                continue
            answer += data
            if any(ends(message) for message in messages):
                return answer

    def _receive(self) -> tuple[bytes, list[Message]]:
        """Receive one datagram of the kernel, whatever its size: a PF with hundreds of VFs reports all in one."""
        while True:
            size = self._socket.recv_into(bytearray(1), 1, socket.MSG_PEEK | socket.MSG_TRUNC)
            data, (port, _) = self._socket.recvfrom(size)
            if port == 0:
                return data, list(parse_messages(data))
