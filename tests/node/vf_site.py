"""Test a node whose VFs are network devices: create pods with VFs, and read devices, PFs' settings and the journal."""

import contextlib
import json
import os
import signal
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hooks.ledger.store import read_journal
from hooks.model.attachment import Attachment, Link, VfConfig, VfLinkState, VlanProtocol
from lading.vocabulary import PciAddress
from protos.cri.runtime.v1 import api_pb2 as cri
from simnode.containerd import PrivateContainerd
from simnode.cri import Container, Pod
from simnode.daemons import LadingNode
from simnode.leftovers import mounts_below
from simnode.links import list_links, open_socket
from simnode.vf_rig import VfRig, Whereabouts
from simnode.vf_table import VfState
from tests.node.site import Site, eventually
from tests.vfs.invariants import HOST, Shown, check

NODE = "demo"
HEALED_S = 15.0  # a release that failed is tried again after 2 s, more than once on a busy machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """Represent a network device as a container sees it."""

    mac: str
    mtu: int
    up: bool
    addresses: tuple[str, ...]  # with their prefix, of IPv4
    routes: tuple[str, ...]


MAC: Final = "02:00:5e:10:00:01"
SETTINGS: Final[dict[str, Any]] = {
    "ifname": "rdma5",
    "mac": MAC,
    "mtu": 4200,
    "vlan": 100,
    "vlan_qos": 3,
    "min_tx_rate": 10,
    "max_tx_rate": 1000,
    "spoofchk": False,
    "trust": True,
    "link_state": "enable",
    "addresses": ["10.99.0.2/24"],
    "routes": [{"to": "10.98.0.0/16", "via": "10.99.0.1"}],
}
CONFIGURED: Final = VfState(
    mac=MAC,
    mac_fixed=True,
    vlan=100,
    qos=3,
    vlan_proto=0x8100,
    min_tx_rate=10,
    max_tx_rate=1000,
    spoofchk=0,
    trust=1,
    link_state=1,
)
INSIDE: Final = Inside(
    mac=MAC, mtu=4200, up=True, addresses=("10.99.0.2/24",), routes=("10.98.0.0/16 via 10.99.0.1", "10.99.0.0/24")
)


@dataclass(frozen=True, slots=True)
class VfNode:
    lading: LadingNode
    rig: VfRig


class VfSite(Site):
    def __init__(self, node: VfNode, runtime: PrivateContainerd) -> None:
        super().__init__(node.lading, runtime)
        self.rig = node.rig
        self._ibdevs = {vf.bdf: vf.ibdevs for _, pf in self.node.profile.pfs for vf in pf.vfs}
        self._shown_before = self._shown()
        self.pf_before = {vf: self.rig.pf_state(vf) for vf in self.vfs}

    # ---- pods

    def run_vf_pod(self, name: str, vfs: Mapping[str, Sequence[Mapping[str, Any]]], *, gen: int = 1, **options: Any) -> Pod:
        """Run a pod whose assignment gives its containers these entries of `vfs`."""
        uid = options.pop("uid", "") or str(uuid.uuid4())
        containers = {container: {"vfs": list(entries)} for container, entries in vfs.items()}
        assignment = {"v": 1, "pod": uid, "node": NODE, "gen": gen, "containers": containers}
        return self.kubelet.run_pod(name, uid=uid, annotations={"lading.dev/assignment": json.dumps(assignment)}, **options)

    def again(self, pod: Pod) -> Pod:
        """Create another sandbox of the same pod, as kubelet does when the first one is not ready any more."""
        spec = pod.spec
        return self.kubelet.run_pod(spec.name, uid=spec.uid, annotations=spec.annotations, attempt=spec.attempt + 1)

    def entry(self, vf: str, **settings: Any) -> dict[str, Any]:
        return {"bdf": vf, "pf": next(bdf for bdf, pf in self.node.profile.pfs if vf in {f.bdf for f in pf.vfs}), **settings}

    def inside(self, container: Container, name: str) -> Inside:
        at = f"/sys/class/net/{name}"
        mac, mtu, flags = container.sh(f"cat {at}/address {at}/mtu {at}/flags").split()
        shown = (line.split() for line in container.sh(f"ip -4 -o address show dev {name}").splitlines())
        routes = (line.split() for line in container.sh(f"ip -4 route show dev {name}").splitlines())
        return Inside(
            mac=mac,
            mtu=int(mtu),
            up=bool(int(flags, 16) & 1),
            addresses=tuple(sorted(text[text.index("inet") + 1] for text in shown)),
            routes=tuple(sorted(" ".join(text[: 3 if "via" in text else 1]) for text in routes)),
        )

    # ---- the node

    def where(self, vf: str) -> Whereabouts | None:
        return self.rig.where().get(vf)

    def ibdevs(self, vf: str) -> list[str]:
        """Return the RDMA devices of a VF, as the host's sysfs shows them."""
        folder = self.node.pci(vf) / "infiniband"
        return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []

    def pf_state(self, vf: str) -> VfState:
        return self.rig.pf_state(vf)

    def rows(self) -> tuple[Attachment, ...]:
        """Return the rows of the journal, as it is on disk."""
        return read_journal(self.ledger)

    def row(self, vf: str) -> Attachment | None:
        return next((row for row in self.rows() if row.bdf == vf), None)

    def violations(self) -> list[str]:
        """Return what is wrong at this moment, by the checker that the model is held to. The daemon stands still meanwhile."""
        with self.rig.folder.locked(), contextlib.ExitStack() as stack:  # it must not have the lock while it stands still
            stack.enter_context(stopped(self.rig.daemon_pid))
            standing = stack.pop_all()
        with standing:
            netns = [str(path) for path in self._namespaces()]
            return check(self.rows(), before=self._shown_before, now=self._shown(), namespaces=[HOST, *netns])

    def _shown(self) -> dict[PciAddress, Shown]:
        away = self.rig.rdma_away()
        observed = {link.alias: (HOST, link) for link in self.rig.host_links()}
        for path in self._namespaces():
            with contextlib.suppress(OSError), open_socket(path) as asking:
                observed |= {link.alias: (str(path), link) for link in list_links(asking)}
        shown = {}
        for vf in self.vfs:
            netns, link = observed.get(vf, (None, None))
            shown[PciAddress(vf)] = Shown(
                netns=netns,
                link=Link(index=link.index, name=link.name, mac=link.mac, mtu=link.mtu, up=link.up) if link else None,
                config=config_of(self.rig.pf_state(vf)),
                mac_fixed=self.rig.pf_state(vf).mac_fixed,
                kept=link.kept if link else {},
                rdma_netns=next((at for ibdev, at in away.items() if ibdev in self._ibdevs[vf]), HOST),
            )
        return shown

    def _namespaces(self) -> list[Path]:
        """Return the network namespaces of the pods."""
        return [path for path in mounts_below(self.runtime.layout.state) if path.parent.name == "netns"]

    def check_as_before(self) -> None:
        """Check that every VF is as it was when the node was built."""
        assert self.rows() == ()
        assert self.rig.lost_home() == {}
        assert {vf: self.rig.pf_state(vf) for vf in self.vfs} == self.pf_before

    def await_as_before(self) -> None:
        eventually(self.check_as_before, within_s=HEALED_S)


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Suspend all threads of the process, if it exists, for the block."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    while not states_of(pid) <= set("TZX"):
        os.sched_yield()
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def states_of(pid: int) -> set[str]:
    """Return the states of the process's threads (proc_pid_stat(5)); empty where it has ended."""
    states = set()
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            states.add(stat.read_text().rpartition(")")[2].split()[0])
    return states


def config_of(state: VfState) -> VfConfig:
    """Convert the numbers of the kernel's table to the daemon's values."""
    return VfConfig(
        mac=state.mac,
        vlan=state.vlan,
        vlan_qos=state.qos,
        vlan_proto={0x8100: VlanProtocol.DOT1Q, 0x88A8: VlanProtocol.DOT1AD}[state.vlan_proto],
        min_tx_rate=state.min_tx_rate,
        max_tx_rate=state.max_tx_rate,
        spoofchk=bool(state.spoofchk),
        trust=bool(state.trust),
        link_state=(VfLinkState.AUTO, VfLinkState.ENABLE, VfLinkState.DISABLE)[state.link_state],
    )


@contextlib.contextmanager
def open_vf_site(node: VfNode, runtime: PrivateContainerd) -> Iterator[VfSite]:
    """Start a node, and check at its end that every VF is as before, whatever was done with it, and that no pod holds one. A
    stop is answered before the grant is released, because the node first checks whether the containers have exited.

    A stop is answered before the grant is released, because the node looks first whether the containers have exited.
    """
    site = VfSite(node, runtime)
    try:
        yield site
    finally:
        node.rig.fail()
        node.rig.disarm()
        if not node.lading.hooks.running:
            node.lading.hooks.start()
        site.close()
    site.await_as_before()
    eventually(site.check_nothing_granted, within_s=HEALED_S)
    assert node.rig.links_left() == 0


def info_of(site: VfSite, pod: Pod) -> dict[str, Any]:
    """Return what the runtime says of a sandbox beyond CRI's fields."""
    request = cri.PodSandboxStatusRequest(pod_sandbox_id=pod.id, verbose=True)
    answer = site.direct.call("PodSandboxStatus", request, cri.PodSandboxStatusResponse)
    result: dict[str, Any] = json.loads(answer.info["info"])
    return result


def netns_of(site: VfSite, pod: Pod) -> Path:
    namespaces = info_of(site, pod)["runtimeSpec"]["linux"]["namespaces"]
    return Path(next(one["path"] for one in namespaces if one["type"] == "network"))


def end_sandbox(site: VfSite, pod: Pod) -> None:
    """Kill the sandbox as a lack of memory does: it is not ready any more, and no one was asked to stop it."""
    os.kill(info_of(site, pod)["pid"], signal.SIGKILL)

    def ended() -> None:
        assert pod.status().state == cri.SANDBOX_NOTREADY

    eventually(ended)
