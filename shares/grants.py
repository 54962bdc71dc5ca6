"""Read the grants of shares that lading-hooks writes for this server: a folder for each container, with `grant.json`.

Only root writes there. A file that cannot be read, or says what it must not, counts as no grant: its container gets no turn.
"""

import os
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from lading.devices.assignment import MAX_MEMORY_MIB
from lading.devices.identity import GPU_SHAPE
from lading.vocabulary import GpuUuid, PodUid

FILE: Final = "grant.json"
SOCKET: Final = "s.sock"
MAX_GPUS: Final = 16
MAX_BYTES: Final = 64 << 10

_Mib = Annotated[int, msgspec.Meta(ge=1, le=MAX_MEMORY_MIB)]


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    uuid: Annotated[GpuUuid, msgspec.Meta(pattern=rf"\A(?:{GPU_SHAPE})\Z")]
    memory_mib: _Mib  # the most that the container may use of the card
    total_mib: _Mib  # what the card has
    request_percent: Annotated[int, msgspec.Meta(ge=0, le=100)]  # of the card's compute, guaranteed
    limit_percent: Annotated[int, msgspec.Meta(ge=1, le=100)]


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    v: Literal[1]
    pod: PodUid
    container: str
    namespace: str = ""
    pod_name: str = ""
    gpus: Annotated[tuple[Gpu, ...], msgspec.Meta(min_length=1, max_length=MAX_GPUS)]


class Version(NamedTuple):
    """What tells one state of a file from another."""

    inode: int
    size: int
    changed_ns: int


def list_grants(folder: Path) -> dict[str, Version]:
    """Return the containers' folders that have a grant, by name. Raises OSError if the folder cannot be read."""
    found = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                status = os.stat(os.path.join(entry.path, FILE), follow_symlinks=False)  # noqa: PTH116, PTH118 -- each 100 ms
            except OSError:
                continue  # being written, or removed
            found[entry.name] = Version(status.st_ino, status.st_size, status.st_mtime_ns)
    return found


def read_grant(path: Path) -> Grant | str:
    """Return the grant, or what is wrong with it."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as e:
        return f"cannot read {path}: {e.strerror}"
    if len(text) > MAX_BYTES:
        return f"cannot use {path}: it has more than {MAX_BYTES} bytes"
    try:
        grant = msgspec.json.decode(text, type=Grant)
    except msgspec.MsgspecError as e:
        return f"cannot use {path}: {e}"
    if len({gpu.uuid for gpu in grant.gpus}) < len(grant.gpus):
        return f"cannot use {path}: it names a card twice"
    for gpu in grant.gpus:
        if gpu.limit_percent < gpu.request_percent:
            return f"cannot use {path}: the limit of {gpu.uuid} is {gpu.limit_percent} %, below its request"
        if gpu.memory_mib > gpu.total_mib:
            return f"cannot use {path}: {gpu.uuid} has {gpu.total_mib} MiB, less than memory_mib"
    return grant


def render_grant(grant: Grant) -> bytes:
    """Return the file's content, as lading-hooks writes it."""
    return msgspec.json.encode(grant)
