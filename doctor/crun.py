"""Check whether the container runtime's crun lets containers execute libraries of a file system that is mounted noexec.

A read-only bind mount has exactly the flags that are requested, so that `noexec` of the source does not matter. crun 1.27 to
1.29.1 keeps it: then the loader of a container cannot map libcuda ("failed to map segment from shared object").

Source: containers/crun, f53aa376 (first in 1.27) and pull request 2247, of September 2026; 1.30 is the first release after it.
CRI-O's crio.conf(5) (`default_runtime` is crun since 1.31).
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from doctor.runtime import RuntimeReading, runtimes_of
from lading.checks.model import Finding, failed, ok, warning
from lading.versions import Version, parse_version

_KEEPS_SINCE: Final = Version(1, 27)
_FIXED: Final = Version(1, 30)
_VERSION: Final = re.compile(r"crun version (\S+)")
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # containerd's, by systemd
_OF_CRIO: Final = ("/usr/bin/crun", "/usr/libexec/crio/crun")
_ANSWER_S: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CrunReading:
    folders: tuple[str, ...]  # folders of libraries that are on file systems mounted noexec
    programs: tuple[tuple[str, str], ...] = ()  # path and version of each crun of the runtime; an empty version is unknown


def read_crun(runtime: RuntimeReading, folders: Iterable[Path]) -> CrunReading:
    """Read where libraries of containers are, and the versions of the runtime's crun. Blocks."""
    noexec = tuple(str(folder) for folder in dict.fromkeys(folders) if _is_noexec(folder))
    programs = _list_programs(runtime) if noexec else ()
    return CrunReading(folders=noexec, programs=tuple((program, _ask(program)) for program in programs))


def _is_noexec(folder: Path) -> bool:
    try:
        return bool(os.statvfs(folder).f_flag & os.ST_NOEXEC)
    except OSError:
        return False


def _list_programs(runtime: RuntimeReading) -> Iterator[str]:
    if runtime.version.runtime_name == "cri-o":  # CRI-O's status does not name the programs of runtime handlers
        yield from (program for program in _OF_CRIO if Path(program).exists())
    for table in runtimes_of(runtime.status).values():
        options = table.get("options") if isinstance(table, dict) else None
        program = str(options.get("BinaryName", "")) if isinstance(options, dict) else ""
        if Path(program).name.startswith("crun"):
            yield shutil.which(program, path=_PATH) or program


def _ask(program: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 -- the program that the runtime itself runs as root
            [program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ANSWER_S, check=False
        )
    except (OSError, UnicodeDecodeError, subprocess.TimeoutExpired):
        return ""
    match = _VERSION.search(done.stdout)
    return match[1] if match else ""


def decide_crun(reading: CrunReading) -> Iterator[Finding]:
    where = ", ".join(reading.folders)
    if not reading.folders:
        yield ok("no folder of libraries for containers is on a file system mounted noexec")
        return
    mend = f"crun {_FIXED.major}.{_FIXED.minor} or newer; or mount -o remount,exec the file system of {where}"
    fine = True
    for program, text in reading.programs:
        version = parse_version(text)
        if version is None:
            fine = False
            yield warning(
                f"{where}: mounted noexec, and the version of {program} is not known", mend=f"{program} --version; {mend}"
            )
        elif _KEEPS_SINCE <= version < _FIXED:
            fine = False
            yield failed(
                f"{where}: mounted noexec, which {program} {text} keeps: containers cannot load libraries there", mend=mend
            )
    if fine:
        yield ok(f"{where}: mounted noexec, which the runtime does not keep for read-only mounts")
