"""Read what a daemon can reach of the node, from outside: through its root in /proc where it runs, else by its unit. Blocks.

Paths are followed component by component below the daemon's root, because the kernel would resolve an absolute link in our
root. Permission is judged by modes, as the daemon's user with the daemon's capabilities; ACLs and security modules are not
read. Nothing is changed.

Source: proc_pid_root(5), proc_pid_status(5), path_resolution(7), capabilities(7), systemctl(1) show.
"""

import os
import pwd
import stat
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from lading.doctor.model import Look, Verdict
from lading.doctor.read import ANSWER_S, PROC
from lading.doctor.reading import Readings
from lading.doctor.sandbox import PROPERTIES, Denial, Identity, Needed, SandboxSeen, Sight, Use, decide_sandbox
from lading.errors import HostError
from lading.threads import in_thread

_MOST_LINKS: Final = 40  # path_resolution(7)
_DAC_OVERRIDE: Final = 1 << 1
_DAC_READ_SEARCH: Final = 1 << 2
_BOOTED: Final = Path("run/systemd/system")  # sd_booted(3)
_CGROUP_V2: Final = Path("sys/fs/cgroup/cgroup.controllers")  # only there does systemd filter addresses

V = TypeVar("V", bound="DaemonView")

# The mode bits (of three) that each use needs at the end of its path.
_BITS: Final = {Use.READ: 4, Use.LIST: 5, Use.WRITE: 3, Use.CONNECT: 2}
_SEARCH: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The user, groups and capabilities of a daemon."""

    uid: int = 0
    groups: frozenset[int] = frozenset((0,))
    capabilities: int = ~0


class Step(NamedTuple):
    """A folder or file on a path, with links followed."""

    path: Path
    status: os.stat_result


class DaemonView(Readings):
    """Readings of a node that are compared with what one of its daemons can reach."""

    def __init__(self, daemon: str, root: Path) -> None:
        super().__init__()
        self.root = root
        self._daemon = daemon

    async def inside(self, *needed: Needed) -> SandboxSeen | None:
        """Return the daemon's view; None where no systemd here has the daemon as its unit, or systemd does not answer, which
        `units` reports."""
        try:
            properties = await self.once(
                "unit", lambda: in_thread(lambda: read_properties(self.root, f"{self._daemon}.service"))
            )
        except HostError:
            return None
        return await in_thread(lambda: look(PROC, self._daemon, properties, needed)) if properties else None


def reaches(needed: Callable[[V], Sequence[Needed]]) -> Look[V]:
    """Return a check's second look: whether the daemon itself reaches the files that `needed` returns."""

    async def inside(host: V) -> Iterable[Verdict]:
        return decide_sandbox(await host.inside(*needed(host)))

    return inside


def read_properties(host_root: Path, unit: str) -> dict[str, str] | None:
    """Return a unit's properties; None where there is no systemd, or systemd knows no such unit. Raises HostError where it does
    not answer."""
    if host_root != Path("/") or not (host_root / _BOOTED).is_dir():
        return None
    command = ["systemctl", "show", "--property", ",".join(PROPERTIES), unit]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=ANSWER_S)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as e:
        raise HostError(f"cannot ask systemd about {unit}: {e}") from e
    if done.returncode:
        raise HostError(f"cannot ask systemd about {unit}: {done.stderr.strip()}")
    properties = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    if not (host_root / _CGROUP_V2).exists():
        properties |= {"IPAddressAllow": "", "IPAddressDeny": ""}
    return properties if properties.get("LoadState") == "loaded" else None


def look(proc: Path, daemon: str, properties: Mapping[str, str], needed: Sequence[Needed]) -> SandboxSeen:
    """Look through the daemon's own root where it runs and we have permission; else at our own files, as the daemon's user."""
    folder = proc / properties.get("MainPID", "0")
    try:
        (folder / "root").stat()
        subject, root = read_subject((folder / "status").read_text()), folder / "root"
    except OSError:  # it does not run, or we are not root
        subject, root = planned_subject(properties), None
    sights = tuple(_see(one, root, subject) for one in needed)
    return SandboxSeen(daemon=daemon, properties=properties, inside=root is not None, sights=sights)


def _see(needed: Needed, root: Path | None, subject: Subject) -> Sight:
    try:
        found = needed.path.stat()
    except OSError:  # it is missing, or we may not read it: the check itself says so
        here = None
    else:
        here = Identity(found.st_dev, found.st_ino)
    steps, is_there = walk(root or Path("/"), needed.path)
    last = steps[-1]
    return Sight(
        needed=needed,
        here=here,
        there=Identity(last.status.st_dev, last.status.st_ino) if is_there else None,
        passed=tuple(step.path for step in steps),
        denied=find_denial(steps, needed.use, subject) if is_there else None,
        read_only=root is not None and _is_read_only(_at(root, last.path)) and not _is_read_only(last.path),
    )


def _is_read_only(path: Path) -> bool:
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:  # it exists only on one side
        return False


def walk(root: Path, path: Path) -> tuple[tuple[Step, ...], bool]:
    """Return the folders and files on `path` below `root`, and whether the path exists to its end."""
    steps = [Step(Path("/"), root.stat())]
    pending = list(reversed(path.parts[1:]))
    links = 0
    while pending:
        part = pending.pop()
        if part == "..":
            steps = steps[:-1] or steps
            continue
        here = steps[-1].path / part
        try:
            status = _at(root, here).lstat()
            target = _at(root, here).readlink() if stat.S_ISLNK(status.st_mode) else None
        except OSError:
            return tuple(steps), False
        if target is None:
            steps.append(Step(here, status))
            continue
        links += 1
        if links > _MOST_LINKS:
            return tuple(steps), False
        pending += reversed([word for word in target.parts if word != "/"])
        if target.is_absolute():
            steps = steps[:1]
    return tuple(steps), True


def _at(root: Path, path: Path) -> Path:
    return root / str(path).lstrip("/")


# ---- who may pass


def read_subject(status: str) -> Subject:
    """Parse the subject from `status`, which is /proc/PID/status."""
    fields = {key: value.split() for key, _, value in (line.partition(":") for line in status.splitlines())}
    return Subject(
        uid=int(fields["Uid"][1]),  # the effective ones
        groups=frozenset({int(fields["Gid"][1]), *map(int, fields.get("Groups", ()))}),
        capabilities=int(fields["CapEff"][0], 16),
    )


def planned_subject(properties: Mapping[str, str]) -> Subject:
    """Return the subject that the unit would start."""
    bounding = properties.get("CapabilityBoundingSet", "").split()
    named = {"cap_dac_override": _DAC_OVERRIDE, "cap_dac_read_search": _DAC_READ_SEARCH}
    capabilities = sum(bit for name, bit in named.items() if name in bounding)
    try:
        user = pwd.getpwnam(properties["User"]) if properties.get("User", "0") not in ("", "0", "root") else None
    except KeyError:  # with DynamicUser= there is no user yet
        user = None
    if user is None:
        return Subject(capabilities=capabilities)
    return Subject(uid=user.pw_uid, groups=frozenset({user.pw_gid}), capabilities=0)


def find_denial(steps: Sequence[Step], use: Use, subject: Subject) -> Denial | None:
    """Return the first step that this subject may not pass, or the last one if it may not use it so."""
    for step, bits in [*((step, _SEARCH) for step in steps[:-1]), (steps[-1], _BITS[use])]:
        if not _may(step.status, bits, subject):
            return Denial(step.path, step.status.st_uid, stat.S_IMODE(step.status.st_mode))
    return None


def _may(status: os.stat_result, bits: int, subject: Subject) -> bool:
    if subject.capabilities & _DAC_OVERRIDE:
        return True
    if subject.capabilities & _DAC_READ_SEARCH and bits & ~(4 | (_SEARCH if stat.S_ISDIR(status.st_mode) else 0)) == 0:
        return True
    if status.st_uid == subject.uid:
        granted = status.st_mode >> 6
    elif status.st_gid in subject.groups:
        granted = status.st_mode >> 3
    else:
        granted = status.st_mode
    return granted & bits == bits
