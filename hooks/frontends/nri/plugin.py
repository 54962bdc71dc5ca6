"""Define what every plugin of NRI has: its name, the events it subscribes to, and how the runtime's calls reach it.

The runtime calls a plugin by one method for each event, or, before NRI 0.12, by StateChange for most of them. A method that is
not known here is answered as unimplemented: a runtime then falls back to StateChange, where success would lose the event. An
error that was not expected refuses the call.

Source: containerd/nri, pkg/api/api.proto; pkg/adaptation (order of registration: RegisterPlugin, Configure, Synchronize).
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from google.protobuf.message import DecodeError, Message

from hooks.frontends.nri.conversation import Call, CallError
from hooks.frontends.nri.messages import Runtime
from lading.errors import place_of
from lading.http2.messages import Status
from lading.log import Event, Log
from lading.reasons import Reason
from protos.nri.v1alpha1 import nri_pb2 as nri

PLUGIN_SERVICE: Final = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE: Final = "nri.pkg.api.v1alpha1.Runtime"

Request = nri.ContainerRequest | nri.ValidateContainerAdjustmentRequest  # with a pod, and mostly a container
Response = Message | Awaitable[Message]
Handler = Callable[[Request], Response]

# Methods that are an event each. `PodSandboxRequest` is a ContainerRequest without a container.
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
        """Return two digits: plugins are asked in this order."""
        ...

    def handlers(self, runtime: Runtime) -> Mapping[nri.Event, Handler]:
        """Return what it does at the events that it subscribes to: one at least, and of those that the runtime knows."""
        ...

    def synchronized(self, pods: Sequence[nri.PodSandbox]) -> None:
        """Take the pods that are there. Containers that are created from now on are asked about."""
        ...


@dataclass(slots=True)
class Service:
    """The calls of one connection."""

    plugin: Plugin
    log: Log
    runtime: Runtime = field(default_factory=Runtime)
    synchronized: bool = False
    _handlers: Mapping[nri.Event, Handler] = field(default_factory=dict)
    _pods: list[nri.PodSandbox] = field(default_factory=list)

    def answer(self, call: Call) -> bytes | Awaitable[bytes]:
        """Return the answer to a call. Raise CallError, also from the awaitable."""
        if call.problem is not None:
            raise call.problem
        try:
            response = self._respond(call)
        except DecodeError as e:
            raise CallError(Status.INVALID_ARGUMENT, f"the message is no request of {call.method}") from e
        except CallError:
            raise
        except Exception as e:
            raise self._failed(e) from e
        return response.SerializeToString() if isinstance(response, Message) else self._later(response)

    async def _later(self, response: Awaitable[Message]) -> bytes:
        try:
            return (await response).SerializeToString()
        except CallError:
            raise
        except Exception as e:
            raise self._failed(e) from e

    def _respond(self, call: Call) -> Response:
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
                raise CallError(Status.UNIMPLEMENTED, f"no method {call.service}.{call.method}"[:200])

    def _configure(self, request: nri.ConfigureRequest) -> Message:
        self.runtime = Runtime(name=request.runtime_name, version=request.runtime_version)
        self._handlers = self.plugin.handlers(self.runtime)
        return nri.ConfigureResponse(events=event_mask(self._handlers))

    def _synchronize(self, request: nri.SynchronizeRequest) -> Message:
        """Take a part of the list, or the whole. The containers of the list are asked of CRI, which has those that have exited
        too."""
        self._pods += request.pods
        if not request.more:
            self.synchronized = True
            self.plugin.synchronized(self._pods)
            self._pods = []
        return nri.SynchronizeResponse(more=request.more)

    def _handle(self, event: nri.Event, request: Request) -> Response:
        handler = self._handlers.get(event)
        return nri.Empty() if handler is None else handler(request)

    def _failed(self, error: Exception) -> CallError:
        log_internal(self.log, error)
        return CallError(Status.INTERNAL, f"lading: {Reason.INTERNAL}: an error in Lading's plugin, see its log")


def log_internal(log: Log, error: BaseException) -> None:
    log.error(Event.GRANT_REFUSED, f"internal error: {place_of(error)}", reason=Reason.INTERNAL)


def event_mask(events: Collection[nri.Event]) -> int:
    return sum(1 << (event - 1) for event in events)
