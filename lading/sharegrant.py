"""Define the grant of shares to one container, which lading-hooks writes and the share server reads.

Each container has a folder with `grant.json` and the socket, which the server creates. The folder is in the container too, at
IN_CONTAINER, so that the library there reaches the server.

Tests: tests/unit/hooks/node/test_share_watch.py
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
# Paths in a container have a folder of their own in its root: no volume of a pod covers the root, and many cover /run or /usr.
IN_CONTAINER: Final = "/.lading/gpu/share"
REAL_LIBRARIES: Final = "/.lading/gpu/real"  # folder of the driver's own libraries
MAX_GPUS: Final = 16

_Mib = Annotated[int, msgspec.Meta(ge=1, le=MAX_MEMORY_MIB)]


class SharedGpu(msgspec.Struct, frozen=True, kw_only=True):
    uuid: Annotated[GpuUuid, msgspec.Meta(pattern=rf"\A(?:{GPU_SHAPE})\Z")]
    memory_mib: _Mib  # maximum memory of the card that the container may use
    total_mib: _Mib  # memory of the card
    request_percent: Annotated[int, msgspec.Meta(ge=0, le=100)]  # guaranteed percent of the card's compute
    limit_percent: Annotated[int, msgspec.Meta(ge=1, le=100)]
    driver_limits: bool = False  # the driver limits the pod to its shares' memory, so nothing else needs to refuse
    turns: bool = True  # kernels run in turns of the card only; False: an MPS server runs them at any time


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
    """Return the grant in this text. Raises msgspec.MsgspecError if it is not a grant."""
    return msgspec.json.decode(text, type=ShareGrant)
