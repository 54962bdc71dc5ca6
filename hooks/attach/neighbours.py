"""Make the IPv6 addresses of a network device usable, and known to its neighbours, as soon as the device is up.

Two settings of the device, in the network namespace of the calling thread: `optimistic_dad` (RFC 4429) lets a program use an
address while duplicate address detection still runs, which takes one second; `ndisc_notify` makes the kernel send an
unsolicited neighbour advertisement when the device comes up. Without it, neighbours keep the MAC of another VF, which had the
address before, until they find it unreachable.

Source: Linux, Documentation/networking/ip-sysctl.rst; net/ipv6/ndisc.c (ndisc_netdev_event); RFC 4861, section 7.2.6.

Tests: tests/node/test_netlink.py
"""

import contextlib
from pathlib import Path
from typing import Final

_SETTINGS: Final = Path("/proc/sys/net/ipv6/conf")


def announce_ipv6(device: str) -> None:
    """Switch `optimistic_dad` and `ndisc_notify` on for the device. A setting that the kernel lacks, or that this process may
    not write, stays as it is."""
    for setting in ("optimistic_dad", "ndisc_notify"):
        with contextlib.suppress(OSError):  # the address works without it, a second later
            (_SETTINGS / device / setting).write_text("1")
