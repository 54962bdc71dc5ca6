"""The grant of shares to one container, as lading-hooks writes it and the share server reads it: a folder for each container,
with `grant.json` and, made by the server, the socket.

The folder is in the container too, at IN_CONTAINER: the library there reaches the server by it.
"""

from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from lading.devices.assignment import MAX_MEMORY_MIB
from lading.devices.identity import GPU_SHAPE
from lading.vocabulary import GpuUuid, PodUid

FOLDER: Final = Path("/run/lading/shares")
FILE: Final = "grant.json"
SOCKET: Final = "s.sock"
IN_CONTAINER: Final = "/run/lading/gpu"
REAL_LIBRARIES: Final = "/usr/local/lading/gpu/real"  # folder in a container, of the driver's own libraries
MAX_GPUS: Final = 16

_Mib = Annotated[int, msgspec.Meta(ge=1, le=MAX_MEMORY_MIB)]


class SharedGpu(msgspec.Struct, frozen=True, kw_only=True):
    uuid: Annotated[GpuUuid, msgspec.Meta(pattern=rf"\A(?:{GPU_SHAPE})\Z")]
    memory_mib: _Mib  # the most that the container may use of the card
    total_mib: _Mib  # what the card has
    request_percent: Annotated[int, msgspec.Meta(ge=0, le=100)]  # of the card's compute, guaranteed
    limit_percent: Annotated[int, msgspec.Meta(ge=1, le=100)]
    driver_limits: bool = False  # the driver keeps the pod to the memory of its shares: nothing has to be refused beside it


class ShareGrant(msgspec.Struct, frozen=True, kw_only=True):
    v: Literal[1] = 1
    pod: PodUid
    container: str  # empty: all containers of the pod have this share together
    namespace: str = ""
    pod_name: str = ""
    gpus: Annotated[tuple[SharedGpu, ...], msgspec.Meta(min_length=1, max_length=MAX_GPUS)]


def folder_name(pod: str, container: str) -> str:
    return f"{pod}_{container}"


def render_grant(grant: ShareGrant) -> bytes:
    return msgspec.json.encode(grant)


def parse_grant(text: bytes) -> ShareGrant:
    """Raise msgspec.MsgspecError if it is none."""
    return msgspec.json.decode(text, type=ShareGrant)
