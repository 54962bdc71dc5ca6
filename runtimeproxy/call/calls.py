"""Define the CRI methods that the proxy can hold and their stages, and read a message's id without parsing the message.

CRI v1alpha2 has the same messages as v1 under other names, so both are read with the v1 classes and unknown fields are kept.
`RestorePod` is not in our copy of the API: it creates containers without any stage, and is refused for guarded pods.

Source: runtime.v1 RuntimeService (protos/cri/runtime/v1/api.proto); the protobuf wire format for `read_id`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Final, Protocol

from google.protobuf import empty_pb2
from google.protobuf.message import Message

from protos.cri.runtime.v1 import api_pb2 as cri
from runtimeproxy.protobuf.wire import LENGTH, BrokenWireError, fields, parse_in_parts


class Stage(Enum):
    """Represent a CRI call that hooks can be asked about. The name is the hook API's, the value CRI's."""

    RUN_POD_SANDBOX = "RunPodSandbox"
    STOP_POD_SANDBOX = "StopPodSandbox"
    REMOVE_POD_SANDBOX = "RemovePodSandbox"
    CREATE_CONTAINER = "CreateContainer"
    START_CONTAINER = "StartContainer"
    STOP_CONTAINER = "StopContainer"
    REMOVE_CONTAINER = "RemoveContainer"
    UPDATE_CONTAINER_RESOURCES = "UpdateContainerResources"

    def __init__(self, call: str) -> None:
        """Name the hook points, in Koordinator's words: before the call is forwarded, and after the runtime answered."""
        self.pre = f"Pre{call}"
        self.post = f"Post{call}"


HOOK_POINTS: Final = frozenset(point for stage in Stage for point in (stage.pre, stage.post))

_REQUESTS: Final[Mapping[Stage, type[Message]]] = {
    Stage.RUN_POD_SANDBOX: cri.RunPodSandboxRequest,
    Stage.STOP_POD_SANDBOX: cri.StopPodSandboxRequest,
    Stage.REMOVE_POD_SANDBOX: cri.RemovePodSandboxRequest,
    Stage.CREATE_CONTAINER: cri.CreateContainerRequest,
    Stage.START_CONTAINER: cri.StartContainerRequest,
    Stage.STOP_CONTAINER: cri.StopContainerRequest,
    Stage.REMOVE_CONTAINER: cri.RemoveContainerRequest,
    Stage.UPDATE_CONTAINER_RESOURCES: cri.UpdateContainerResourcesRequest,
}

# A refusal of these calls would keep a pod's devices and sandbox forever, because kubelet retries the calls without end.
_TEARDOWN: Final = frozenset({Stage.STOP_POD_SANDBOX, Stage.REMOVE_POD_SANDBOX, Stage.STOP_CONTAINER, Stage.REMOVE_CONTAINER})


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    name: str
    stage: Stage | None  # None: the method creates containers, but hooks have no stage for it
    request: type[Message]
    teardown: bool = False

    def parse(self, message: bytes) -> Message:
        """Parse the request. Raises google.protobuf's DecodeError."""
        return parse_in_parts(self.request, message)


def _methods() -> dict[bytes, Method]:
    methods = [Method(name=s.value, stage=s, request=_REQUESTS[s], teardown=s in _TEARDOWN) for s in Stage]
    methods.append(Method(name="RestorePod", stage=None, request=empty_pb2.Empty))  # all of it is unknown fields
    return {
        f"/runtime.{version}.RuntimeService/{method.name}".encode(): method
        for version in ("v1", "v1alpha2")
        for method in methods
    }


METHODS: Final[Mapping[bytes, Method]] = _methods()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldCall:
    """Represent a call whose message is complete and whose outcome is awaited."""

    method: Method
    message: bytes
    deadline: float | None  # loop.time() at which the caller gives up
    traceparent: str = ""


class HasHooks(Protocol):
    """Declare the part of a registration that `held_paths` needs."""

    @property
    def hooks(self) -> frozenset[str]: ...


# At most this many fields are read: a message of a million must not block the loop, and CRI requests have four at most.
_MAX_FIELDS: Final = 1000


def held_paths(registrations: Iterable[HasHooks], *, guarded: bool) -> frozenset[bytes]:
    """Return the paths to hold: calls that create or remove sandboxes and containers, and calls that a registration asks for.

    Guarding needs no registration. With neither guarding nor registrations, nothing is held.
    """
    hooks = frozenset(point for registration in registrations for point in registration.hooks)
    if not hooks and not guarded:
        return frozenset()
    always = {Stage.RUN_POD_SANDBOX, Stage.CREATE_CONTAINER, Stage.REMOVE_POD_SANDBOX, Stage.REMOVE_CONTAINER}
    return frozenset(
        path
        for path, method in METHODS.items()
        if method.stage is None or method.stage in always or hooks & {method.stage.pre, method.stage.post}
    )


def read_id(message: bytes) -> str:
    """Return the id that a CRI request starts with (field 1, a string), without parsing the rest; empty if there is none.

    The last occurrence counts, as in every protobuf parser. All stages but RunPodSandbox have such an id.
    """
    id_bytes = b""
    walked = 0
    try:
        for tag, _, content, walked in islice(fields(message, 0, len(message)), _MAX_FIELDS):
            if tag == 1 << 3 | LENGTH:
                id_bytes = message[content:walked]
    except BrokenWireError:
        return ""
    return id_bytes.decode("utf-8", "replace") if walked == len(message) else ""
