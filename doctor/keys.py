"""Check the public keys of a node, and that no private key is beside them.

Take readings of the key files, and return verdicts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from doctor.config import can_be_changed
from hooks.model.assignment import Form
from lading.checks.model import Finding, failed, ok, warning
from lading.errors import ConfigError
from lading.signature import load_public_keys
from lading.sockets import Access

_PRIVATE: Final = b"PRIVATE KEY-----"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReading:
    path: Path
    access: Access | None = None  # None: the file could not be read
    content: bytes = b""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysReading:
    assignments: tuple[str, ...]  # accepted forms of assignments: setting `assignments` of hooks.toml
    keys: Mapping[str, FileReading]  # configured keys by key id
    beside: tuple[FileReading, ...] = ()  # other files in the folders of these keys


def decide_keys(reading: KeysReading) -> Iterator[Finding]:
    private = sorted({str(file.path) for file in (*reading.keys.values(), *reading.beside) if _PRIVATE in file.content})
    for path in private:
        what = f"{path} is a private key: anyone who can read it can sign assignments for every node"
        yield failed(what, mend=f"shred -u {path}, and have central sign with a new key; a node needs the public one only")
    for key_id, file in reading.keys.items():
        if str(file.path) not in private and (problem := _key_problem(key_id, file)):
            yield problem
    if Form.SIGNED not in reading.assignments:
        accepted = ", ".join(reading.assignments)
        yield warning(
            f"assignments = {accepted}: anyone who may write a pod's annotations gets devices without central's signature",
            mend='assignments = ["signed"] in hooks.toml, with [keys], where central assigns',
        )
    elif not reading.keys:
        yield failed(
            "assignments = signed, and there is no key: every assignment is refused", mend='[keys] in hooks.toml: k1 = "FILE"'
        )
    elif not private and not any(_key_problem(key_id, file) for key_id, file in reading.keys.items()):
        yield ok(f"public keys: {', '.join(sorted(reading.keys))}")


def _key_problem(key_id: str, file: FileReading) -> Finding | None:
    if file.problem:
        return failed(f"keys.{key_id}: cannot read {file.path}: {file.problem}", mend=f"ls -l {file.path}")
    try:
        load_public_keys({key_id: file.content})
    except ConfigError as e:
        return failed(f"{file.path}: {e.message}", mend=e.hint)
    if can_be_changed(file.access):
        what = f"other users than root can change {file.path}, and put their own key there"
        return failed(what, mend=f"chown root {file.path}; chmod go-w {file.path}")
    return None
