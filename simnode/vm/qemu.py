"""Find QEMU: the machine's, or one of Debian 13 that is unpacked in the cache and not installed.

It must be 10.0.13 or newer: 10.0.2 maps the 64-bit BARs of igb's VFs at the lower 32 bits of their address, so that a VF never
reaches its PF. Versions between were not tried.
"""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from simnode.debian import make_root

OLDEST: Final = (10, 0, 13)
_SUITE: Final = "trixie"
_PACKAGES: Final = ("qemu-system-x86", "qemu-utils")
_SYSTEM: Final = "qemu-system-x86_64"
_LIBRARIES: Final = "usr/lib/x86_64-linux-gnu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Qemu:
    system: tuple[str, ...]  # the first words of the command line of an emulator
    img: tuple[str, ...]  # and of qemu-img


def parse_version(text: str) -> tuple[int, ...]:
    """Return (10, 0, 13) of `QEMU emulator version 10.0.13 (Debian …)`; empty if the text has no version."""
    match = re.search(r"version (\d+)\.(\d+)\.(\d+)", text)
    return tuple(map(int, match.groups())) if match else ()


def find_qemu() -> Qemu:
    """Return a QEMU that is new enough. The first call on a machine without one takes minutes and root."""
    if installed := shutil.which(_SYSTEM):
        done = subprocess.run([installed, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
        if parse_version(done.stdout) >= OLDEST and shutil.which("qemu-img"):
            return Qemu(system=(installed,), img=("qemu-img",))
    return _unpacked(make_root(_SUITE, _PACKAGES))


def _unpacked(root: Path) -> Qemu:
    libraries = root / _LIBRARIES
    search = ":".join(str(libraries / name) for name in ("", "pulseaudio", "samba"))

    def program(name: str) -> tuple[str, ...]:
        return str(libraries / "ld-linux-x86-64.so.2"), "--library-path", search, str(root / "usr/bin" / name)

    firmware = [word for name in ("share/qemu", "share/seabios", "lib/ipxe/qemu") for word in ("-L", str(root / "usr" / name))]
    return Qemu(system=("env", f"QEMU_MODULE_DIR={libraries}/qemu", *program(_SYSTEM), *firmware), img=program("qemu-img"))
