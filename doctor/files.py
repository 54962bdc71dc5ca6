"""Find problems with the public keys of a node, and with the registration of its hook server.

Enters: files as they were read. Leaves: verdicts.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from doctor.config import can_be_changed
from doctor.model import Verdict, failed, ok, warning
from hooks.model.assignment import Form
from lading.errors import ConfigError
from lading.signature import load_public_keys
from lading.sockets import Access

_PRIVATE: Final = b"PRIVATE KEY-----"


# ---- keys


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSeen:
    path: Path
    access: Access | None = None  # None: it could not be read
    content: bytes = b""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysSeen:
    assignments: tuple[str, ...]
    keys: Mapping[str, FileSeen]  # by key id
    beside: tuple[FileSeen, ...] = ()  # other files in the folders of these keys


def decide_keys(seen: KeysSeen) -> Iterator[Verdict]:
    private = sorted({str(file.path) for file in (*seen.keys.values(), *seen.beside) if _PRIVATE in file.content})
    for path in private:
        what = f"{path} is a private key: anyone who can read it can sign assignments for every node"
        yield failed(what, mend=f"shred -u {path}, and have central sign with a new key; a node needs the public one only")
    for key_id, file in seen.keys.items():
        if str(file.path) not in private and (problem := _key_problem(key_id, file)):
            yield problem
    if Form.SIGNED not in seen.assignments:
        accepted = ", ".join(seen.assignments)
        yield warning(
            f"assignments = {accepted}: who may write a pod's annotations takes devices without central's signature",
            mend='assignments = ["signed"] in hooks.toml, with [keys], where central assigns',
        )
    elif not seen.keys:
        yield failed(
            "assignments = signed, and there is no key: every assignment is refused", mend='[keys] in hooks.toml: k1 = "FILE"'
        )
    elif not private and not any(_key_problem(key_id, file) for key_id, file in seen.keys.items()):
        yield ok(f"public keys: {', '.join(sorted(seen.keys))}")


def _key_problem(key_id: str, file: FileSeen) -> Verdict | None:
    if file.problem:
        return failed(f"keys.{key_id}: cannot read {file.path}: {file.problem}", mend=f"ls -l {file.path}")
    try:
        load_public_keys({key_id: file.content})
    except ConfigError as e:
        return failed(f"{file.path}: {e.message}", mend=e.hint)
    if can_be_changed(file.access):
        what = f"{file.path} can be changed by others than root: they could put a key of theirs there"
        return failed(what, mend=f"chown root {file.path}; chmod go-w {file.path}")
    return None


# ---- registration


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationSeen:
    folder: Path
    files: tuple[FileSeen, ...]
    endpoint: str  # ours
    expected: Mapping[str, Any]


def decide_registration(seen: RegistrationSeen) -> Iterator[Verdict]:
    ours = {file.path: parsed for file in seen.files if (parsed := _registration(file)) and _is_for(parsed, seen.endpoint)}
    path = next(iter(ours), seen.folder / "50-lading.json")
    write = f"lading-hooks registration --write {path}"
    damaged = [file for file in seen.files if _registration(file) is None]
    for file in damaged:
        other = f"python3 -m json.tool {file.path} shows where; or away with it: mv {file.path} {file.path}.off"
        what = f"{file.path} is no registration: {file.problem or 'not a JSON object'}"
        yield failed(what, mend=write if not ours and file.path == path else other)
    if not ours and path not in {file.path for file in damaged}:  # otherwise the damage is the reason
        what = f"no file in {seen.folder} has remote-endpoint {seen.endpoint}: the proxy does not call lading-hooks"
        yield failed(what, mend=write)
    for path, parsed in ours.items():
        differing = sorted(key for key in {*parsed, *seen.expected} if parsed.get(key) != seen.expected.get(key))
        if differing:
            what = f"{path} is not what this configuration makes of it: {', '.join(differing)}"
            yield warning(what, mend=f"lading-hooks registration --write {path}")
        else:
            yield ok(f"{path} is that of this configuration")


def _registration(file: FileSeen) -> dict[str, Any] | None:
    try:
        found = json.loads(file.content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _is_for(registration: Mapping[str, Any], endpoint: str) -> bool:
    return str(registration.get("remote-endpoint", "")).removeprefix("unix://").removeprefix("unix:") == endpoint
