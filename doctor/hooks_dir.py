"""Check the registrations of hook servers, the servers, and the number of the proxy's connections.

Take the folder of registrations as the proxy itself reads it, and each socket that a registration names. Return verdicts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from doctor.ready import DaemonReply
from doctor.sockets import SocketSeen
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
class FolderSeen:
    folder: Path
    registrations: tuple[Registration, ...]
    complaints: Mapping[str, str]  # the proxy's complaints, by file name; an empty name stands for the folder itself
    guarded_prefixes: tuple[str, ...]


def decide_folder(seen: FolderSeen) -> Iterator[Finding]:
    for name, complaint in seen.complaints.items():
        yield failed(f"{seen.folder}{'/' if name else ': '}{complaint}", mend=_mend_of(seen.folder, name))
    unclaimed = [prefix for prefix in seen.guarded_prefixes if not any(r.claims(prefix) for r in seen.registrations)]
    if unclaimed:
        at = ", at the latest after a restart of the proxy" if seen.complaints else ""  # until then the last valid file
        whose = ", ".join(unclaimed)
        what = f"no registration in {seen.folder} answers for {whose}: pods with such annotations are refused{at}"
        yield failed(what, mend=f"{_WRITE} {seen.folder / _OURS}")
    elif not seen.complaints:
        yield ok(f"{seen.folder}: {', '.join(r.name for r in seen.registrations) or 'nothing, and nothing is guarded'}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationSeen:
    folder: FolderSeen
    expected: Registration  # registration that follows from this node's configuration


def decide_registration(seen: RegistrationSeen) -> Iterator[Finding]:
    folder, expected = seen.folder.folder, seen.expected
    ours = [one for one in seen.folder.registrations if one.endpoint == expected.endpoint]
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
class ServerSeen:
    registration: Registration
    socket: SocketSeen


def decide_servers(servers: Sequence[ServerSeen]) -> Iterator[Finding]:
    if not servers:
        yield skipped("no hook server is registered")
    for server in servers:
        name, seen = server.registration.name, server.socket
        problem = _problem(seen)
        if not problem:
            yield ok(f"{name}: {seen.path} answers; {seen.holder} holds it")
            continue
        ours = "systemctl restart lading-hooks.socket lading-hooks; journalctl -t lading-hooks -n 50"
        others = f"start its server, or remove {name} from hooks_dir if the server is gone for good; ss -xlp src {seen.path}"
        mend = ours if name == _OURS else others
        if server.registration.policy is FailurePolicy.IGNORE:
            yield warning(f"{name}: {problem}; failure-policy Ignore lets pods start without it", mend=mend)
        else:
            yield failed(f"{name}: {problem}", mend=mend)


def _problem(seen: SocketSeen) -> str:
    if seen.found is None:
        return f"{seen.path} is not there"
    if not seen.is_socket:
        return f"{seen.path} is not a socket"
    if seen.found.uid != seen.wanted.uid:
        return f"{seen.path} belongs to uid {seen.found.uid}, not to root: the proxy does not use it"
    return f"no process listens at {seen.path}" if seen.holder is None else seen.silence


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSeen:
    said: DaemonReply
    most: int  # maximum number of connections: setting max_connections
    socket: Path


def decide_connections(seen: LoadSeen) -> Iterator[Finding]:
    used = seen.said.gauge("lading_proxy_connections")
    rejected = seen.said.gauge("lading_proxy_connections_rejected_total") or 0
    if used is None:
        yield skipped("the proxy does not report its connections: see `ready`")
        return
    mend = (
        f"list clients: ss -xp src {seen.socket}; max_connections in runtimeproxy.toml; systemctl restart lading-runtimeproxy"
    )
    if used >= seen.most:
        yield failed(f"all of {seen.most} connections are in use", mend=mend)
    elif used > _MANY * seen.most:
        yield warning(f"{used:.0f} of {seen.most} connections are in use", mend=mend)
    elif rejected:
        what = f"{rejected:.0f} connections were rejected since the proxy started"
        yield warning(what, mend="journalctl -t lading-runtimeproxy LADING_EVENT=connection.rejected")
    else:
        yield ok(f"{used:.0f} of {seen.most} connections are in use")
