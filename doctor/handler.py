"""Check containerd's runtime handler `lading`, if it is configured: its program, and the annotations of pods that it gets.

Source: containerd's `info` of a verbose Status (PodAnnotations, ContainerAnnotations and options.BinaryName of its runtimes).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from doctor.runtime import RuntimeReading, runtimes_of
from hooks.frontends.nri.guard.handler import HANDLER, RUNC, pod_annotations
from lading.checks.model import Finding, failed, ok, warning
from lading.vocabulary import GRANT

_INSTALL = "lading-hooks install-handler"
_TABLE = f"the table of {HANDLER} as in docs/nri.md; systemctl restart containerd"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerReading:
    runtime: RuntimeReading
    table: Mapping[str, Any] | None  # the handler's table, as the runtime reports it; None: no such handler
    program: str  # path of the handler's program in the runtime's configuration
    version: str  # version of the program; empty: it is not Lading's
    installed: str  # version of this command


def read_handler(runtime: RuntimeReading, *, installed: str) -> HandlerReading:
    """Read the handler's table in the runtime's status, and the version of its program. Blocks."""
    table = runtimes_of(runtime.status).get(HANDLER)
    options = table.get("options") if isinstance(table, dict) else None
    program = str(options.get("BinaryName", "")) if isinstance(options, dict) else ""
    version = RUNC.find_version(Path(program)) if program else ""
    return HandlerReading(runtime=runtime, table=table, program=program, version=version, installed=installed)


def decide_handler(reading: HandlerReading) -> Iterator[Finding]:
    if reading.table is None:
        yield ok(f"{reading.runtime.name} has no runtime handler {HANDLER}, which is optional")
        return
    pods, containers = (reading.table.get(key) or [] for key in ("PodAnnotations", "ContainerAnnotations"))
    name = f"the runtime handler {HANDLER} of {reading.runtime.name}"
    if not reading.version:
        what = f"{name} runs {reading.program or 'no program of its own'}, which is none of Lading"
        yield failed(what, mend=f"{_INSTALL}; BinaryName = what it prints; systemctl restart containerd")
    elif reading.version != reading.installed:
        yield warning(f"{reading.program} has version {reading.version}, and {reading.installed} is installed", mend=_INSTALL)
    if forging := [one for one in (*pods, *containers) if fnmatchcase(GRANT, str(one).replace("[^", "[!"))]:
        yield failed(f"{name} passes {forging[0]}: a pod can write {GRANT} itself", mend=_TABLE)
    if lacking := [one for one in pod_annotations() if one not in pods]:
        yield failed(f"{name} does not pass {lacking[0]}: it cannot tell pods with such annotations", mend=_TABLE)
    elif reading.version == reading.installed and not forging:
        yield ok(f"{name} makes no container of a guarded pod without a grant")
