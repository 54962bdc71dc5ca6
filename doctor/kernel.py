"""Check the parts of a node's kernel on which the devices of containers depend: cgroups, the clock.

Take readings of a few files below the host root, and the state of the kernel's clock. Return verdicts. A check without a
reading is skipped; for example, a simulated node has no cgroups.

Source: cgroups(7), kernel's admin-guide/cgroup-v2 ("Device controller": eBPF), adjtimex(2).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from lading.checks.model import Finding, failed, ok, skipped, warning

_LATE_S: Final = 1.0  # maximum error of the clock without a warning, in seconds


class CgroupMode(StrEnum):
    V1 = "v1"
    V2 = "v2"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupsReading:
    mode: CgroupMode
    devices: bool = False  # v1: whether the devices controller exists; v2: whether this kernel has BPF


def decide_cgroups(reading: CgroupsReading) -> Iterator[Finding]:
    match reading.mode:
        case CgroupMode.UNKNOWN:
            yield skipped("neither /sys/fs/cgroup/cgroup.controllers nor /proc/cgroups is there")
        case CgroupMode.V2 if not reading.devices:
            yield failed("cgroup v2, and this kernel has no BPF", mend="a kernel with CONFIG_BPF_SYSCALL and CONFIG_CGROUP_BPF")
        case CgroupMode.V1 if not reading.devices:
            yield failed(
                "cgroup v1 without the devices controller", mend="take cgroup_disable=devices off the kernel's command line"
            )
        case CgroupMode.V2:
            yield ok("cgroup v2: devices are allowed by BPF programs")
        case CgroupMode.V1:
            yield ok("cgroup v1 with the devices controller (kubelet 1.35 and newer wants failCgroupV1: false for it)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    synchronised: bool
    max_error_s: float  # maximum error as estimated by the kernel, in seconds


def decide_clock(reading: ClockReading) -> Iterator[Finding]:
    if not reading.synchronised:
        yield warning(
            "the clock is not synchronised", mend="timedatectl set-ntp true (or chronyc tracking); timedatectl timesync-status"
        )
    elif reading.max_error_s > _LATE_S:
        yield warning(
            f"the clock may be wrong by {reading.max_error_s:.1f} s", mend="chronyc tracking; timedatectl timesync-status"
        )
    else:
        yield ok(f"synchronised, within {reading.max_error_s * 1000:.0f} ms")
