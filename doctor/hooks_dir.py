"""Check the registrations of hook servers, the servers, and the number of the proxy's connections.

Take the folder of registrations as the proxy itself reads it, and each socket that a registration names. Return verdicts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from doctor.ready import DaemonReply
from doctor.sockets import SocketReading
from lading.checks.model import Finding, failed, ok, skipped, warning
from runtimeproxy.chain.registrations import FailurePolicy, Registration

_OURS: Final = "50-lading.json"
_WRITE: Final = "lading-hooks registration --write"
_KEYS: Final = {  # keys of a registration file, by the field of Registration
    "hooks": "runtime-hooks",
    "policy": "failure-policy",
    "prefixes": "annotation-prefixes",
    "deadlines_s": "deadlines",
    "env_values": "env-values",
    "hide_unassigned": "static-adjustments",
}
_MANY: Final = 0.8  # part of max_connections above which there is a warning


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderReading:
    folder: Path
    registrations: tuple[Registration, ...]
    complaints: Mapping[str, str]  # the proxy's complaints, by file name; an empty name stands for the folder itself
    guarded_prefixes: tuple[str, ...]


def decide_folder(reading: FolderReading) -> Iterator[Finding]:
    for name, complaint in reading.complaints.items():
        yield failed(f"{reading.folder}{'/' if name else ': '}{complaint}", mend=_mend_of(reading.folder, name))
    unclaimed = [prefix for prefix in reading.guarded_prefixes if not any(r.claims(prefix) for r in reading.registrations)]
    if unclaimed:
        at = ", at the latest after a restart of the proxy" if reading.complaints else ""  # until then the last valid file
        whose = ", ".join(unclaimed)
        what = f"no registration in {reading.folder} answers for {whose}: pods with such annotations are refused{at}"
        yield failed(what, mend=f"{_WRITE} {reading.folder / _OURS}")
    elif not reading.complaints:
        yield ok(f"{reading.folder}: {', '.join(r.name for r in reading.registrations) or 'nothing, and nothing is guarded'}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationReading:
    folder: FolderReading
    expected: Registration  # registration that follows from this node's configuration


def decide_registration(reading: RegistrationReading) -> Iterator[Finding]:
    folder, expected = reading.folder.folder, reading.expected
    ours = [one for one in reading.folder.registrations if one.endpoint == expected.endpoint]
    if not ours:
        what = f"no valid file in {folder} has remote-endpoint {expected.endpoint}: the proxy does not call lading-hooks"
        yield failed(what, mend=f"{_WRITE} {folder / _OURS}")
    for one in ours:
        path = folder / one.name
        names = (field.name for field in fields(one) if field.name != "name")
        differing = [_KEYS.get(name, name) for name in names if getattr(one, name) != getattr(expected, name)]
        if differing:
            what = f"{path} is not what this configuration makes of it: {', '.join(differing)}"
            yield warning(what, mend=f"{_WRITE} {path}")
        else:
            yield ok(f"{path} is that of this configuration")


def _mend_of(folder: Path, name: str) -> str:
    """Return commands that fix one file. For another program's file, Lading can fix owner and mode, but not the content."""
    path = folder / name
    if not name:
        return f"chown root:root {folder}; chmod 0755 {folder}"
    if name == _OURS:
        return f"{_WRITE} {path}"  # the command also sets owner and mode
    return f"chown root:root {path}; chmod 0644 {path}; the owner of the file must fix its content, or: mv {path} {path}.off"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReading:
    registration: Registration
    socket: SocketReading


def decide_servers(servers: Sequence[ServerReading]) -> Iterator[Finding]:
    if not servers:
        yield skipped("no hook server is registered")
    for server in servers:
        name, reading = server.registration.name, server.socket
        problem = _problem(reading)
        if not problem:
            yield ok(f"{name}: {reading.path} answers; {reading.holder} holds it")
            continue
        ours = "systemctl restart lading-hooks.socket lading-hooks; journalctl -t lading-hooks -n 50"
        others = f"start its server, or remove {name} from hooks_dir if the server is gone for good; ss -xlp src {reading.path}"
        mend = ours if name == _OURS else others
        if server.registration.policy is FailurePolicy.IGNORE:
            yield warning(f"{name}: {problem}; failure-policy Ignore lets pods start without it", mend=mend)
        else:
            yield failed(f"{name}: {problem}", mend=mend)


def _problem(reading: SocketReading) -> str:
    if reading.access is None:
        return f"{reading.path} is not there"
    if not reading.is_socket:
        return f"{reading.path} is not a socket"
    if reading.access.uid != reading.wanted.uid:
        return f"{reading.path} belongs to uid {reading.access.uid}, not to root: the proxy does not use it"
    return f"no process listens at {reading.path}" if reading.holder is None else reading.silence


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReading:
    reply: DaemonReply
    most: int  # maximum number of connections: setting max_connections
    socket: Path


def decide_connections(reading: LoadReading) -> Iterator[Finding]:
    used = reading.reply.gauge("lading_proxy_connections")
    rejected = reading.reply.gauge("lading_proxy_connections_rejected_total") or 0
    if used is None:
        yield skipped("the proxy does not report its connections: see `ready`")
        return
    mend = (
        f"list clients: ss -xp src {reading.socket}; max_connections in runtimeproxy.toml; "
        "systemctl restart lading-runtimeproxy"
    )
    if used >= reading.most:
        yield failed(f"all of {reading.most} connections are in use", mend=mend)
    elif used > _MANY * reading.most:
        yield warning(f"{used:.0f} of {reading.most} connections are in use", mend=mend)
    elif rejected:
        what = f"{rejected:.0f} connections were rejected since the proxy started"
        yield warning(what, mend="journalctl -t lading-runtimeproxy LADING_EVENT=connection.rejected")
    else:
        yield ok(f"{used:.0f} of {reading.most} connections are in use")
