"""Kill the daemon at every write of its journal, at every call to the kernel, and at random moments: no VF is lost, reset under
its new owner, or left half-configured.

Real containerd, real namespaces; a daemon that was killed is there again a moment later, and kubelet tries again what failed.
What may never be, at any moment, is `tests.vfs.invariants`, which the model of the unit tests is held to as well.
"""

import contextlib
import os
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from lading.reasons import Reason
from protos.cri.runtime.v1 import api_pb2 as cri
from simnode.child import answers
from simnode.containerd import PrivateContainerd
from simnode.cri import Container, CriError, Pod
from tests.depth import repeats
from tests.node.conftest import StartVfs
from tests.node.site import Refused, eventually
from tests.node.vf_site import HEALED_S, INSIDE, MAC, SETTINGS, VfNode, VfSite, end_sandbox, open_vf_site

pytestmark = pytest.mark.node

SCHEDULES: Final = repeats(4, long=20)
STEPS: Final = 7  # the steps of one schedule
UNANSWERED_S: Final = 0.3  # after which a call that is not answered is given up
READS: Final = {
    f"kernel.{name}"
    for name in ("netns_id", "host_link", "link", "names", "read_vf", "rdma_mode", "rdma_devices", "host_ibdev")
}

# Refusals after which kubelet tries again: the daemon is away for a moment, or what was before is not undone yet.
_PASSING: Final = {
    Reason.HOOK_UNAVAILABLE,
    Reason.HOOK_TIMEOUT,
    Reason.NOT_RECONCILED,
    Reason.ATTACH_FAILED,
    Reason.DEVICE_HELD,
}


@pytest.fixture(scope="module")
def node(share_vfs: StartVfs) -> VfNode:
    return share_vfs()


@pytest.fixture
def site(node: VfNode, containerd: PrivateContainerd) -> Iterator[VfSite]:
    with open_vf_site(node, containerd) as site:
        yield site


def holds(site: VfSite) -> None:
    """Check what must be so at any moment, also while the daemon is being started again."""
    assert site.violations() == []


def try_until_made(site: VfSite, pod: Pod) -> Container:
    def make() -> Container:
        made = site.create(pod)
        holds(site)
        if isinstance(made, Refused):
            assert made.reason in _PASSING, made
        assert isinstance(made, Container)
        return made

    return eventually(make, within_s=HEALED_S)


def test_killed_at_every_step_of_an_attach_and_of_a_release(site: VfSite) -> None:
    vf = site.vfs[0]

    def run() -> Pod:
        return site.run_vf_pod("train", {"main": [site.entry(vf, **SETTINGS)]})

    site.rig.arm(0)
    pod = run()
    pod.create_container()
    attach = site.rig.disarm()
    site.rig.arm(0)
    pod.stop()
    release = site.rig.disarm()
    pod.remove()
    assert {"journal.begin", "kernel.set_vf", "kernel.move_in", "kernel.configure"} <= set(attach)
    assert {"journal.reach", "kernel.move_out", "kernel.set_vf", "journal.forget"} <= set(release)

    killed_in: dict[str, list[str]] = {"attach": [], "release": []}
    for point in range(1, max(len(attach), len(release)) + 1):
        pod = run()
        daemon = site.rig.daemon_pid
        site.rig.arm(point)
        first = site.create(pod)
        killed_in["attach"] += site.rig.disarm()[point - 1 : point]
        holds(site)
        container = first if isinstance(first, Container) else try_until_made(site, pod)
        container.start()
        assert site.inside(container, "rdma5") == INSIDE
        assert site.pf_state(vf).mac == MAC
        assert (site.rig.daemon_pid != daemon) is (point <= len(attach))
        daemon = site.rig.daemon_pid
        site.rig.arm(point)
        pod.stop()
        killed_in["release"] += site.rig.disarm()[point - 1 : point]
        holds(site)
        pod.remove()
        eventually(site.check_as_before, within_s=HEALED_S)
        assert (site.rig.daemon_pid != daemon) is (point <= len(release))
    assert killed_in == {"attach": attach, "release": release}


@pytest.mark.parametrize("back", [True, False], ids=["back-before-the-stop", "away-at-the-stop"])
@pytest.mark.long
def test_killed_at_every_change_of_an_attach_that_no_one_comes_back_to(site: VfSite, back: bool) -> None:
    """Stop the pod before its container is tried again, while the daemon is stopped and the namespace is deleted."""
    vf = site.vfs[1]
    site.direct.run_pod("bystander")  # a runtime that lists no sandbox at all is not believed

    def run() -> Pod:
        return site.run_vf_pod("train", {"main": [site.entry(vf, **SETTINGS)]})

    site.rig.arm(0)
    pod = run()
    pod.create_container()
    names = site.rig.disarm()
    pod.remove()
    changes = [point for point, name in enumerate(names, 1) if name not in READS]
    for point in changes:
        pod = run()
        give_up_creating(site, pod, point)
        holds(site)
        if back:
            site.rig.disarm()
            eventually(lambda: assert_answers(site))
            pod.remove()
        else:
            site.direct.remove_sandbox(pod.id)
            holds(site)
            site.rig.pass_time(60)
            site.rig.disarm()
        site.await_as_before()


def give_up_creating(site: VfSite, pod: Pod, point: int) -> None:
    """Have the daemon die at this point and stay dead. kubelet gives each call up early. It makes the call again, because the
    first one may be refused, or end, before the daemon has come to the point."""
    daemon = Path(f"/proc/{site.rig.daemon_pid}/exe")
    site.rig.arm(point, stay_dead=True)
    patience, site.kubelet.deadline_s = site.kubelet.deadline_s, UNANSWERED_S

    def dies() -> None:
        with pytest.raises(CriError):
            pod.create_container()
        assert not os.path.lexists(daemon)

    try:
        eventually(dies)
    finally:
        site.kubelet.deadline_s = patience


def assert_answers(site: VfSite) -> None:
    assert answers(site.lading.hooks.socket)


@dataclass(slots=True)
class Known:
    """Represent one pod of a schedule, as kubelet knows it."""

    pod: Pod
    old: list[Pod] = field(default_factory=list)  # sandboxes of it from before
    attempts: int = 0  # to make its container


class Schedule:
    """Act as a kubelet with many failures: random, and equal for equal seeds."""

    def __init__(self, site: VfSite, seed: int) -> None:
        self._site = site
        self._random = random.Random(seed)  # noqa: S311  the same for the same seed
        self._pods: dict[str, Known] = {}
        self.done: list[str] = []
        self._begin()

    def step(self) -> None:
        actions: list[Callable[[], object]] = [self.create, self.create, self.crash]
        if self._pods:
            actions += [self.stop, self.stop, self.again, self.late_stop, self.failed_kill, self.crash]
        if len(self.done) > STEPS // 2:
            actions.append(self.reboot)
        action = self._random.choice(actions)
        self.done.append(action.__name__)
        action()

    def create(self) -> None:
        name = self._random.choice(["a", "b", "c"])
        if name not in self._pods:
            vfs = self._random.sample(self._site.vfs, self._random.choice([1, 2]))
            entries = [self._site.entry(vf, mac=f"02:00:5e:10:00:{n:02x}", mtu=4200, vlan=n + 10) for n, vf in enumerate(vfs)]
            self._pods[name] = Known(self._site.run_vf_pod(name, {"main": entries}))
        self._create_container(self._pods[name])

    def stop(self) -> None:
        name = self._random.choice(sorted(self._pods))
        known = self._pods.pop(name)
        for pod in (known.pod, *known.old):
            pod.remove()

    def again(self) -> None:
        known = self._known()
        end_sandbox(self._site, known.pod)
        known.old.append(known.pod)
        known.pod = self._site.again(known.pod)
        self._create_container(known)

    def late_stop(self) -> None:
        for pod in self._known().old:
            pod.stop()

    def failed_kill(self) -> None:
        """Give up kubelet's stop while the runtime waits for the containers to end; it is tried again later."""
        pod = self._known().pod
        with frozen(shim_of(pod)), contextlib.suppress(CriError):
            request = cri.StopPodSandboxRequest(pod_sandbox_id=pod.id)
            self._site.kubelet.call("StopPodSandbox", request, cri.StopPodSandboxResponse, deadline_s=UNANSWERED_S)
        self._check()

    def crash(self) -> None:
        """Kill the daemon during the next operation."""
        self._site.rig.arm(self._random.randint(1, 16))

    def reboot(self) -> None:
        lading = self._site.lading
        lading.hooks.kill()
        for sandbox in self._site.direct.list_pods():
            self._site.direct.remove_sandbox(sandbox.id)
        self._pods.clear()
        self._site.rig.disarm()
        self._site.rig.reboot()
        self._begin()
        lading.hooks.start()

    def settle(self) -> None:
        self._site.rig.disarm()
        while self._pods:
            self.stop()
        # Pods that were lost with one daemon were never stopped in the presence of another.
        self._site.rig.pass_time(60)
        self._site.await_as_before()

    def check(self) -> None:
        holds(self._site)

    def _check(self) -> None:
        eventually(lambda: assert_answers(self._site))
        holds(self._site)

    def _begin(self) -> None:
        self._site.direct.run_pod("bystander")  # a runtime that lists no sandbox at all is not believed

    def _known(self) -> Known:
        return self._pods[self._random.choice(sorted(self._pods))]

    def _create_container(self, known: Known) -> None:
        made = self._site.create(known.pod, attempt=known.attempts)
        known.attempts += 1
        if isinstance(made, Container):
            made.start()


def shim_of(pod: Pod) -> int:
    """Return the process ID of the pod's shim, which the runtime asks to kill containers."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            arguments = entry.read_bytes().split(b"\0")
            if b"-id" in arguments and arguments[arguments.index(b"-id") + 1].decode() == pod.id:
                return int(entry.parent.name)
    raise AssertionError(f"{pod.id} has no shim")


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.repeats
@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_a_random_schedule(site: VfSite, seed: int) -> None:
    schedule = Schedule(site, seed)
    try:
        for _ in range(STEPS):
            schedule.step()
            schedule.check()
    except BaseException as e:
        e.add_note(f"after {', '.join(schedule.done)}")
        raise
    schedule.settle()
