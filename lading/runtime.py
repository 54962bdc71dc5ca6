"""Call the container runtime: version, configuration, and the lists that a ledger is compared with.

Calls use CRI `runtime.v1` over the runtime's Unix socket. No answer, an error, or an unparsable answer raises
RuntimeUnavailableError, which names the socket; the result is never an empty list. An unknown id gives None. Not every runtime
honours CDI devices of a request (`decide_cdi_support`): containerd 1.6 and 1.7.0 ignore them silently, and the container starts
without its devices.
"""

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from lading.errors import RuntimeUnavailableError
from lading.versions import CDI_CONTAINERD, parse_version
from protos.cri.runtime.v1 import api_pb2 as cri

_LARGEST_ANSWER: Final = 64 * 1024 * 1024  # kubelet accepts 16 MiB; a node with more containers must not lose its ledger
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", _LARGEST_ANSWER),
    ("grpc.max_reconnect_backoff_ms", 500),  # a restarted runtime is found within a second; C-core waits up to two minutes
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
)


Answer = TypeVar("Answer", bound=Message)
_Call = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]


class _UnknownError(RuntimeUnavailableError):
    """Report that the runtime does not know an id."""


class RuntimeClient:
    """Hold a connection to the runtime, re-opened as needed. Needs a running event loop; `timeout_s` is for each call."""

    def __init__(self, endpoint: Path, *, timeout_s: float = 10.0) -> None:
        self.endpoint = endpoint
        self._timeout_s = timeout_s
        self._channel = grpc.aio.insecure_channel(f"unix://{quote(str(endpoint))}", options=_OPTIONS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._channel.close(None)

    async def version(self) -> cri.VersionResponse:
        return await self._ask("Version", cri.VersionRequest(version="v1"), cri.VersionResponse)

    async def status_verbose(self) -> cri.StatusResponse:
        return await self._ask("Status", cri.StatusRequest(verbose=True), cri.StatusResponse)

    async def list_sandboxes(self) -> tuple[cri.PodSandbox, ...]:
        return tuple((await self._ask("ListPodSandbox", cri.ListPodSandboxRequest(), cri.ListPodSandboxResponse)).items)

    async def list_containers(self) -> tuple[cri.Container, ...]:
        return tuple((await self._ask("ListContainers", cri.ListContainersRequest(), cri.ListContainersResponse)).containers)

    async def sandbox_status(self, sandbox_id: str, *, verbose: bool = False) -> cri.PodSandboxStatusResponse | None:
        """Return the whole response: with `verbose`, its `info` has the runtime's own JSON (network namespace, pid)."""
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=verbose)
        try:
            return await self._ask("PodSandboxStatus", request, cri.PodSandboxStatusResponse)
        except _UnknownError:
            return None

    async def container_status(self, container_id: str) -> cri.ContainerStatusResponse | None:
        """Return the whole response: its `info` has the runtime's own JSON, with the OCI configuration of the container."""
        request = cri.ContainerStatusRequest(container_id=container_id, verbose=True)
        try:
            return await self._ask("ContainerStatus", request, cri.ContainerStatusResponse)
        except _UnknownError:
            return None

    async def stop_container(self, container_id: str, *, grace_s: int) -> None:
        """Stop a container; the runtime kills it if it has not ended after `grace_s` seconds. An unknown id is ignored."""
        request = cri.StopContainerRequest(container_id=container_id, timeout=grace_s)
        with contextlib.suppress(_UnknownError):
            await self._ask("StopContainer", request, cri.StopContainerResponse, more_s=grace_s)

    async def _ask(self, method: str, request: Message, kind: type[Answer], *, more_s: float = 0.0) -> Answer:
        call: _Call = self._channel.unary_unary(f"/runtime.v1.RuntimeService/{method}", bytes, bytes)
        try:
            return kind.FromString(await call(request.SerializeToString(), timeout=self._timeout_s + more_s))
        except grpc.aio.AioRpcError as e:
            error = _UnknownError if e.code() is grpc.StatusCode.NOT_FOUND else RuntimeUnavailableError
            raise error(
                f"cannot call {method} of the runtime at {self.endpoint}: {e.code().name}: {e.details()}",
                hint="is the runtime running, and is --runtime-endpoint its socket?",
            ) from e
        except DecodeError as e:  # containerd 1.6 keeps, and lists, names that are not UTF-8
            raise RuntimeUnavailableError(
                f"cannot parse the answer of the runtime at {self.endpoint} to {method} as a runtime.v1 message",
                hint="does a pod have a name, annotation or image that is not UTF-8? see crictl",
            ) from e


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiSupport:
    problem: str = ""  # why CDI devices would not be honoured, or empty
    spec_dirs: tuple[str, ...] = ()  # folders of CDI specs that the runtime reads, in rising priority

    @property
    def supported(self) -> bool:
        return not self.problem


_DEFAULT_SPEC_DIRS: Final = ("/etc/cdi", "/var/run/cdi")
_ON_BY_DEFAULT: Final = (2, 0, 0)


def decide_cdi_support(version: cri.VersionResponse, status: cri.StatusResponse) -> CdiSupport:
    """Decide whether `CDI_devices` of a CreateContainer request is honoured, from Version and a verbose Status."""
    name = f"{version.runtime_name} {version.runtime_version}"
    release = parse_version(version.runtime_version)
    if version.runtime_name != "containerd" or release is None:
        return CdiSupport(problem=f"{name} is not known to honour CDI devices; containerd 1.7.2 and newer does")
    if release < CDI_CONTAINERD:
        return CdiSupport(problem=f"{name} silently ignores CDI devices; 1.7.2 is the first that honours them")
    config = _runtime_config(status)
    dirs = config.get("cdiSpecDirs")
    spec_dirs = tuple(str(d) for d in dirs) if isinstance(dirs, list) else _DEFAULT_SPEC_DIRS
    if not config.get("enableCDI", release >= _ON_BY_DEFAULT):
        return CdiSupport(problem=f"enable_cdi is off in the configuration of {name}", spec_dirs=spec_dirs)
    if not spec_dirs:
        return CdiSupport(problem=f"cdi_spec_dirs is empty in the configuration of {name}")
    return CdiSupport(spec_dirs=spec_dirs)


def _runtime_config(status: cri.StatusResponse) -> dict[str, Any]:
    """Return the configuration that containerd shows as JSON in the verbose Status; empty if there is none."""
    try:
        config = json.loads(status.info.get("config", "{}"))
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}
