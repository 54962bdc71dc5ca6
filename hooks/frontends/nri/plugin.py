"""Define an NRI plugin: its name, its subscribed events, and the dispatch of the runtime's calls to its handlers.

The runtime calls a plugin by one method for each event, or, before NRI 0.12, by StateChange for most events. An unknown method
is answered as unimplemented: the runtime then falls back to StateChange, while a success would lose the event. An unexpected
error refuses the call.

Source: containerd/nri, pkg/api/api.proto; pkg/adaptation (order of registration: RegisterPlugin, Configure, Synchronize).

Tests: tests/unit/hooks/frontends/nri/test_sieve.py
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from google.protobuf.message import DecodeError, Message

from hooks.frontends.nri.conversation import NriCall, NriCallError
from hooks.frontends.nri.messages import Runtime
from lading.errors import place_of
from lading.http2.messages import GrpcStatus
from lading.log import Event, Log
from lading.reasons import Reason
from protos.nri.v1alpha1 import nri_pb2 as nri

PLUGIN_SERVICE: Final = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE: Final = "nri.pkg.api.v1alpha1.Runtime"

Request = nri.ContainerRequest | nri.ValidateContainerAdjustmentRequest  # both have a pod, and mostly a container
Response = Message | Awaitable[Message]
Handler = Callable[[Request], Response]

# Each of these methods delivers one event. `PodSandboxRequest` is read as a ContainerRequest without a container.
_EVENTS: Final[Mapping[str, nri.Event]] = {
    "RunPodSandbox": nri.RUN_POD_SANDBOX,
    "StopPodSandbox": nri.STOP_POD_SANDBOX,
    "RemovePodSandbox": nri.REMOVE_POD_SANDBOX,
    "CreateContainer": nri.CREATE_CONTAINER,
    "StartContainer": nri.START_CONTAINER,
    "RemoveContainer": nri.REMOVE_CONTAINER,
    "ValidateContainerAdjustment": nri.VALIDATE_CONTAINER_ADJUSTMENT,
}


METHODS: Final = frozenset({"Configure", "Synchronize", "Shutdown", "StateChange", *_EVENTS})


class Plugin(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def index(self) -> str:
        """Return two digits, such as "50", by which the runtime orders its plugins."""

    def handlers(self, runtime: Runtime) -> Mapping[nri.Event, Handler]:
        """Return a handler for each subscribed event: at least one, and only for events that this runtime supports."""

    def synchronized(self, pods: Sequence[nri.PodSandbox]) -> None:
        """Take the list of existing pods. From now on the runtime calls the plugin for each new container."""


@dataclass(slots=True)
class NriService:
    """Answer the runtime's calls on one connection."""

    plugin: Plugin
    log: Log
    runtime: Runtime = field(default_factory=Runtime)
    synchronized: bool = False
    _handlers: Mapping[nri.Event, Handler] = field(default_factory=dict)
    _pods: list[nri.PodSandbox] = field(default_factory=list)

    def answer(self, call: NriCall) -> bytes | Awaitable[bytes]:
        """Return the answer to a call. This function and the returned awaitable raise CallError."""
        if call.problem is not None:
            raise call.problem
        try:
            response = self._respond(call)
        except DecodeError as e:
            raise NriCallError(GrpcStatus.INVALID_ARGUMENT, f"the message is no request of {call.method}") from e
        except NriCallError:
            raise
        except Exception as e:
            raise self._failed(e) from e
        return response.SerializeToString() if isinstance(response, Message) else self._later(response)

    async def _later(self, response: Awaitable[Message]) -> bytes:
        try:
            return (await response).SerializeToString()
        except NriCallError:
            raise
        except Exception as e:
            raise self._failed(e) from e

    def _respond(self, call: NriCall) -> Response:
        match call.method if call.service == PLUGIN_SERVICE else "":
            case "Configure":
                return self._configure(nri.ConfigureRequest.FromString(call.payload))
            case "Synchronize":
                return self._synchronize(nri.SynchronizeRequest.FromString(call.payload))
            case "Shutdown":
                return nri.Empty()
            case "StateChange":
                change = nri.StateChangeEvent.FromString(call.payload)
                return self._handle(change.event, nri.ContainerRequest(pod=change.pod, container=change.container))
            case "ValidateContainerAdjustment":
                return self._handle(_EVENTS[call.method], nri.ValidateContainerAdjustmentRequest.FromString(call.payload))
            case method if method in _EVENTS:
                return self._handle(_EVENTS[method], nri.ContainerRequest.FromString(call.payload))
            case _:
                raise NriCallError(GrpcStatus.UNIMPLEMENTED, f"no method {call.service}.{call.method}"[:200])

    def _configure(self, request: nri.ConfigureRequest) -> Message:
        self.runtime = Runtime(name=request.runtime_name, version=request.runtime_version)
        self._handlers = self.plugin.handlers(self.runtime)
        return nri.ConfigureResponse(events=event_mask(self._handlers))

    def _synchronize(self, request: nri.SynchronizeRequest) -> Message:
        """Take the list of pods, or a part of it. Its containers are ignored: CRI also lists containers that have exited."""
        self._pods += request.pods
        if not request.more:
            self.synchronized = True
            self.plugin.synchronized(self._pods)
            self._pods = []
        return nri.SynchronizeResponse(more=request.more)

    def _handle(self, event: nri.Event, request: Request) -> Response:
        handler = self._handlers.get(event)
        return nri.Empty() if handler is None else handler(request)

    def _failed(self, error: Exception) -> NriCallError:
        log_internal(self.log, error)
        return NriCallError(GrpcStatus.INTERNAL, f"lading: {Reason.INTERNAL}: an error in Lading's plugin, see its log")


def log_internal(log: Log, error: BaseException) -> None:
    log.error(Event.GRANT_REFUSED, f"internal error: {place_of(error)}", reason=Reason.INTERNAL)


def event_mask(events: Collection[nri.Event]) -> int:
    return sum(1 << (event - 1) for event in events)
