"""Create pods that request devices, and read their assignments, the devices inside their containers, and which pods wait."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from hooks.ledger.store import read_ledger
from lading.vocabulary import ASSIGNMENT, CORDON
from simnode.cluster import Cluster
from simnode.daemons import LadingNode
from simnode.nvml import NvmlState
from simnode.scheduling import Scheduling
from tests.cluster.pods import Pods, container
from tests.cluster.scheduling.books import NODE_DEVICES, Auditor, Books, by_ledger, by_report, read_reports

MERGE: Final = "application/merge-patch+json"
SCAN_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Represent the devices of a container, by its assignment or as found inside it: sorted UUIDs and PCI addresses."""

    gpus: tuple[str, ...] = ()
    vfs: tuple[str, ...] = ()


def asks(*, gpu: int = 0, memory: str = "", core: int = 0, rdma: int = 0, **others: str) -> dict[str, Any]:
    """Return the `resources` of a container."""
    ours = {"gpu": gpu, "gpu-memory": memory, "gpu-core": core, "rdma": rdma}
    limits = {f"lading.dev/{kind}": str(amount) for kind, amount in ours.items() if amount}
    return {"limits": {**limits, **others}, **({"requests": others} if others else {})}


class World:
    def __init__(self, cluster: Cluster, lading: LadingNode, scheduling: Scheduling, auditor: Auditor) -> None:
        self.cluster = cluster
        self.api = cluster.api
        self.lading = lading
        self.scheduling = scheduling
        self.auditor = auditor
        self.node = cluster.node_name
        self.gpus = [gpu.uuid for _, gpu in lading.node.profile.gpus]

    # ---- pods that ask

    def create(self, pods: Pods, name: str, *, containers: Sequence[Any] = (), **options: Any) -> None:
        """Create a pod. Without `containers` it has one container, which requests `gpu`, `memory`, `core` and `rdma`."""
        kinds = {kind: options.pop(kind) for kind in ("gpu", "memory", "core", "rdma", "cpu") if kind in options}
        main = [container(resources=asks(**kinds))]
        pods.create(name, containers=containers or main, **{"schedulerName": "lading", **options})

    def run(self, pods: Pods, *names: str, **options: Any) -> None:
        for name in names:
            self.create(pods, name, **options)
        for name in names:
            pods.wait_ready(name)

    def bound(self, name: str) -> bool:
        return bool(self.api.pod(name)["spec"].get("nodeName"))

    def waiting(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if not self.bound(name)]

    def await_bound(self, name: str, *, within_s: float = 60.0) -> None:
        self.cluster.eventually(lambda: self.bound(name), f"pod {name}, bound", within_s=within_s)

    def await_refused(self, name: str) -> str:
        """Wait until kube-scheduler wrote into the pod's condition why it fits nowhere, and return that message."""
        result: list[str] = []

        def refused() -> bool:
            conditions = self.api.pod(name)["status"].get("conditions", [])
            result[:] = [c["message"] for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"]
            return bool(result)

        self.cluster.eventually(refused, f"a refusal of {name}")
        return result[0]

    def why(self, name: str) -> Any:
        status, body = self.scheduling.leader.get(f"/v1/why/default/{name}")
        assert status == 200, body
        return json.loads(body)

    # ---- what they have

    def assigned(self, name: str) -> dict[str, Seen]:
        """Return the devices that the pod's assignment names, by container."""
        written = json.loads(self.api.pod(name)["metadata"]["annotations"][ASSIGNMENT])
        return {
            container: Seen(
                gpus=tuple(sorted(gpu["uuid"] for gpu in parts.get("gpus", []))),
                vfs=tuple(sorted(vf["bdf"] for vf in parts.get("vfs", []))),
            )
            for container, parts in written["containers"].items()
        }

    def seen(self, paths: Sequence[str]) -> Seen:
        """Return the devices that have these device nodes: nvidia3, uverbs11."""
        minors = {f"nvidia{gpu.minor}": gpu.uuid for _, gpu in self.lading.node.profile.gpus}
        verbs = {self._uverbs(vf.bdf): vf.bdf for _, pf in self.lading.node.profile.pfs for vf in pf.vfs}
        return Seen(
            gpus=tuple(sorted(minors[path] for path in paths if path in minors)),
            vfs=tuple(sorted(verbs[path] for path in paths if path in verbs)),
        )

    def inside(self, pods: Pods, name: str, *, container: str = "main") -> Seen:
        return self.seen([*pods.cards(name, container=container), *pods.verbs(name, container=container)])

    def env(self, pods: Pods, name: str, *, container: str = "main") -> dict[str, str]:
        return dict(line.split("=", 1) for line in pods.sh(name, "env", container=container) if "=" in line)

    def check(self, pods: Pods, *names: str) -> None:
        """Check that each container has the devices of its assignment and no others."""
        for name in names:
            assigned = self.assigned(name)
            for one in self.api.pod(name)["spec"]["containers"]:
                expected = assigned.get(one["name"], Seen())
                assert self.inside(pods, name, container=one["name"]) == expected, (name, one["name"])

    def _uverbs(self, vf: str) -> str:
        (folder,) = (self.lading.node.pci(vf) / "infiniband_verbs").iterdir()
        return folder.name

    # ---- the books

    def ledger(self) -> Books:
        return read_books(self.lading, self.node)

    def reported(self) -> Books:
        return by_report(read_reports(self.api))

    def await_idle(self) -> None:
        """Wait until no pod holds a device, and central knows it."""
        self.cluster.eventually(lambda: not self.reported(), "a report without grants")

    def await_clean(self) -> None:
        """Wait until every device may be granted, so that none waits for its node to find it clean."""

        def clean() -> bool:
            status = self.api.call("GET", f"{NODE_DEVICES}/{self.node}")["status"]
            return not any(gpu.get("dirty") or gpu.get("usedBy") for gpu in status["gpus"])

        self.cluster.eventually(clean, "clean cards")

    def uid(self, name: str) -> str:
        return str(self.api.pod(name)["metadata"]["uid"])

    @staticmethod
    def sit_out(seconds: float) -> None:
        """Wait where nothing shows that time has passed: leases that run out, calls that wait."""
        time.sleep(seconds)

    # ---- the node

    def cordon(self, *devices: str) -> None:
        """Cordon these devices; None puts all back into service."""
        change = {"metadata": {"annotations": {CORDON: ",".join(devices) or None}}}
        self.api.call("PATCH", f"{NODE_DEVICES}/{self.node}", change, content_type=MERGE)

    def set_nvml(self, **changed: Any) -> None:
        NvmlState(profile=self.lading.node.profile, **changed).write(self.lading.node.nvml_state)


def read_books(lading: LadingNode, node: str) -> Books:
    """Return the node's ledger as it is on disk."""
    return by_ledger(node, read_ledger(lading.folder / "state/node.db"))
