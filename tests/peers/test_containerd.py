"""Test grpc-go as the runtime: a real containerd, called directly and through the proxy, in all its versions of CRI."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

import pytest
from google.protobuf.message import Message

from protos.cri.runtime.v1 import api_pb2 as cri
from simnode.containerd import PrivateContainerd
from tests.faults.rig import proxy_in, running
from tests.peers.callers import Caller, ask
from tests.peers.conftest import both_ways
from tests.peers.runtimes import VERSIONS
from tests.peers.test_sizes import container
from tests.started import Started

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
# The objects of a list, in the order of their IDs.
LISTS: Final[dict[str, Callable[[bytes], list[Message]]]] = {
    "RuntimeService/ListContainers": lambda reply: _sorted(cri.ListContainersResponse.FromString(reply).containers),
    "RuntimeService/ListPodSandbox": lambda reply: _sorted(cri.ListPodSandboxResponse.FromString(reply).items),
}


def _sorted(objects: Iterable[cri.Container | cri.PodSandbox]) -> list[Message]:
    return [*sorted(objects, key=lambda one: one.id)]


@pytest.fixture(scope="module")
def both(containerd: PrivateContainerd, pytestconfig: pytest.Config) -> Iterator[tuple[Caller, Caller]]:
    with Started(pytestconfig) as started:
        proxy = proxy_in(started.folder(), containerd.socket)
        started.show(proxy.log)
        started.enter_context(running(proxy))
        yield started.enter_context(both_ways(containerd.socket, proxy))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("method", FINE | UNKNOWN)
def test_an_answer_is_the_same(both: tuple[Caller, Caller], containerd: PrivateContainerd, version: str, method: str) -> None:
    path, request = f"/runtime.{version}.{method}", (FINE | UNKNOWN)[method].SerializeToString()
    direct, proxied = (ask(caller, path, request) for caller in both)
    served = version == "v1" or containerd.version.startswith("1.")  # containerd 2 has no v1alpha2 any more
    if method in FINE:
        assert direct.code == ("OK" if served else "UNIMPLEMENTED")
    else:
        assert direct.code in {"NOT_FOUND", "UNKNOWN", "UNIMPLEMENTED"}
        assert direct.details
    if read := LISTS.get(method):  # other tests may have left sandboxes, and Go orders maps at random
        lists = [[read(reply) for reply in seen.replies if isinstance(reply, bytes)] for seen in (direct, proxied)]
        assert lists[0] == lists[1]
        direct, proxied = (replace(seen, replies=()) for seen in (direct, proxied))
    assert proxied == direct
