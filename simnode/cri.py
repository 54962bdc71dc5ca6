"""Create pods by CRI as a kubelet does, and remove them at the end: for the demo, the node tests and the bench.

The input is the socket of a runtime, or of the proxy in front of a runtime. The results are handles of pods and containers. A
call that the server refuses or does not answer raises CriError with gRPC's status code and text. The end of the `with` block
removes every pod made in it, also after a failure. Source: CRI `runtime.v1` (protos/cri); `api="v1alpha2"` uses the older name
with the same messages.
"""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, TypeVar, Unpack

import grpc
from google.protobuf.message import Message

from lading.errors import HostError, LadingError
from protos.cri.runtime.v1 import api_pb2 as cri
from simnode import leftovers
from simnode.kubelet import ContainerOptions, ContainerSpec, NodeFolders, PodOptions, PodSpec, render_container, render_sandbox
from simnode.patience import wait_until

R = TypeVar("R", bound=Message)

_OPTIONS = [
    ("grpc.default_authority", "localhost"),  # a kubelet sends this for a Unix socket
    ("grpc.max_receive_message_length", 16 << 20),  # kubelet's own limit
    ("grpc.use_local_subchannel_pool", 1),  # a client made after a restart must not inherit the back-off of an older one
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
]
_REQUIRED = ("RuntimeReady", "NetworkReady")  # all others only inform
# Last resorts: a call that works is waited for, however busy the machine is.
_CALL_S = 180.0
_EXEC_S = 120


class CriError(LadingError):
    """Hold the gRPC status and message of a failed CRI call."""

    def __init__(self, method: str, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"cannot {method}: {code.name}: {details}")
        self.method = method
        self.code = code
        self.details = details


class Exec(NamedTuple):
    exit: int
    out: str
    err: str


class Cri:
    """Call a runtime over one connection. `folder`: files that a kubelet keeps for its pods; by default a temporary folder."""

    def __init__(
        self,
        socket: Path | str,
        *,
        folder: Path | None = None,
        cgroup_root: str = "",
        api: str = "v1",
        deadline_s: float = _CALL_S,
    ) -> None:
        self.api = api
        self.deadline_s = deadline_s
        self.metadata: tuple[tuple[str, str], ...] = ()  # sent with every call, in addition to what gRPC sends itself
        self._channel = grpc.insecure_channel(f"unix://{str(socket).removeprefix('unix://')}", options=_OPTIONS)
        self._temporary = None if folder else tempfile.mkdtemp(prefix="lading-cri-")
        where = folder or Path(str(self._temporary))
        self._owns_cgroup = not cgroup_root
        self._cgroup = cgroup_root.strip("/") or f"lading-cri-{os.getpid()}"
        self.folders = NodeFolders(logs=where / "log/pods", pods=where / "kubelet/pods", cgroup_root=f"/{self._cgroup}")
        self._pods: list[Pod] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Remove every pod of this client that the runtime lets it remove, newest first. Then close the connection and remove
        the folder."""
        for pod in reversed(self._pods.copy()):
            with contextlib.suppress(CriError):
                pod.remove()
        self._channel.close()
        if self._owns_cgroup:
            leftovers.remove_cgroups(self._cgroup)
        if self._temporary:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def call(
        self, method: str, request: Message, reply: type[R], *, service: str = "RuntimeService", deadline_s: float | None = None
    ) -> R:
        """Make one unary call of any method, by name."""
        rpc = self._channel.unary_unary(
            f"/runtime.{self.api}.{service}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )
        try:
            answer: R = rpc(request, timeout=deadline_s or self.deadline_s, metadata=self.metadata)
        except grpc.RpcError as e:
            raise CriError(method, e.code(), e.details() or "") from e
        return answer

    def version(self) -> cri.VersionResponse:
        return self.call("Version", cri.VersionRequest(version="0.1.0"), cri.VersionResponse)

    def not_ready(self) -> list[str]:
        """Return the required conditions of the runtime that do not hold, as text; empty if pods can be made."""
        status = self.call("Status", cri.StatusRequest(), cri.StatusResponse).status
        lacking = (c for c in status.conditions if c.type in _REQUIRED and not c.status)
        return [f"{c.type}: {c.reason}: {c.message}" for c in lacking]

    def image_id(self, name: str) -> str:
        """Return the image's id; empty if the runtime does not have it."""
        request = cri.ImageStatusRequest(image=cri.ImageSpec(image=name, user_specified_image=name))
        return self.call("ImageStatus", request, cri.ImageStatusResponse, service="ImageService").image.id

    def list_pods(self) -> Sequence[cri.PodSandbox]:
        return self.call("ListPodSandbox", cri.ListPodSandboxRequest(), cri.ListPodSandboxResponse).items

    def list_containers(self, *, pod_id: str = "") -> Sequence[cri.Container]:
        request = cri.ListContainersRequest(filter=cri.ContainerFilter(pod_sandbox_id=pod_id))
        return self.call("ListContainers", request, cri.ListContainersResponse).containers

    def run_pod(self, name: str, *, runtime_handler: str = "", **options: Unpack[PodOptions]) -> "Pod":
        spec = PodSpec(name=name, **options)
        config = render_sandbox(spec, self.folders)
        Path(config.log_directory).mkdir(parents=True, exist_ok=True)
        request = cri.RunPodSandboxRequest(config=config, runtime_handler=runtime_handler)
        reply = self.call("RunPodSandbox", request, cri.RunPodSandboxResponse)
        pod = Pod(self, spec, config, reply.pod_sandbox_id)
        self._pods.append(pod)
        return pod

    @contextlib.contextmanager
    def pod(self, name: str, *, runtime_handler: str = "", **options: Unpack[PodOptions]) -> Iterator["Pod"]:
        """Run `run_pod` for a block; remove the pod at its end."""
        pod = self.run_pod(name, runtime_handler=runtime_handler, **options)
        try:
            yield pod
        finally:
            pod.remove()

    def remove_every_pod(self, *, deadline_s: float = _CALL_S) -> None:
        """Stop and remove all pods of this runtime, including those of other clients."""
        for sandbox in self.list_pods():
            self.remove_sandbox(sandbox.id, deadline_s=deadline_s)

    def remove_sandbox(self, pod_id: str, *, deadline_s: float | None = None) -> None:
        stop, remove = cri.StopPodSandboxRequest(pod_sandbox_id=pod_id), cri.RemovePodSandboxRequest(pod_sandbox_id=pod_id)
        self.call("StopPodSandbox", stop, cri.StopPodSandboxResponse, deadline_s=deadline_s)
        self.call("RemovePodSandbox", remove, cri.RemovePodSandboxResponse, deadline_s=deadline_s)

    def _forget(self, pod: "Pod") -> None:
        if pod in self._pods:
            self._pods.remove(pod)
        shutil.rmtree(self.folders.etc_hosts(pod.spec).parent, ignore_errors=True)
        leftovers.remove_cgroups(pod.config.linux.cgroup_parent.strip("/"))


class Pod:
    def __init__(self, client: Cri, spec: PodSpec, config: cri.PodSandboxConfig, pod_id: str) -> None:
        self._cri = client
        self.spec = spec
        self.config = config
        self.id = pod_id

    def create_container(self, name: str = "main", **options: Unpack[ContainerOptions]) -> "Container":
        spec = ContainerSpec(name=name, **options)
        image_id = self._cri.image_id(spec.image)
        if not image_id:
            raise HostError(f"cannot create container {name}: the runtime has no image {spec.image}")
        config = render_container(self.spec, spec, image_id=image_id, folders=self._cri.folders)
        self.write_files(spec, config)
        request = cri.CreateContainerRequest(pod_sandbox_id=self.id, config=config, sandbox_config=self.config)
        reply = self._cri.call("CreateContainer", request, cri.CreateContainerResponse)
        return Container(self._cri, reply.container_id, Path(self.config.log_directory) / config.log_path)

    def run_container(self, name: str = "main", **options: Unpack[ContainerOptions]) -> "Container":
        """Call `create_container`, then start the container."""
        container = self.create_container(name, **options)
        container.start()
        return container

    def status(self) -> cri.PodSandboxStatus:
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=self.id)
        return self._cri.call("PodSandboxStatus", request, cri.PodSandboxStatusResponse).status

    def stop(self) -> None:
        self._cri.call("StopPodSandbox", cri.StopPodSandboxRequest(pod_sandbox_id=self.id), cri.StopPodSandboxResponse)

    def remove(self) -> None:
        """Stop and remove the sandbox and its containers. May be called twice."""
        self._cri.remove_sandbox(self.id)
        self._cri._forget(self)

    def write_files(self, spec: ContainerSpec, config: cri.ContainerConfig) -> None:
        """Write the files that a kubelet prepares before it creates a container: hosts file, termination log, logs' folder."""
        folders = self._cri.folders
        (Path(self.config.log_directory) / config.log_path).parent.mkdir(parents=True, exist_ok=True)
        for path in (folders.etc_hosts(self.spec), folders.termination_log(self.spec, spec)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()


class Container:
    def __init__(self, client: Cri, container_id: str, log: Path) -> None:
        self._cri = client
        self.id = container_id
        self.log = log

    def start(self) -> None:
        self._cri.call("StartContainer", cri.StartContainerRequest(container_id=self.id), cri.StartContainerResponse)

    def exec(self, *command: str, timeout_s: int = _EXEC_S) -> Exec:
        """Run a command in the container and wait for its end."""
        request = cri.ExecSyncRequest(container_id=self.id, cmd=command, timeout=timeout_s)
        reply = self._cri.call("ExecSync", request, cri.ExecSyncResponse, deadline_s=timeout_s + 10.0)
        return Exec(reply.exit_code, reply.stdout.decode(errors="replace"), reply.stderr.decode(errors="replace"))

    def sh(self, script: str) -> str:
        """Return the output of a shell script in the container; raise an error if it fails."""
        done = self.exec("sh", "-c", script)
        if done.exit:
            raise HostError(f"cannot run {script!r} in the container: exit {done.exit}: {done.err.strip()}")
        return done.out

    def env(self) -> dict[str, str]:
        """Return the environment that the container's main program was started with."""
        raw = self.sh("tr '\\0' '\\n' </proc/1/environ")
        return dict(line.split("=", 1) for line in raw.splitlines() if "=" in line)

    def try_open(self, *paths: str) -> list[str]:
        """Open each path. Return `ok` or the name of the errno for each (ENXIO: granted, no driver; EPERM: not granted)."""
        numbers = [int(line) for line in self.exec("try-open", *paths).out.split()]
        return [errno.errorcode[number] if number else "ok" for number in numbers]

    def status(self) -> cri.ContainerStatus:
        request = cri.ContainerStatusRequest(container_id=self.id)
        return self._cri.call("ContainerStatus", request, cri.ContainerStatusResponse).status

    def wait(self) -> int:
        """Return the exit code, once the container has ended."""
        wait_until(lambda: self.status().state == cri.CONTAINER_EXITED, f"the end of container {self.id[:12]}")
        return self.status().exit_code

    def logs(self) -> str:
        """Return the container's output, without the dates of the log format. Complete once the container has ended."""
        lines = (line.split(" ", 3) for line in self.log.read_text(errors="replace").splitlines())
        return "".join(text if tag == "P" else f"{text}\n" for _, _, tag, text in lines)

    def stop(self, *, timeout_s: int = 2) -> None:
        request = cri.StopContainerRequest(container_id=self.id, timeout=timeout_s)
        self._cri.call("StopContainer", request, cri.StopContainerResponse, deadline_s=timeout_s + _CALL_S)

    def remove(self) -> None:
        self._cri.call("RemoveContainer", cri.RemoveContainerRequest(container_id=self.id), cri.RemoveContainerResponse)
