"""Kill either daemon with SIGKILL at every step of a grant: afterwards the ledger and the runtime agree.

One turnstile is between proxy and hooks, and one between proxy and runtime. A call is held there while a daemon is killed and
started again. Then the call is repeated, as kubelet does. At the end only this container has its card, and after the end of the
pod the card is free for the next pod.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeVar

import grpc
import pytest

from lading.log import Event
from lading.reasons import Reason
from lading.vocabulary import MANUAL_GPUS, MANUAL_VFS
from protos.hook.v1 import hook_pb2 as hook
from simnode.build import SimNode, build
from simnode.containerd import PrivateContainerd
from simnode.cri import Container, CriError, Pod
from simnode.daemons import Daemon, LadingNode
from tests.fakes.turnstile import Held, Turnstile, Way
from tests.faults.rig import logged, measure
from tests.node.site import Site, eventually
from tests.started import NO_METRICS, Started

pytestmark = pytest.mark.node

T = TypeVar("T")
WANTS = {MANUAL_GPUS: "0", MANUAL_VFS: "1"}
RIVAL = {MANUAL_GPUS: "0"}


class Victim(Enum):
    HOOKS = "hooks"
    PROXY = "proxy"


@dataclass(frozen=True, slots=True)
class Step:
    """Name the step of a call at which the daemon is killed."""

    way: Way
    method: str  # a method of the hook API, or of CRI
    stage: int = hook.STAGE_UNSPECIFIED  # the stage in a call of the hook API

    @property
    def at_hooks(self) -> bool:
        return self.stage != hook.STAGE_UNSPECIFIED

    def matches(self, request: bytes) -> bool:
        return not self.at_hooks or hook.AdjustRequest.FromString(request).stage == self.stage


CREATE = {
    "before-the-hook": Step(Way.THERE, "Adjust", hook.CREATE_CONTAINER),
    "in-the-ledger-not-answered": Step(Way.BACK, "Adjust", hook.CREATE_CONTAINER),
    "answered-not-forwarded": Step(Way.THERE, "CreateContainer"),
    "created-not-observed": Step(Way.BACK, "CreateContainer"),
}
END = {
    "before-the-hook": Step(Way.THERE, "Adjust", hook.STOP_POD_SANDBOX),
    "tombstone-not-answered": Step(Way.BACK, "Adjust", hook.STOP_POD_SANDBOX),
    "stop-not-forwarded": Step(Way.THERE, "StopPodSandbox"),
    "stopped-not-observed": Step(Way.BACK, "StopPodSandbox"),
    "stop-observation-on-its-way": Step(Way.THERE, "Observe", hook.STOP_POD_SANDBOX),
    "removed-not-observed": Step(Way.BACK, "RemovePodSandbox"),
    "remove-observation-on-its-way": Step(Way.THERE, "Observe", hook.REMOVE_POD_SANDBOX),
}


class TurnstileNode(LadingNode):
    """Run both daemons, with a turnstile on each connection from the proxy."""

    def __init__(self, folder: Path, *, node: SimNode, runtime: PrivateContainerd) -> None:
        self.hook_line = Turnstile(folder / "hook-line.sock", folder / "hooks.sock")
        self.runtime_line = Turnstile(folder / "runtime-line.sock", runtime.socket)
        proxy = {"runtime_endpoint": str(self.runtime_line.path), **NO_METRICS}
        super().__init__(folder, node=node, runtime=runtime, hooks_settings=NO_METRICS, proxy_settings=proxy)

    def register(self) -> Path:
        path = super().register()
        registration = json.loads(path.read_text())
        path.write_text(json.dumps({**registration, "remote-endpoint": str(self.hook_line.path)}))
        return path


class Scene:
    def __init__(self, lading: TurnstileNode, site: Site, threads: ThreadPoolExecutor) -> None:
        self.lading = lading
        self.site = site
        self._threads = threads

    def hold(self, step: Step) -> Held:
        line = self.lading.hook_line if step.at_hooks else self.lading.runtime_line
        return line.hold(step.way, step.method, step.matches)

    def daemon(self, victim: Victim) -> Daemon:
        return self.lading.hooks if victim is Victim.HOOKS else self.lading.proxy

    def kill_at(self, step: Step, victim: Victim, act: Callable[[], T]) -> Future[T]:
        """Run `act` until its call is held at the step, then kill the daemon, which loses its unfinished work."""
        held = self.hold(step)
        acting = self._threads.submit(act)
        held.wait()
        self.daemon(victim).kill()
        if victim is Victim.HOOKS and not step.at_hooks:
            held.let_go()  # the line between proxy and runtime is whole
        else:
            held.lose()
        return acting

    def retry_create(self, first: Future[Container], pod: Pod) -> Container:
        """Create the container as kubelet does: again with the next attempt if the runtime has the name already."""
        with contextlib.suppress(CriError):
            return first.result()

        def again() -> Container:
            attempts = [c.metadata.attempt for c in self.site.direct.list_containers(pod_id=pod.id)]
            return pod.create_container(attempt=max(attempts, default=-1) + 1)

        return eventually(again)

    def retry_remove(self, first: Future[None], pod: Pod) -> None:
        """Call as kubelet does: again until the call succeeds, or the runtime does not have the pod any more."""
        with contextlib.suppress(CriError):
            return first.result()

        def again() -> None:
            try:
                pod.remove()
            except CriError as e:
                if e.code is not grpc.StatusCode.NOT_FOUND:
                    raise

        return eventually(again)

    def dropped(self) -> list[dict[str, str]]:
        """Return what the proxy says of observations that it gave up (a question that failed names its method)."""
        return [text for text in logged(self.lading.proxy, Event.HOOK_FAILED) if "method" not in text]

    def held_by(self) -> dict[str, tuple[str, ...]]:
        """Return the cards of each pod in the ledger, by pod uid."""
        return {grant.pod: tuple(gpu.uuid for gpu in grant.devices.gpus) for grant in self.site.grants()}


@pytest.fixture(scope="module")
def lading(containerd: PrivateContainerd, pytestconfig: pytest.Config) -> Iterator[TurnstileNode]:
    with Started(pytestconfig) as started:
        folder = started.folder()
        lading = TurnstileNode(folder, node=build("demo-8gpu", folder / "node"), runtime=containerd)
        started.show(*lading.logs)
        with lading.hook_line, lading.runtime_line, lading:
            yield lading


@pytest.fixture
def scene(lading: TurnstileNode, containerd: PrivateContainerd) -> Iterator[Scene]:
    site = Site(lading, containerd)
    with ThreadPoolExecutor(2) as threads:
        try:
            yield Scene(lading, site, threads)
        finally:
            lading.hook_line.open()
            lading.runtime_line.open()
            for daemon in (lading.hooks, lading.proxy):
                if not daemon.running:
                    daemon.start()
            site.close()

    def nothing_held() -> None:
        assert site.grants() == ()

    eventually(nothing_held)


@pytest.mark.parametrize("victim", Victim, ids=lambda v: v.value)
@pytest.mark.parametrize("step", CREATE.values(), ids=CREATE)
def test_killed_while_a_container_is_made(scene: Scene, step: Step, victim: Victim) -> None:
    site = scene.site
    pod, rival = site.kubelet.run_pod("killed", annotations=WANTS), site.kubelet.run_pod("rival", annotations=RIVAL)
    first = scene.kill_at(step, victim, pod.create_container)
    with measure(f"{victim.value} killed, create {step.method} {step.way.name}: container there after"):
        scene.daemon(victim).start()
        container = scene.retry_create(first, pod)
    container.start()
    assert site.see(container).gpus == (site.gpu(0),)
    assert scene.held_by() == {pod.spec.uid: (site.gpu(0),)}
    assert site.refused(rival).reason is Reason.DEVICE_HELD
    pod.remove()
    assert site.see(eventually(rival.run_container)).gpus == (site.gpu(0),)
    assert scene.held_by() == {rival.spec.uid: (site.gpu(0),)}


@pytest.mark.parametrize("victim", Victim, ids=lambda v: v.value)
@pytest.mark.parametrize("step", END.values(), ids=END)
def test_killed_while_a_pod_ends(scene: Scene, step: Step, victim: Victim) -> None:
    site = scene.site
    pod, rival = site.kubelet.run_pod("killed", annotations=WANTS), site.kubelet.run_pod("rival", annotations=RIVAL)
    container = pod.run_container()
    first = scene.kill_at(step, victim, pod.remove)
    scene.daemon(victim).start()
    if victim is Victim.PROXY and step in {END["before-the-hook"], END["tombstone-not-answered"], END["stop-not-forwarded"]}:
        assert site.refused(rival).reason is Reason.DEVICE_HELD  # no one told the runtime to stop it
        assert site.see(Container(site.direct, container.id, container.log)).gpus == (site.gpu(0),)
    with measure(f"{victim.value} killed, end {step.method} {step.way.name}: card free after"):
        scene.retry_remove(first, pod)
        assert site.see(eventually(rival.run_container)).gpus == (site.gpu(0),)
    assert scene.held_by() == {rival.spec.uid: (site.gpu(0),)}


@pytest.mark.parametrize("step", ["tombstone-not-answered", "stopped-not-observed", "remove-observation-on-its-way"])
def test_a_pod_that_ends_while_the_hooks_are_down_leaves_its_card(scene: Scene, step: str) -> None:
    """Check a pod whose end is not reported. The ledger has recorded only the begin of its stop."""
    site = scene.site
    pod, rival = site.kubelet.run_pod("killed", annotations=WANTS), site.kubelet.run_pod("rival", annotations=RIVAL)
    pod.run_container()
    dropped = len(scene.dropped())
    scene.kill_at(END[step], Victim.HOOKS, pod.remove).result()

    def given_up() -> None:
        assert len(scene.dropped()) > dropped

    eventually(given_up)
    scene.lading.hooks.start()
    assert site.see(eventually(rival.run_container)).gpus == (site.gpu(0),)
    assert scene.held_by() == {rival.spec.uid: (site.gpu(0),)}
