"""Serve a container runtime in memory over gRPC: keep all requests byte for byte, and list the created sandboxes and
containers.

The runtime has the properties of containerd that attacks use: requests up to 16 MiB, no check of UTF-8 (containerd 1.6 has
none; a request that Python cannot read is kept as bytes and carried out), long new ids, and NOT_FOUND for an unknown id.
`scripted` answers a method with given bytes. A method that CRI does not have answers with its request.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from uuid import uuid4

import grpc
from google.protobuf.message import DecodeError, Message

from protos.cri.runtime.v1 import api_pb2 as cri
from simnode.cri import Cri

LIMIT: Final = 16 << 20  # containerd's own, [grpc] max_recv_message_size


class NotFoundError(Exception):
    pass


class InMemoryRuntime(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked: list[tuple[str, bytes]] = []  # method and request, of what makes, changes or removes something
        self.sandboxes: dict[str, cri.PodSandbox] = {}
        self.containers: dict[str, cri.Container] = {}
        self.created: dict[str, cri.CreateContainerRequest] = {}  # requests of the containers that exist
        self.scripted: dict[str, bytes] = {}
        self.free = threading.Event()  # while it is not set, scripted answers wait
        self.free.set()
        self._lock = threading.Lock()
        options = [("grpc.max_receive_message_length", LIMIT), ("grpc.max_send_message_length", -1)]
        self._server = grpc.server(ThreadPoolExecutor(16), options=options)
        self._server.add_generic_rpc_handlers((self,))
        self._server.add_insecure_port(f"unix:{path}")

    def __enter__(self) -> Self:
        self._server.start()
        self.path.chmod(0o660)  # containerd's socket has the same mode
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.free.set()
        self._server.stop(None).wait()

    @property
    def socket(self) -> Path:
        return self.path

    def client(self, *, via: Path | None = None, api: str = "v1") -> Cri:
        return Cri(via or self.path, folder=self.path.parent, cgroup_root="none", api=api)

    def requests(self, method: str) -> list[bytes]:
        return [request for asked, request in self.asked if asked == method]

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
        method = handler_call_details.method.rpartition("/")[2]

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            if not method.startswith(("List", "Version", "Status", "ImageStatus", "Echo")):
                self.asked.append((method, request))
            if method in self.scripted:
                self.free.wait()
                return self.scripted[method]
            try:
                with self._lock:  # lists are made while others create
                    return self._answer(method, request)
            except NotFoundError as e:
                context.abort(grpc.StatusCode.NOT_FOUND, str(e))

        return grpc.unary_unary_rpc_method_handler(answer)

    def _answer(self, method: str, request: bytes) -> bytes:
        if method not in _ANSWERS:
            return request
        kind, answer = _ANSWERS[method]
        try:
            parsed = kind.FromString(request)
        except DecodeError:
            made = _new_id().encode()
            return b"\x0a" + bytes((len(made),)) + made  # field 1 of what every method that makes something answers
        return answer(self, parsed).SerializeToString()

    def _image(self, request: cri.ImageStatusRequest) -> Message:
        return cri.ImageStatusResponse(image=cri.Image(id="sha256:" + "0" * 64, repo_tags=[request.image.image]))

    def _run(self, request: cri.RunPodSandboxRequest) -> Message:
        config = request.config
        sandbox = cri.PodSandbox(id=_new_id(), metadata=config.metadata, labels=config.labels, annotations=config.annotations)
        self.sandboxes[sandbox.id] = sandbox
        return cri.RunPodSandboxResponse(pod_sandbox_id=sandbox.id)

    def _create(self, request: cri.CreateContainerRequest) -> Message:
        self._sandbox(request.pod_sandbox_id)
        config = request.config
        container = cri.Container(
            id=_new_id(),
            pod_sandbox_id=request.pod_sandbox_id,
            metadata=config.metadata,
            image=config.image,
            labels=config.labels,
            annotations=config.annotations,
        )
        self.containers[container.id], self.created[container.id] = container, request
        return cri.CreateContainerResponse(container_id=container.id)

    def _remove_container(self, request: cri.RemoveContainerRequest) -> Message:
        self.containers.pop(request.container_id, None)
        self.created.pop(request.container_id, None)
        return cri.RemoveContainerResponse()

    def _stop(self, request: cri.StopPodSandboxRequest) -> Message:
        if sandbox := self.sandboxes.get(request.pod_sandbox_id):
            sandbox.state = cri.SANDBOX_NOTREADY
            for container in self._of(sandbox.id):
                container.state = cri.CONTAINER_EXITED
        return cri.StopPodSandboxResponse()

    def _remove(self, request: cri.RemovePodSandboxRequest) -> Message:
        self.sandboxes.pop(request.pod_sandbox_id, None)
        for container in self._of(request.pod_sandbox_id):
            del self.containers[container.id]
            self.created.pop(container.id, None)
        return cri.RemovePodSandboxResponse()

    def _status(self, request: cri.PodSandboxStatusRequest) -> Message:
        s = self._sandbox(request.pod_sandbox_id)
        status = cri.PodSandboxStatus(id=s.id, metadata=s.metadata, state=s.state, annotations=s.annotations)
        return cri.PodSandboxStatusResponse(status=status)

    def _sandbox(self, sandbox_id: str) -> cri.PodSandbox:
        if sandbox_id not in self.sandboxes:
            raise NotFoundError(f"no sandbox {sandbox_id}")
        return self.sandboxes[sandbox_id]

    def _of(self, sandbox_id: str) -> list[cri.Container]:
        return [c for c in self.containers.values() if c.pod_sandbox_id == sandbox_id]


def _new_id() -> str:
    return uuid4().hex + uuid4().hex


_ANSWERS: Final[dict[str, tuple[type[Message], Callable[[InMemoryRuntime, Any], Message]]]] = {
    "Version": (cri.VersionRequest, lambda _, __: cri.VersionResponse(runtime_name="keeping", runtime_api_version="v1")),
    "Status": (cri.StatusRequest, lambda _, __: cri.StatusResponse()),
    "ImageStatus": (cri.ImageStatusRequest, InMemoryRuntime._image),
    "RunPodSandbox": (cri.RunPodSandboxRequest, InMemoryRuntime._run),
    "CreateContainer": (cri.CreateContainerRequest, InMemoryRuntime._create),
    "RemoveContainer": (cri.RemoveContainerRequest, InMemoryRuntime._remove_container),
    "StopPodSandbox": (cri.StopPodSandboxRequest, InMemoryRuntime._stop),
    "RemovePodSandbox": (cri.RemovePodSandboxRequest, InMemoryRuntime._remove),
    "PodSandboxStatus": (cri.PodSandboxStatusRequest, InMemoryRuntime._status),
    "ListPodSandbox": (
        cri.ListPodSandboxRequest,
        lambda runtime, _: cri.ListPodSandboxResponse(items=runtime.sandboxes.values()),
    ),
    "ListContainers": (
        cri.ListContainersRequest,
        lambda runtime, _: cri.ListContainersResponse(containers=runtime.containers.values()),
    ),
}
