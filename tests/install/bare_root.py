"""A bare root file system of a Debian suite, as debootstrap makes it, and its own systemd as PID 1 in it.

It takes a root, which it changes, and folders of this machine that are seen in it at their own paths. As in PrivateSystemd, the
units of the boot are few, so that nothing of this machine is set up anew. Everything else is the suite's: systemd, libc, shell.
"""

import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import pytest

from lading.errors import HostError
from simnode.debian import make_root
from tests.fakes.private_systemd import PrivateSystemd

_INCLUDED: Final = ("systemd", "systemd-sysv")
_MOUNTED: Final = ("proc", "sys", "dev", "run", "tmp")
_UNITS: Final = "lib/systemd/system"
_BOOT: Final = """
set -e
root=$1
shift
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind -o ro /sys "$root/sys"
umount -l "$root/sys/fs/cgroup" 2>/dev/null || true
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
for folder in run tmp; do mount -t tmpfs -o mode=755 tmpfs "$root/$folder"; done
for folder in "$@"; do mkdir -p "$root$folder" && mount --rbind "$folder" "$root$folder"; done
cd "$root"
pivot_root . .
umount -l .
cd /
exec env -i container=lading PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=multi-user.target \
    --show-status=no
"""

Seen = dict[str, tuple[int, int, int, str]]


def system_of(suite: str) -> Path:
    """Return the suite's root in the cache. Skips the test where it cannot be had: a mirror need not have every suite."""
    try:
        return make_root(suite, _INCLUDED)
    except HostError as e:
        pytest.skip(str(e))


class BareRoot(PrivateSystemd):
    def __init__(
        self, folder: Path, *, root: Path, shared: Iterable[Path], wanted: Iterable[str], drop_ins: Mapping[str, str]
    ) -> None:
        self.system = root
        self._shared = [str(path) for path in shared]
        super().__init__(folder, wanted=wanted, drop_ins=drop_ins, installed=False)

    def _boot(self) -> list[str]:
        return ["sh", "-c", _BOOT, "boot", str(self.system), *self._shared]

    def _write_etc(self) -> None:
        (self.system / "etc/machine-id").write_text("5f0d2c6100004000800000000000abcd\n")

    def _write_units(self, system: Path) -> None:
        super()._write_units(self.system / _UNITS)
        shutil.rmtree(self.system / _UNITS)
        shutil.copytree(self.folder / "units", self.system / _UNITS)
        shutil.copytree(self.units, self.system / "etc/systemd/system", dirs_exist_ok=True)

    def seen(self) -> Seen:
        """Every file, link and folder of its disk: mode, size, time of the last change (of files), target (of links)."""
        out: Seen = {}
        for folder, names, files in os.walk(self.system):
            at = Path(folder)
            if at == self.system:
                names[:] = [name for name in names if name not in _MOUNTED]
            for path in (at / name for name in (*names, *files)):
                result = path.lstat()
                size, changed = (result.st_size, result.st_mtime_ns) if stat.S_ISREG(result.st_mode) else (0, 0)
                target = str(path.readlink()) if path.is_symlink() else ""
                out[str(path.relative_to(self.system))] = (result.st_mode, size, changed, target)
        return out
