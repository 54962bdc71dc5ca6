"""Stop and Remove are never refused, whatever the hooks do: kubelet retries them for ever, and a node would keep devices."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from protos.cri.runtime.v1 import api_pb2 as cri
from simnode.containerd import PrivateContainerd
from simnode.cri import Cri, CriError
from simnode.daemons import LadingNode
from tests.node.conftest import StartLading
from tests.node.site import Site, eventually, open_site

pytestmark = pytest.mark.node

DELAYED_S = 2.0  # the hooks' deadline for a Stop
RUNTIME_S = 3.0  # the time that the runtime itself needs, on a busy machine

Repair = Callable[[], object]


@pytest.fixture(scope="module")
def running(share_lading: StartLading) -> LadingNode:
    return share_lading("workstation")


@pytest.fixture
def site(running: LadingNode, containerd: PrivateContainerd) -> Iterator[Site]:
    """Yield the module's node. Grants of pods that were removed without the hooks may stay for a while."""
    with open_site(running, containerd) as site:
        yield site


def hang(lading: LadingNode) -> Repair:
    os.kill(lading.hooks.pid, signal.SIGSTOP)
    return lambda: os.kill(lading.hooks.pid, signal.SIGCONT)


def end(lading: LadingNode) -> Repair:
    lading.hooks.kill()
    return lading.hooks.start


def unregister(lading: LadingNode) -> Repair:
    path = lading.hooks_dir / "50-lading.json"
    content = path.read_text()
    path.unlink()
    return lambda: path.write_text(content)


@pytest.mark.parametrize("harm", [hang, unregister, end])
def test_a_guarded_pod_is_torn_down_without_its_hooks(site: Site, harm: Callable[[LadingNode], Repair]) -> None:
    pod = site.kubelet.run_pod("guarded", annotations={"lading.dev/gpus": "0:core=10"})
    container = pod.run_container()
    with contextlib.ExitStack() as stack:
        stack.callback(harm(site.lading))
        for teardown in (container.stop, container.remove, pod.stop, pod.remove):  # the last one stops it again, as kubelet may
            began = time.monotonic()
            teardown()
            assert time.monotonic() - began < DELAYED_S + RUNTIME_S
        assert site.direct.list_pods() == []
        assert site.direct.list_containers() == []


def test_hooks_that_hung_learn_of_the_end_of_a_pod(site: Site) -> None:
    site.kubelet.run_pod("bystander")  # a runtime that lists no sandbox at all is not believed
    pod = site.kubelet.run_pod("guarded", annotations={"lading.dev/gpus": "0:core=20"})
    pod.run_container()
    repair = hang(site.lading)
    try:
        pod.remove()
    finally:
        repair()

    def released() -> None:
        assert [grant for grant in site.grants() if grant.pod == pod.spec.uid] == []

    eventually(released)


def test_a_stop_of_an_unknown_sandbox_is_answered_by_the_runtime(site: Site) -> None:

    def answer(client: Cri) -> object:
        try:
            return client.call("StopPodSandbox", cri.StopPodSandboxRequest(pod_sandbox_id="f" * 64), cri.StopPodSandboxResponse)
        except CriError as e:
            return e.code, e.details

    assert answer(site.kubelet) == answer(site.direct)
