"""Decide which files a unit hides from its daemon although this command can reach them.

A doctor runs outside the sandbox of its daemon: what it reads may be hidden from the daemon, mounted read-only for it, or
denied to it. Enters: each path as it is here and as the daemon finds it, and the unit's properties. Leaves: verdicts that name
the setting; none where the daemon has what it needs. Where the daemon does not run, or may not be read, only its properties are
used.

Source: systemd.exec(5) ("Sandboxing", "Paths", "Capabilities"), systemd.resource-control(5) (IPAddressAllow=),
path_resolution(7), capabilities(7).
"""

import ipaddress
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from lading.doctor.model import Verdict, failed, warning

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# The properties of `systemctl show` that decide what a daemon reaches.
PROPERTIES: Final = (
    "LoadState",
    "MainPID",
    "User",
    "CapabilityBoundingSet",
    "RootDirectory",
    "RootImage",
    "ProtectHome",
    "ProtectSystem",
    "PrivateTmp",
    "PrivateDevices",
    "PrivateNetwork",
    "InaccessiblePaths",
    "TemporaryFileSystem",
    "BindPaths",
    "BindReadOnlyPaths",
    "ReadOnlyPaths",
    "ReadWritePaths",
    "StateDirectory",
    "RuntimeDirectory",
    "CacheDirectory",
    "LogsDirectory",
    "IPAddressAllow",
    "IPAddressDeny",
)

_HOMES: Final = ("/home", "/root", "/run/user")
_TEMPORARY: Final = ("/tmp", "/var/tmp")  # noqa: S108  as systemd has them
_SYSTEM: Final = ("/usr", "/boot", "/efi")
_NOT_STRICT: Final = ("/dev", "/proc", "/sys")
_FOLDERS: Final = {
    "StateDirectory": "/var/lib",
    "RuntimeDirectory": "/run",
    "CacheDirectory": "/var/cache",
    "LogsDirectory": "/var/log",
}


class Use(StrEnum):
    READ = "read"  # a file
    LIST = "list"  # a folder, and read what is in it
    WRITE = "write"  # into a folder
    CONNECT = "connect to"  # a socket


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """A file of the node that a daemon uses."""

    path: Path
    use: Use
    what: str  # it is to the daemon: kubeconfig, keys.k1
    elsewhere: str  # the commands that move it to a place that the unit does not hide


class Identity(NamedTuple):
    """The identity of a file, the same through every mount."""

    device: int
    inode: int


class Denial(NamedTuple):
    """A folder on the way, or the file at its end, that the daemon's user may not use."""

    path: Path
    uid: int
    mode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """A path, seen from both sides. `here` is this command's, None where it has nothing at that path; the others are the
    daemon's."""

    needed: Needed
    here: Identity | None = None
    there: Identity | None = None
    passed: tuple[Path, ...] = ()  # every folder and file on the way, links followed: the last one is what is used
    denied: Denial | None = None
    read_only: bool = False  # but not for this command


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSeen:
    daemon: str
    properties: Mapping[str, str]  # of its unit, as `systemctl show` prints them
    inside: bool  # looked at through the mount namespace of the daemon that runs
    sights: tuple[Sight, ...] = ()

    @property
    def unit(self) -> str:
        return f"{self.daemon}.service"


def decide_sandbox(seen: SandboxSeen | None) -> Iterator[Verdict]:
    """Yield verdicts; none for a daemon that is not a unit of a systemd here."""
    if seen is not None:
        for sight in seen.sights:
            yield from _look_at(seen, sight)


def _look_at(seen: SandboxSeen, sight: Sight) -> Iterator[Verdict]:
    needed, properties = sight.needed, seen.properties
    if sight.here is None:  # the check itself says so
        if seen.inside and sight.there is not None:
            yield warning(
                f"{needed.path} ({needed.what}) does not exist for this command, but {seen.daemon} finds a file there",
                mend=f"systemctl cat {seen.unit} | grep -i -e Bind -e RootDirectory",
            )
        return
    hidden_by = _first(hiding(properties, path) for path in (*sight.passed, needed.path))
    if sight.there != sight.here if seen.inside else hidden_by:
        yield _not_seen(seen, sight, hidden_by)
    elif sight.denied:
        yield _denied(seen, needed, sight.denied)
    elif needed.use is Use.WRITE and (read_only := _read_only(seen, sight)):
        what = f"{needed.path} ({needed.what}) is read-only for {seen.daemon}: {read_only} in {seen.unit}"
        yield failed(what, mend=_drop_in(seen, f"ReadWritePaths={needed.path}"))


def _not_seen(seen: SandboxSeen, sight: Sight, hidden_by: str) -> Verdict:
    needed = sight.needed
    if sight.there is not None and not hidden_by:
        what = f"{needed.path} ({needed.what}) is another file for {seen.daemon} than for this command"
        return warning(what, mend=f"systemctl cat {seen.unit} | grep -i -e Bind -e RootDirectory")
    cause = f"{hidden_by} in {seen.unit}" if hidden_by else "its mount namespace does not have it"
    what = f"{needed.path} ({needed.what}) exists, but is hidden from {seen.daemon}: {cause}"
    setting = hidden_by.partition("=")[0]
    if setting in ("InaccessiblePaths", "TemporaryFileSystem"):
        mend = f"systemctl cat {seen.unit} shows the file with this line: remove it there; {_restart(seen)}"
    elif hidden_by:
        mend = needed.elsewhere
    else:
        mend = f"{_restart(seen)}; findmnt -N {seen.properties.get('MainPID')} shows what it has"
    return failed(what, mend=mend)


def _denied(seen: SandboxSeen, needed: Needed, denial: Denial) -> Verdict:
    user = seen.properties.get("User") or "root"
    whose = "it" if denial.path == needed.path else str(denial.path)
    without = " and the unit leaves root no CAP_DAC_OVERRIDE" if user == "root" else f" and the unit has User={user}"
    what = (
        f"{needed.path} ({needed.what}): {seen.daemon} may not {needed.use} it: {whose} belongs to uid {denial.uid} "
        f"and has mode {denial.mode:04o},{without}"
    )
    return failed(what, mend=f"chown {user} {denial.path}; ls -ld {denial.path}")


def _drop_in(seen: SandboxSeen, line: str) -> str:
    folder = f"/etc/systemd/system/{seen.unit}.d"
    file = f"{folder}/20-{line.partition('=')[0].lower()}.conf"
    return f"mkdir -p {folder}; printf '[Service]\\n{line}\\n' >> {file}; {_restart(seen)}"


def _restart(seen: SandboxSeen) -> str:
    return f"systemctl daemon-reload && systemctl restart {seen.daemon}"


# ---- what the properties of a unit hide, and what they make read-only


def hiding(properties: Mapping[str, str], path: Path) -> str:
    """Return the setting by which the unit hides this path, or an empty text. Files under a tmpfs may be mounted into it
    again."""
    bound = _bound(properties)
    for key in ("RootDirectory", "RootImage"):
        if properties.get(key):
            return "" if _below(path, bound) else f"{key}={properties[key]}"
    for setting, covered, again in _coverings(properties):
        if _below(path, [covered]) and not (again and _below(path, [b for b in bound if _below(Path(b), [covered])])):
            return setting
    return ""


def _coverings(properties: Mapping[str, str]) -> Iterator[tuple[str, str, bool]]:
    """Yield setting, folder or file, and whether mounts below it are visible."""
    home = properties.get("ProtectHome", "no")
    if home in ("yes", "tmpfs"):
        yield from ((f"ProtectHome={home}", folder, home == "tmpfs") for folder in _HOMES)
    temporary = properties.get("PrivateTmp", "no")
    if temporary in ("yes", "disconnected", "connected"):
        yield from ((f"PrivateTmp={temporary}", folder, True) for folder in _TEMPORARY)
    if properties.get("PrivateDevices") == "yes":
        yield "PrivateDevices=yes", "/dev", True
    for path in _paths(properties, "InaccessiblePaths"):
        yield f"InaccessiblePaths={path}", path, False
    for path in _paths(properties, "TemporaryFileSystem"):
        yield f"TemporaryFileSystem={path}", path.partition(":")[0], True


def writing_refused(properties: Mapping[str, str], path: Path) -> str:
    """Return the setting that makes the path read-only, or an empty text: the setting for the nearest folder counts."""
    nearest = max(
        (rule for rule in _writing(properties) if _below(path, [rule[0]])), key=lambda rule: len(rule[0]), default=("", "")
    )
    return nearest[1]


def _writing(properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each folder and the setting that makes it read-only; an empty text for one that is writable."""
    match properties.get("ProtectSystem", "no"):
        case "strict":
            yield "/", "ProtectSystem=strict"
            yield from ((folder, "") for folder in _NOT_STRICT)
        case "full":
            yield from ((folder, "ProtectSystem=full") for folder in (*_SYSTEM, "/etc"))
        case "yes":
            yield from ((folder, "ProtectSystem=yes") for folder in _SYSTEM)
    if properties.get("ProtectHome") == "read-only":
        yield from ((folder, "ProtectHome=read-only") for folder in _HOMES)
    yield from ((path, f"ReadOnlyPaths={path}") for path in _paths(properties, "ReadOnlyPaths"))
    yield from ((path, "") for path in _paths(properties, "ReadWritePaths"))
    for key, parent in _FOLDERS.items():
        yield from ((f"{parent}/{name.partition(':')[0]}", "") for name in properties.get(key, "").split())


def _read_only(seen: SandboxSeen, sight: Sight) -> str:
    setting = writing_refused(seen.properties, sight.passed[-1] if sight.passed else sight.needed.path)
    if seen.inside:
        return (setting or "a mount of its namespace") if sight.read_only else ""
    return setting


def _paths(properties: Mapping[str, str], key: str) -> Iterator[str]:
    """Yield paths without the marks for "may be missing" and "below RootDirectory="."""
    for word in shlex.split(properties.get(key, "")):
        yield word.lstrip("-+").rstrip("/") or "/"


def _bound(properties: Mapping[str, str]) -> list[str]:
    """Return the paths where the unit mounts something."""
    words = [*_paths(properties, "BindPaths"), *_paths(properties, "BindReadOnlyPaths")]
    return [word.split(":")[1] if ":" in word else word for word in words]


def _below(path: Path, folders: Iterable[str]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def _first(texts: Iterable[str]) -> str:
    return next((text for text in texts if text), "")


# ---- the network


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSeen:
    """A server that the daemon talks to over IP."""

    host: str  # as it is configured
    addresses: tuple[Address, ...]
    resolvers: tuple[Address, ...] = ()  # for the name; empty where it is an address


def decide_network(seen: SandboxSeen | None, server: ServerSeen) -> Iterator[Verdict]:
    if seen is None or not server.addresses:
        return
    if seen.properties.get("PrivateNetwork") == "yes":
        what = f"{seen.daemon} cannot reach {server.host}: PrivateNetwork=yes in {seen.unit}"
        yield failed(what, mend=f"systemctl cat {seen.unit} shows the file with this line: remove it there; {_restart(seen)}")
        return
    refused = _refused(seen.properties, server.addresses)
    asked = _refused(seen.properties, server.resolvers)
    missing = [
        *(refused if len(refused) == len(server.addresses) else ()),
        *(asked if len(asked) == len(server.resolvers) else ()),
    ]
    if missing:
        named = " ".join(map(str, missing))
        whose = f" ({named}, its resolver included)" if asked else f" ({named})" if named != server.host else ""
        what = f"{seen.daemon} cannot reach {server.host}{whose}: {seen.unit} has IPAddressDeny=, and no IPAddressAllow= for it"
        yield failed(what, mend=_drop_in(seen, f"IPAddressAllow={named}"))


def _refused(properties: Mapping[str, str], addresses: Sequence[Address]) -> list[Address]:
    allowed, denied = (_networks(properties.get(key, "")) for key in ("IPAddressAllow", "IPAddressDeny"))
    return [a for a in addresses if not any(a in n for n in allowed) and any(a in n for n in denied)]


def _networks(text: str) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    return [ipaddress.ip_network(word, strict=False) for word in text.split()]
