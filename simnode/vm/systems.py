"""List the systems that a guest can have: Debian's suites with their own kernel, and newer programs of a later suite."""

from dataclasses import dataclass
from typing import Final

from lading.errors import ConfigError

# Packages of a node, and those that compile its kernel modules. linux-image, -headers and -source are of one version.
PACKAGES: Final = (
    *("linux-image-amd64", "linux-headers-amd64", "linux-source", "patch", "xz-utils", "make", "gcc", "libc6-dev"),
    *("systemd-sysv", "dbus", "udev", "kmod", "initramfs-tools", "zstd", "openssh-server"),
    *("iproute2", "iputils-ping", "ethtool", "pciutils", "rdma-core", "ibverbs-utils", "rdmacm-utils"),
    *("python3", "python3-venv", "containerd", "runc", "containernetworking-plugins", "bpftool"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    name: str
    suite: str
    containerd: str = ""  # the beginning of the version of a later suite's containerd; empty: the suite's own
    packages: tuple[str, ...] = PACKAGES


SYSTEMS: Final = (
    System(name="debian13", suite="trixie"),  # Linux 6.12, Python 3.13, containerd 1.7
    System(name="debian12", suite="bookworm"),  # Linux 6.1, Python 3.11, containerd 1.6
    System(name="debian13-containerd2", suite="trixie", containerd="2."),
)


def find_system(name: str) -> System:
    for system in SYSTEMS:
        if system.name == name:
            return system
    raise ConfigError(f"there is no system {name}; there are {', '.join(system.name for system in SYSTEMS)}")
