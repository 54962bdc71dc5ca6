"""Share a page of memory with the processes of one container: the ends of its turns, and the card memory that it uses.

A process reads the page before each launch of GPU work, without a system call. The page is a memfd that only the server can
write: a process that opens it again for writing gets EPERM (F_SEAL_FUTURE_WRITE, Linux 5.1).

    0   u32 magic  u16 version  u16 devices  i64 beat: the server's clock, each 100 ms
        u8 neighbours[16]: for each device, 1 if other containers have used it within the last second
    32  for each device u16: MiB that a context takes, as far as the driver has said
    64  for each device 64 bytes:
        u8 uuid[16]  i64 until: end of the container's turn, or of its last one  i32 waiters
        i32 request  i32 limit (both ppm)  i32 processes  i64 limit  i64 used (both bytes)
        i32 informs: 1 if the driver enforces the memory limit, so that the library only reports allocations
        u32 pause: number of the pause in which the container launches nothing for a moment; 0: there is none
    1088 u8 turnless[16]: for each device, 1 if launches need no turn, because an MPS server runs them

Tests: tests/unit/shares/test_server.py
"""

import fcntl
import mmap
import os
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

from lading.vocabulary import GpuUuid

SIZE: Final = 4096
_MAGIC: Final = 0x3148534C  # "LSH1"
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<IHHq")
_BEAT: Final = struct.Struct("<q")
_BEAT_AT: Final = 8
_NEIGHBOURS_AT: Final = 16
_DEVICE: Final = struct.Struct("<16sqiiiiqq")
_TURN: Final = struct.Struct("<qi")
_TURN_AT: Final = 16
_PROCESSES: Final = struct.Struct("<i")
_PROCESSES_AT: Final = 36
_USED_AT: Final = 48
_INFORMS_AT: Final = 56
_PAUSE: Final = struct.Struct("<I")
_PAUSE_AT: Final = 60
_CONTEXT: Final = struct.Struct("<H")
_CONTEXTS_AT: Final = 32
_ENTRY: Final = 64
_TURNLESS_AT: Final = 1088
_F_SEAL_FUTURE_WRITE: Final = 0x0010  # linux/fcntl.h; not in Python's fcntl
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | _F_SEAL_FUTURE_WRITE


class DeviceShare(NamedTuple):
    """Hold the share of one card, as a page shows it."""

    uuid: GpuUuid
    request_ppm: int
    limit_ppm: int
    limit_bytes: int
    turns: bool = True


class SharedPage:
    def __init__(self, devices: Sequence[DeviceShare]) -> None:
        """Create the page. Raise OSError, also where the kernel lacks F_SEAL_FUTURE_WRITE."""
        self.fd = os.memfd_create("lading-shares", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, SIZE)
            self._map = mmap.mmap(self.fd, SIZE)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)  # sealed after the mapping, which stays writable
        except OSError:
            os.close(self.fd)
            raise
        self._devices = len(devices)
        _HEAD.pack_into(self._map, 0, _MAGIC, _VERSION, len(devices), 0)
        for index, one in enumerate(devices):
            uuid = bytes.fromhex(one.uuid.removeprefix("GPU-").replace("-", ""))
            entry = uuid, 0, 0, one.request_ppm, one.limit_ppm, 0, one.limit_bytes, 0
            _DEVICE.pack_into(self._map, _at(index), *entry)
            self._map[_TURNLESS_AT + index] = not one.turns

    def beat(self, now_ns: int) -> None:
        _BEAT.pack_into(self._map, _BEAT_AT, now_ns)

    def show_turn(self, device: int, until_ns: int, waiters: int, *, neighbours: bool, pause: int) -> None:
        self._map[_NEIGHBOURS_AT + device] = neighbours
        _PAUSE.pack_into(self._map, _at(device) + _PAUSE_AT, pause & 0xFFFFFFFF)
        _TURN.pack_into(self._map, _at(device) + _TURN_AT, until_ns, waiters)

    def show_used(self, device: int, used_bytes: int) -> None:
        _BEAT.pack_into(self._map, _at(device) + _USED_AT, used_bytes)

    def show_informs(self, device: int, informs: bool) -> None:
        _PROCESSES.pack_into(self._map, _at(device) + _INFORMS_AT, int(informs))

    def show_context(self, device: int, mib: int) -> None:
        _CONTEXT.pack_into(self._map, _CONTEXTS_AT + _CONTEXT.size * device, min(mib, 2**16 - 1))

    def show_processes(self, number: int) -> None:
        """Show how many processes are connected. Without a server, each may use its part of the remaining memory."""
        for device in range(self._devices):
            _PROCESSES.pack_into(self._map, _at(device) + _PROCESSES_AT, number)

    def close(self) -> None:
        self._map.close()
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _at(device: int) -> int:
    return _ENTRY * (device + 1)
