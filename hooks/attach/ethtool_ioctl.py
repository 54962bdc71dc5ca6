"""Read and write ethtool's ioctl(2) settings of a network device: flow steering rules, RSS, hardware timestamps.

A device is named in the namespace of the calling thread. Settings that its driver does not have are left out.

Source: linux/ethtool.h (struct ethtool_rxnfc, ethtool_rxfh), linux/net_tstamp.h (struct hwtstamp_config), net/ethtool/ioctl.c
(ethtool_get_rxnfc, ethtool_set_rxfh), net/core/dev_ioctl.c (dev_ifsioc).

Tests: tests/unit/hooks/attach/test_ethtool.py
"""

import array
import errno
import fcntl
import hashlib
import socket
import struct
import sys
import zlib
from collections.abc import Callable
from typing import Final

_SIOCETHTOOL: Final = 0x8946
_SIOCSHWTSTAMP: Final = 0x89B0
_SIOCGHWTSTAMP: Final = 0x89B1

_GRXCLSRLCNT: Final = 0x2E
_GRXCLSRULE: Final = 0x2F
_GRXCLSRLALL: Final = 0x30
_SRXCLSRLDEL: Final = 0x31
_GRSSH: Final = 0x46
_SRSSH: Final = 0x47

_RXNFC_SIZE: Final = 192
_RULE_AT: Final = 16  # struct ethtool_rx_flow_spec within struct ethtool_rxnfc
_RULE_SIZE: Final = 168
_LOCATION_AT: Final = _RULE_AT + 160
_COUNT_AT: Final = _RULE_AT + _RULE_SIZE
_LOCATIONS_AT: Final = _COUNT_AT + 4
_RXFH: Final = struct.Struct("=4IBB2xI")  # command, context, sizes of table and key, function, transformation
_RXFH_ENTRY: Final = 4
_IFREQ: Final = struct.Struct("@16sP16x")
_TIMESTAMPING_SIZE: Final = 12

RULES: Final = "flow-rules"
RSS: Final = "rss"
TIMESTAMPING: Final = "timestamping"
NAMES: Final = (RULES, RSS, TIMESTAMPING)

# An `Ioctl` takes a request, a device's name, and the command's buffer, which it changes. It raises OSError.
Ioctl = Callable[[int, str, bytearray], None]


def ioctl(request: int, device: str, buffer: bytearray) -> None:
    shared = array.array("B", buffer)
    ifreq = _IFREQ.pack(device.encode(errors="surrogateescape"), shared.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        fcntl.ioctl(sock, request, ifreq)
    buffer[:] = shared.tobytes()


def read(device: str, do: Ioctl = ioctl) -> dict[str, str]:
    """Return the values by name: a flow rule as `location:digest`; the others as octets in hexadecimal, RSS compressed."""
    result = {}
    for name, get in ((RULES, _read_rules), (RSS, _read_rss), (TIMESTAMPING, _read_timestamping)):
        try:
            result[name] = get(device, do)
        except OSError as e:
            if e.errno == errno.ENODEV:
                raise
    return result


def write(device: str, name: str, *, now: str, wanted: str, do: Ioctl = ioctl) -> None:
    """Set one setting. Unwanted flow rules are removed; a wanted rule that was removed cannot be made again."""
    if name == RULES:
        for rule in sorted({*now.split()} - {*wanted.split()}):
            _about_rule(device, do, _SRXCLSRLDEL, int(rule.partition(":")[0]))
    elif name == RSS:
        _write_rss(device, do, zlib.decompress(bytes.fromhex(wanted)))
    else:
        do(_SIOCSHWTSTAMP, device, bytearray.fromhex(wanted))


def _read_rules(device: str, do: Ioctl) -> str:
    count_of = _rxnfc(_GRXCLSRLCNT)
    do(_SIOCETHTOOL, device, count_of)
    count = _number(count_of, _COUNT_AT)
    listed = _rxnfc(_GRXCLSRLALL, count)
    if count:
        do(_SIOCETHTOOL, device, listed)
    locations = sorted(_number(listed, _LOCATIONS_AT + 4 * number) for number in range(count))
    return " ".join(f"{location}:{_digest(_about_rule(device, do, _GRXCLSRULE, location))}" for location in locations)


def _about_rule(device: str, do: Ioctl, command: int, location: int) -> bytes:
    request = _rxnfc(command)
    struct.pack_into("=I", request, _LOCATION_AT, location)
    do(_SIOCETHTOOL, device, request)
    return bytes(request[_RULE_AT:_LOCATION_AT])


def _read_rss(device: str, do: Ioctl) -> str:
    sizes = bytearray(_RXFH.pack(_GRSSH, 0, 0, 0, 0, 0, 0))
    do(_SIOCETHTOOL, device, sizes)
    _, _, entries, key, *_ = _RXFH.unpack(sizes)
    whole = bytearray(_RXFH.pack(_GRSSH, 0, entries, key, 0, 0, 0)) + bytearray(_RXFH_ENTRY * entries + key)
    do(_SIOCETHTOOL, device, whole)
    return zlib.compress(bytes(whole), 9).hex()


def _write_rss(device: str, do: Ioctl, recorded: bytes) -> None:
    _, _, entries, key, function, transformation, _ = _RXFH.unpack_from(recorded)
    head = _RXFH.pack(_SRSSH, 0, entries, key, function, transformation, 0)
    do(_SIOCETHTOOL, device, bytearray(head + recorded[_RXFH.size :]))


def _read_timestamping(device: str, do: Ioctl) -> str:
    config = bytearray(_TIMESTAMPING_SIZE)
    do(_SIOCGHWTSTAMP, device, config)
    return config.hex()


def _rxnfc(command: int, locations: int = 0) -> bytearray:
    request = bytearray(max(_RXNFC_SIZE, _LOCATIONS_AT + 4 * locations))
    struct.pack_into("=I", request, 0, command)
    struct.pack_into("=I", request, _COUNT_AT, locations)
    return request


def _number(buffer: bytearray, at: int) -> int:
    return int.from_bytes(buffer[at : at + 4], sys.byteorder)


def _digest(octets: bytes) -> str:
    return hashlib.sha256(octets).hexdigest()[:16]
