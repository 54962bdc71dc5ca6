"""Test a containerd that is missing, stops, restarts, or hangs: callers get an error at once, and pods keep their devices.

The module has its own real containerd. SIGSTOP makes it hang: its socket still accepts connections, but does not answer.
"""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

import grpc
import pytest

from lading.log import Event
from lading.reasons import Reason
from lading.vocabulary import MANUAL_GPUS
from protos.hook.v1 import hook_pb2 as hook
from simnode import images, leftovers
from simnode.build import build
from simnode.containerd import Binaries, PrivateContainerd
from simnode.cri import Container, Cri, CriError
from simnode.daemons import Daemon, LadingNode
from tests.faults.rig import logged, measure
from tests.node.site import Site, eventually, refusal_of
from tests.node.vf_site import states_of
from tests.started import NO_METRICS, Started

pytestmark = pytest.mark.node

Failing = Callable[[PrivateContainerd], AbstractContextManager[None]]

AT_ONCE_S: Final = 3.0  # nominally 1
WANTS: Final = {MANUAL_GPUS: "0"}


@pytest.fixture(scope="module")
def own(binaries: Binaries, device_nodes: None, pytestconfig: pytest.Config) -> Iterator[PrivateContainerd]:
    with Started(pytestconfig) as started:
        folder = started.folder()
        runtime = PrivateContainerd(folder, binaries)
        started.show(runtime.log)
        with runtime:
            yield runtime
        assert leftovers.below(folder) == []


@pytest.fixture
def site(own: PrivateContainerd, short_folder: Path, pytestconfig: pytest.Config) -> Iterator[Site]:
    """Yield a node that is not started yet, because tests vary the order of starts. At the end the runtime runs without
    pods."""
    node = build("demo-8gpu", short_folder / "node")
    hooks = {"reconcile_interval": 1, **NO_METRICS}
    lading = LadingNode(short_folder, node=node, runtime=own, hooks_settings=hooks, proxy_settings=NO_METRICS)
    lading.write_config()
    lading.register()
    site = Site(lading, own)
    with Started(pytestconfig) as started:
        started.show(*lading.logs)
        try:
            yield site
        finally:
            if not own.running:
                own.start()
            eventually(site.close)
            lading.stop()


def is_recorded(site: Site, container: Container) -> None:
    assert [held.id for grant in site.grants() for held in grant.containers] == [container.id]


def has_stopped(pid: int) -> None:
    assert states_of(pid) == {"T"}


@contextmanager
def stopped(runtime: PrivateContainerd) -> Iterator[None]:
    os.kill(runtime.pid, signal.SIGSTOP)
    try:
        eventually(lambda: has_stopped(runtime.pid))
        yield
    finally:
        os.kill(runtime.pid, signal.SIGCONT)


@contextmanager
def refuses_connections(runtime: PrivateContainerd) -> Iterator[None]:
    """Kill the runtime for the block, so that its socket's file is left behind."""
    runtime.kill()
    try:
        yield
    finally:
        runtime.start()


@contextmanager
def without_a_socket(runtime: PrivateContainerd) -> Iterator[None]:
    runtime.kill()
    runtime.socket.unlink()
    try:
        yield
    finally:
        runtime.start()


def unreachable(kubelet: Cri, runtime: PrivateContainerd) -> None:
    with measure("runtime gone: answered after") as answered, pytest.raises(CriError) as caught:
        kubelet.version()
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE
    assert str(runtime.socket) in caught.value.details
    assert answered.seconds < AT_ONCE_S


def ask_hooks(lading: LadingNode) -> hook.AdjustResponse:
    """Ask the hook server without the proxy, which cannot forward calls while the runtime is not running."""
    request = hook.AdjustRequest(stage=hook.CREATE_CONTAINER)
    request.sandbox.MergeFrom(hook.PodSandbox(id="s" * 64, uid="none-such", namespace="default", name="p", annotations=WANTS))
    request.container.name = "main"
    with grpc.insecure_channel(f"unix:{lading.hooks.socket}") as channel:
        ask = channel.unary_unary(
            "/lading.hook.v1.Hook/Adjust",
            request_serializer=hook.AdjustRequest.SerializeToString,
            response_deserializer=hook.AdjustResponse.FromString,
        )
        answer: hook.AdjustResponse = ask(request, timeout=5)
    return answer


def runs(container: Container, program: str) -> None:
    assert program in container.sh("cat /proc/[0-9]*/comm")


def has_said(daemon: Daemon, event: Event) -> None:
    assert logged(daemon, event)


@pytest.mark.parametrize("failing", [refuses_connections, without_a_socket], ids=["refuses", "no-socket"])
def test_both_daemons_start_before_the_runtime(site: Site, own: PrivateContainerd, failing: Failing) -> None:
    """Check one channel of kubelet: it gets an error that names the socket, and an answer as soon as the runtime runs."""
    lading = site.lading
    with failing(own):
        lading.hooks.start()
        lading.proxy.start()
        for _ in range(3):
            unreachable(site.kubelet, own)
        eventually(lambda: has_said(lading.hooks, Event.LEDGER_FAILED))
        assert ask_hooks(lading).refusal.reason == Reason.NOT_RECONCILED
        assert logged(lading.hooks, Event.LEDGER_RECONCILED) == []
    with measure("runtime back: first call answered after"):
        site.kubelet.version()
    with measure("runtime back: ledger reconciled after"):
        eventually(lambda: has_said(lading.hooks, Event.LEDGER_RECONCILED))
    container = site.kubelet.run_pod("first", annotations=WANTS).run_container()
    assert site.see(container).gpus == (site.gpu(0),)


@pytest.mark.parametrize("failing", [refuses_connections, without_a_socket], ids=["refuses", "no-socket"])
def test_the_runtime_goes_away_and_nothing_is_released(site: Site, own: PrivateContainerd, failing: Failing) -> None:
    lading = site.lading
    lading.hooks.start()
    lading.proxy.start()
    pod, rival = site.kubelet.run_pod("holder", annotations=WANTS), site.kubelet.run_pod("rival", annotations=WANTS)
    container = pod.run_container()
    eventually(lambda: is_recorded(site, container))  # the ledger learns the container's id after the answer
    held = site.grants()
    with ThreadPoolExecutor(1) as threads:
        open_call = threads.submit(container.exec, "sleep", "30")
        eventually(lambda: runs(container, "sleep"))
        with failing(own):
            with measure("runtime killed: open call ended after"), pytest.raises(CriError) as caught:
                open_call.result()
            assert caught.value.code is grpc.StatusCode.UNAVAILABLE
            assert str(own.socket) in caught.value.details
            for _ in range(3):
                unreachable(site.kubelet, own)
            eventually(lambda: has_said(lading.hooks, Event.LEDGER_FAILED))
            assert site.grants() == held
    site.kubelet.version()
    assert site.see(container).gpus == (site.gpu(0),)  # it ran on
    assert site.refused(rival).reason is Reason.DEVICE_HELD
    pod.remove()
    assert site.see(eventually(rival.run_container)).gpus == (site.gpu(0),)


def test_a_restart_of_the_runtime_costs_kubelet_its_open_calls_only(site: Site, own: PrivateContainerd) -> None:
    site.lading.hooks.start()
    site.lading.proxy.start()
    pod = site.kubelet.run_pod("survivor", annotations=WANTS)
    container = pod.run_container()
    for attempt in range(1, 4):
        own.restart()
        site.kubelet.version()  # the first call after it is back
        container.stop()
        container = pod.run_container(attempt=attempt)
        assert site.see(container).gpus == (site.gpu(0),)


def test_a_runtime_that_hangs_is_waited_for_as_without_a_proxy(
    site: Site, own: PrivateContainerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    lading, kubelet = site.lading, site.kubelet
    lading.hooks.start()
    lading.proxy.start()
    pod = kubelet.run_pod("holder", annotations=WANTS)
    container = pod.run_container()
    rival = kubelet.run_pod("rival", annotations=WANTS)
    image = kubelet.image_id(images.BUSYBOX)
    with ThreadPoolExecutor(1) as threads, lading.client() as newcomer:
        with stopped(own):
            for client in (site.direct, kubelet):
                client.deadline_s = 0.5
                with pytest.raises(CriError) as caught:
                    client.version()
                assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
                client.deadline_s = 60.0
            lading.hooks.kill()
            lading.hooks.start()
            with monkeypatch.context() as patch:  # only the runtime knows the answer
                patch.setattr(kubelet, "image_id", lambda _: image)
                with measure("runtime hangs, ledger not reconciled: refused after"), pytest.raises(CriError) as caught:
                    rival.create_container()
            assert refusal_of(caught.value).reason is Reason.NOT_RECONCILED
            waiting = threads.submit(newcomer.version)
        assert waiting.result().runtime_name == "containerd"
    kubelet.version()
    assert site.see(container).gpus == (site.gpu(0),)

    def reconciled() -> None:
        assert site.refused(rival).reason is Reason.DEVICE_HELD

    with measure("runtime goes on: ledger reconciled after"):
        eventually(reconciled)
    pod.remove()
    assert site.see(eventually(rival.run_container)).gpus == (site.gpu(0),)
