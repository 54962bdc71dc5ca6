"""Test one node: create pods through the proxy, read the devices in their containers, refusals, and the ledger.

A container's devices are read from inside it: every device number of the simulated node is opened. EPERM (from the device
cgroup) shows a device that was not granted, any other result a device that was granted.
"""

import contextlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, Unpack

import grpc

from hooks.ledger.store import read_ledger
from hooks.model.grant import Grant
from lading.errors import HostError
from lading.log import Event
from lading.reasons import Reason
from simnode.build import SimNode
from simnode.child import Child
from simnode.containerd import PrivateContainerd
from simnode.cri import Container, Cri, CriError, Pod
from simnode.daemons import Daemon, LadingNode
from simnode.kubelet import ContainerOptions, Device
from simnode.patience import wait_until

T = TypeVar("T")

RELEASE_S = 30.0  # nominally two seconds after the pod is gone; a busy two-core machine may stand still for twenty

# ENXIO: no driver behind the number; ENODEV: what misc devices (rdma_cm) say for it; ok: this machine has such a device.
OPENS = {"ok", "ENXIO", "ENODEV"}
_EVERY_CONTAINER = r"^/dev/(null|zero|full|random|urandom|tty|ptmx|console|pts/.*)$"


class Refused(NamedTuple):
    reason: Reason
    code: grpc.StatusCode
    message: str  # the message of the hook or the proxy, without the reason before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """Hold the devices that a container can really open."""

    env: Mapping[str, str]
    # The device nodes beside those that every container has. The container can open all of these, and no other of the node.
    nodes: frozenset[str]
    gpus: tuple[str, ...]  # UUIDs of the cards whose nodes it has, in order of PCI address
    vfs: tuple[str, ...]  # PCI addresses of the VFs whose verbs nodes it has, in order


def eventually(check: Callable[[], T], *, within_s: float = RELEASE_S) -> T:
    """Return what `check` answers as soon as it neither refuses nor fails an assertion. Raise its last failure once nothing has
    worked on it for `within_s`."""
    answers: list[T] = []
    failure: CriError | AssertionError | None = None

    def answered() -> bool:
        nonlocal failure
        failure = None
        try:
            answers.append(check())
        except (CriError, AssertionError) as e:
            failure = e
        return failure is None

    try:
        wait_until(answered, "the expected answer", idle_s=within_s)
    except HostError:
        if failure is None:
            raise
        raise failure from None
    return answers[0]


def refusal_of(error: CriError) -> Refused:
    """Return the refusal in an error: by the proxy, a plugin or the runtime handler. The runtime may add text before it."""
    text = error.details.rpartition(" desc = ")[2].rpartition("OCI runtime create failed: ")[2]
    lading, reason, message = text.split(": ", 2)
    assert lading == "lading", error.details
    return Refused(Reason(reason), error.code, message)


def find_cgroups(container_id: str) -> list[Path]:
    """Return the folders of the container's own cgroups on this machine. Other cgroups may be removed meanwhile."""
    walked = os.walk("/sys/fs/cgroup")
    return [Path(folder, name) for folder, names, _ in walked for name in names if container_id in name]


def granted_in(container: Container) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the UUIDs and PCI addresses in the container's own grant annotation."""
    devices: dict[str, Any] = json.loads(container.status().annotations["lading.dev/grant"])["devices"]
    gpus = (gpu.get("mig_uuid") or gpu["uuid"] for gpu in devices.get("gpus", []))
    return tuple(gpus), tuple(vf["bdf"] for vf in devices.get("vfs", []))


class Site:
    def __init__(self, lading: LadingNode, runtime: PrivateContainerd) -> None:
        self.lading = lading
        self.runtime = runtime
        self.direct = runtime.client()
        self._clients = [lading.client()]

    @property
    def node(self) -> SimNode:
        return self.lading.node

    @property
    def kubelet(self) -> Cri:
        """Return the CRI client of the proxy; `direct` is a client of the runtime itself."""
        return self._clients[-1]

    def reconnect(self) -> None:
        """Make a new connection to the proxy, as kubelet does after a restart."""
        self._clients.append(self.lading.client())
        eventually(self.kubelet.version)

    def close(self) -> None:
        """Remove every pod through the proxy, and the remaining pods without the proxy."""
        for client in self._clients:
            client.close()
        self.direct.remove_every_pod()
        self.direct.close()

    # ---- devices

    def gpu(self, index: int) -> str:
        return self.node.profile.gpus[index][1].uuid

    def card(self, index: int) -> str:
        """Return the card's device node, which has the driver's minor number, not NVML's index."""
        return f"/dev/nvidia{self.node.profile.gpus[index][1].minor}"

    @property
    def vfs(self) -> list[str]:
        return [vf.bdf for _, pf in self.node.profile.pfs for vf in pf.vfs]

    def uverbs(self, vf: str) -> str:
        (folder,) = (self.node.pci(vf) / "infiniband_verbs").iterdir()
        return f"/dev/infiniband/{folder.name}"

    def supplied(self, path: str) -> Device:
        """Return a device of the node in the form in which a device plugin has kubelet pass it."""
        return Device(host_path=self.node.root / path[1:], container_path=path, permissions="rw")

    def see(self, container: Container) -> Sight:
        numbers = _numbers(self.node.root)
        probes = {path: f"/tmp/probe/{number}" for number, path in enumerate(numbers)}
        script = "rm -rf /tmp/probe; mkdir /tmp/probe; find /dev -type b -o -type c\n"
        script += "\n".join(f"mknod {probe} c {numbers[path][0]} {numbers[path][1]}" for path, probe in probes.items())
        result = container.sh(f"({script}) | grep -Ev '{_EVERY_CONTAINER}' || true").split()
        outcomes = dict(zip(probes, container.try_open(*probes.values()), strict=True))
        granted = {path for path, outcome in outcomes.items() if outcome in OPENS}
        assert set(outcomes.values()) <= OPENS | {"EPERM"}, outcomes
        assert granted == set(result), outcomes
        assert set(container.try_open(*result)) <= OPENS
        return Sight(
            env=container.env(),
            nodes=frozenset(result),
            gpus=tuple(gpu.uuid for _, gpu in self.node.profile.gpus if f"/dev/nvidia{gpu.minor}" in granted),
            vfs=tuple(vf for vf in self.vfs if self.uverbs(vf) in granted),
        )

    def started(self, pod: Pod, name: str = "main", **options: Unpack[ContainerOptions]) -> Container:
        """Create a container, again and again while it is refused, as kubelet does; start and return it."""
        container = eventually(lambda: pod.create_container(name, **options))
        container.start()
        return container

    # ---- refusals

    def create(self, pod: Pod, name: str = "main", **options: Unpack[ContainerOptions]) -> Container | Refused:
        try:
            return pod.create_container(name, **options)
        except CriError as e:
            return refusal_of(e)

    def refused(self, pod: Pod, name: str = "main", **options: Unpack[ContainerOptions]) -> Refused:
        """Check that a container is refused, and that the runtime lists no new container. Return the refusal."""
        before = {container.id for container in self.direct.list_containers(pod_id=pod.id)}
        refused = self.create(pod, name, **options)
        assert isinstance(refused, Refused), "the container was made"
        assert {container.id for container in self.direct.list_containers(pod_id=pod.id)} == before
        return refused

    def refused_at_once(self, annotations: Mapping[str, str], /, **options: Unpack[ContainerOptions]) -> Refused:
        """Check that a container of a new pod with these annotations is refused, by `refused`. Return the refusal."""
        return self.refused(self.kubelet.run_pod("refused", annotations=annotations), **options)

    def refused_once_reconciled(self, annotations: Mapping[str, str], /) -> Refused:
        """Return the refusal by hooks that were just started, after they have compared ledger and runtime. Before that they
        refuse all containers."""

        def check() -> Refused:
            refused = self.refused_at_once(annotations)
            assert refused.reason is not Reason.NOT_RECONCILED
            return refused

        return eventually(check)

    # ---- the daemons

    def grants(self) -> tuple[Grant, ...]:
        """Return the grants of the ledger, as it is on disk."""
        return read_ledger(self.ledger)

    def check_nothing_granted(self) -> None:
        assert self.grants() == ()

    @property
    def ledger(self) -> Path:
        return self.lading.folder / "state" / "node.db"

    def delete_ledger(self) -> None:
        for path in self.ledger.parent.glob("node.db*"):
            path.unlink()

    def logged(self, daemon: Child, event: Event, text: str = "") -> list[str]:
        return [line for line in daemon.log.read_text().splitlines() if f"event={event}" in line.split() and text in line]

    def await_log(self, daemon: Daemon, event: Event, text: str) -> None:
        def said() -> None:
            assert self.logged(daemon, event, text)

        eventually(said)


@contextlib.contextmanager
def open_site(lading: LadingNode, runtime: PrivateContainerd) -> Iterator[Site]:
    site = Site(lading, runtime)
    try:
        yield site
    finally:
        site.close()


def _numbers(root: Path) -> dict[str, tuple[int, int]]:
    """Return the major and minor number of every device node of the simulated node, by its path in a container."""
    result = {}
    for folder, _, names in os.walk(root / "dev"):
        for path in (Path(folder, name) for name in names):
            status = path.lstat()
            if stat.S_ISCHR(status.st_mode):
                result[f"/{path.relative_to(root)}"] = os.major(status.st_rdev), os.minor(status.st_rdev)
    return result
