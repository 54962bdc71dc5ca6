"""Check whether SELinux lets containers use their devices, and what Lading gives them of the host: libraries and sockets.

Take the mode, the labels of files, the domain of the share server and the runtime's setting. Return verdicts.

Source: container-selinux 2.250.0 and fedora-selinux/selinux-policy, compiled and searched with sesearch; container_selinux(8).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from doctor.read import read_listener
from hooks.host.attributes import read_attribute
from lading.amounts import first_few
from lading.checks.model import Finding, ok, warning
from lading.selinux import (
    FOR_CONTAINERS,
    SERVER_TYPE,
    SelinuxMode,
    has_categories,
    read_domain,
    read_label,
    read_mode,
    type_of,
)
from lading.sharegrant import SOCKET

# Types of files that container_t may read and execute, and those of sockets that it may write to.
_READABLE: Final = frozenset({"container_file_t", "container_ro_file_t", "lib_t", "textrel_shlib_t", "bin_t", "usr_t"})
_WRITABLE: Final = frozenset({"container_file_t"})
_MODULE: Final = "docs/operations.md, SELinux: semodule -i lading.cil, and the drop-in service.conf"
_NAMED: Final = 8  # maximum paths in one finding


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelReading:
    path: Path
    label: str
    types: frozenset[str]  # types of which one is needed


@dataclass(frozen=True, slots=True, kw_only=True)
class SelinuxReading:
    mode: SelinuxMode
    use_devices: bool | None = None  # SELinux boolean container_use_devices; None: the policy does not have it
    confines: bool | None = None  # whether the runtime gives containers a domain of their own; None: it does not report that
    labels: tuple[LabelReading, ...] = ()
    has_server: bool = False  # whether the node needs the share server
    domain: str | None = None  # label of the share server's process; None: it does not run


def read_selinux(
    root: Path, mounted: Path, *, confines: bool | None, libraries: Path, shares: Path, server: Path | None, answer_s: float
) -> SelinuxReading:
    """Read SELinux of a host. `mounted`: where else the host's root may be, in a container. `shares`: folder of the containers'
    folders. `server`: socket of the share server; None: the node has no isolation tokens. Blocks. Raise PermissionError,
    HostError."""
    mode = read_mode((root, mounted))
    if mode is SelinuxMode.OFF:
        return SelinuxReading(mode=mode)
    selinuxfs = next(one for one in (root, mounted) if (one / "sys/fs/selinux/enforce").exists())
    boolean = read_attribute(selinuxfs / "sys/fs/selinux/booleans/container_use_devices")
    pid = None if server is None else read_listener(server, answer_s)
    return SelinuxReading(
        mode=mode,
        use_devices=None if boolean is None else boolean.startswith("1"),
        confines=confines,
        labels=() if server is None else tuple(_read_labels(libraries, shares)),
        has_server=server is not None,
        domain=None if pid is None else read_domain(root / "proc", pid),
    )


def _read_labels(libraries: Path, shares: Path) -> Iterator[LabelReading]:
    for path in sorted(libraries.glob("*.so*")):
        yield LabelReading(path=path, label=read_label(path), types=_READABLE)
    for folder in sorted(shares.glob("*_*")):
        for path in (folder, folder / SOCKET):
            try:
                yield LabelReading(path=path, label=read_label(path), types=_WRITABLE)
            except FileNotFoundError:  # the grant has ended meanwhile, or the server has not made the socket yet
                continue


def decide_selinux(reading: SelinuxReading) -> Iterator[Finding]:
    """Warn about what SELinux denies to containers. While it is permissive, it denies nothing."""
    if reading.mode is SelinuxMode.OFF:
        yield ok("no SELinux")
        return
    if reading.confines is False:
        yield ok(f"SELinux is {reading.mode}, and the runtime gives containers no domain of their own (enable_selinux = false)")
        return
    denials = [*_find_devices(reading), *_find_labels(reading), *_find_domain(reading)]
    if reading.mode is SelinuxMode.ENFORCING:
        yield from (warning(f"SELinux is enforcing: {denial.what}", mend=denial.mend) for denial in denials)
    elif denials:
        yield ok(f"SELinux is permissive; in enforcing mode {'; '.join(denial.what for denial in denials)}")
    if not denials:
        used = " and shares" if reading.has_server else ""
        yield ok(f"SELinux is {reading.mode}, and lets containers use devices{used}")


class _Denial(NamedTuple):
    what: str
    mend: str


def _find_devices(reading: SelinuxReading) -> Iterator[_Denial]:
    if reading.use_devices is False:
        yield _Denial(
            "containers may be denied their devices, because container_use_devices is off",
            "setsebool -P container_use_devices on; ausearch -m avc -ts recent",
        )


def _find_labels(reading: SelinuxReading) -> Iterator[_Denial]:
    wrong = [one for one in reading.labels if type_of(one.label) not in one.types or has_categories(one.label)]
    if wrong:
        paths = [str(one.path) for one in wrong]
        what = f"containers are denied {first_few(paths, _NAMED)}: the label is {wrong[0].label or 'missing'}"
        yield _Denial(what, f"chcon {FOR_CONTAINERS} {' '.join(paths[:_NAMED])}")


def _find_domain(reading: SelinuxReading) -> Iterator[_Denial]:
    if not reading.has_server:
        return
    if reading.domain is None:
        what = f"lading-shares does not run; containers may connect to it only in the domain {SERVER_TYPE}"
        yield _Denial(what, f"systemctl status lading-shares; {_MODULE}")
    elif type_of(reading.domain) != SERVER_TYPE:
        domain = reading.domain or "not known"
        what = f"containers are denied connections to lading-shares: its domain is {domain}, and not {SERVER_TYPE}"
        yield _Denial(what, _MODULE)
