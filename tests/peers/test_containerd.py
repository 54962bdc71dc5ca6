"""Test grpc-go as the runtime: a real containerd, called directly and through the proxy, in all its versions of CRI."""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from google.protobuf.message import Message

from protos.cri.runtime.v1 import api_pb2 as cri
from simnode import leftovers
from simnode.containerd import PrivateContainerd
from tests.faults.rig import proxy_in
from tests.logs import LOGS
from tests.peers.callers import CLIENTS, Caller, ask, connect
from tests.peers.loop import LoopThread
from tests.peers.runtimes import VERSIONS
from tests.peers.test_sizes import container

pytestmark = pytest.mark.node

NO_ONE: Final = "f" * 64
FINE: Final[dict[str, Message]] = {
    "RuntimeService/Version": cri.VersionRequest(version="0.1.0"),
    "RuntimeService/Status": cri.StatusRequest(),
    "RuntimeService/ListContainers": cri.ListContainersRequest(),
    "RuntimeService/ListPodSandbox": cri.ListPodSandboxRequest(),
    "RuntimeService/RemovePodSandbox": cri.RemovePodSandboxRequest(pod_sandbox_id=NO_ONE),
    "RuntimeService/RemoveContainer": cri.RemoveContainerRequest(container_id=NO_ONE),
    "ImageService/ImageStatus": cri.ImageStatusRequest(image=cri.ImageSpec(image="nobody/has:this")),
}
UNKNOWN: Final[dict[str, Message]] = {
    "RuntimeService/StopPodSandbox": cri.StopPodSandboxRequest(pod_sandbox_id=NO_ONE),
    "RuntimeService/PodSandboxStatus": cri.PodSandboxStatusRequest(pod_sandbox_id=NO_ONE),
    "RuntimeService/ContainerStatus": cri.ContainerStatusRequest(container_id=NO_ONE),
    "RuntimeService/StartContainer": cri.StartContainerRequest(container_id=NO_ONE),
    "RuntimeService/ExecSync": cri.ExecSyncRequest(container_id=NO_ONE, cmd=["true"]),
    "RuntimeService/UpdateContainerResources": cri.UpdateContainerResourcesRequest(container_id=NO_ONE),
    "RuntimeService/CreateContainer": container(NO_ONE, {}, 100),
    "RuntimeService/Missing": cri.VersionRequest(),
    "MissingService/Version": cri.VersionRequest(),
}


@dataclass(frozen=True, slots=True)
class Both:
    direct: Caller
    proxied: Caller


@pytest.fixture(scope="module", params=CLIENTS)
def both(
    request: pytest.FixtureRequest, containerd: PrivateContainerd, loop: LoopThread, pytestconfig: pytest.Config
) -> Iterator[Both]:
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="lading-"))
        stack.callback(leftovers.remove_tree, folder)
        proxy = proxy_in(folder, containerd.socket, metrics="")
        pytestconfig.stash[LOGS].append(proxy.log)
        stack.callback(pytestconfig.stash[LOGS].remove, proxy.log)
        stack.callback(proxy.stop)
        proxy.start()

        direct, proxied = connect(request.param, containerd.socket, loop), connect(request.param, proxy.socket, loop)
        stack.callback(direct.close)
        stack.callback(proxied.close)
        yield Both(direct, proxied)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("method", FINE | UNKNOWN)
def test_an_answer_is_the_same(both: Both, containerd: PrivateContainerd, version: str, method: str) -> None:
    path, request = f"/runtime.{version}.{method}", (FINE | UNKNOWN)[method].SerializeToString()
    direct = ask(both.direct, path, request)
    served = version == "v1" or containerd.version.startswith("1.")  # containerd 2 has no v1alpha2 any more
    if method in FINE:
        assert direct.code == ("OK" if served else "UNIMPLEMENTED")
    else:
        assert direct.code in {"NOT_FOUND", "UNKNOWN", "UNIMPLEMENTED"}
        assert direct.details
    assert ask(both.proxied, path, request) == direct
