"""Find what containers really can open, by what each of them tries at its first instruction and writes into its log.

Each makes a device node of every card itself, and opens it: EPERM says that its device cgroup denies the card, ENXIO that only
the driver is missing. The logs are those that kubelet keeps, so that a container that was started bare and stopped a moment
later is seen too.
"""

import errno
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lading.errors import HostError
from tests.cluster.daemonset.site import NodeSite
from tests.cluster.pods import Pods, container

GPU: Final = "lading.dev/gpus"
_NVIDIA: Final = 195
_DENIED, _GRANTED = str(errno.EPERM), str(errno.ENXIO)


@dataclass(frozen=True, kw_only=True)
class Referee:
    site: NodeSite
    pods: Pods
    asked: dict[str, str] = field(default_factory=dict)  # the devices that each pod has by hand; "" for a plain pod

    def create(self, name: str, asks: str = "") -> None:
        annotations = {GPU: asks} if asks else {}
        self.pods.create(name, annotations=annotations, containers=[self.container()])
        self.asked[name] = asks

    def container(self) -> dict[str, Any]:
        return container(command=["sh", "-c", self._script()])

    def may_open(self, name: str) -> str:
        """Return the log of one that has what it was given, and nothing else."""
        index = self.asked[name].partition(":")[0]
        return " ".join(_GRANTED if str(number) == index else _DENIED for number in range(len(self._minors)))

    def opened(self, name: str) -> list[str]:
        """Return the log of each container of the pod that was started."""
        folder = self.site.cluster.folder / "pods"
        logs = sorted(folder.glob(f"default_{name}_*/main/*.log"))
        lines = [line for log in logs for line in log.read_text().splitlines()]
        return [line.partition(" F ")[2] for line in lines]

    def check(self, names: Iterable[str] = (), *, started: bool = True) -> None:
        """Check the containers of these pods, or of all; `started`: each pod had one at least."""
        opened = {name: self.opened(name) for name in names or self.asked}
        wrong = {name: (self.asked[name], logs) for name, logs in opened.items() if set(logs) - {self.may_open(name)}}
        assert not wrong
        assert not started or all(opened.values()), [name for name, logs in opened.items() if not logs]

    def ready(self) -> set[str]:
        """Return the pods that are ready."""
        return {pod["metadata"]["name"] for pod in self.site.cluster.api.pods() if _ready(pod)} & self.asked.keys()

    def await_ready(self, *but: str, within_s: float = 240.0) -> None:
        wanted = self.asked.keys() - set(but)
        cluster = self.site.cluster
        try:
            cluster.eventually(lambda: wanted <= self.ready(), f"{len(wanted)} ready pods", within_s=within_s)
        except HostError as e:
            late = sorted(wanted - self.ready())
            raise AssertionError(f"not ready: {late}; {late[0]}: {cluster.api.pod_events(late[0])[-3:]}") from e

    @property
    def _minors(self) -> list[int]:
        return [gpu.minor for _, gpu in self.site.node.profile.gpus]

    def _script(self) -> str:
        probes = [f"/tmp/card{minor}" for minor in self._minors]
        made = "; ".join(
            f"mknod {probe} c {self.site.node.profile.major('nvidia')} {minor}"
            for probe, minor in zip(probes, self._minors, strict=True)
        )
        return f"mkdir -p /tmp; {made}; echo $(try-open {' '.join(probes)}); exec pause"


def _ready(pod: Mapping[str, Any]) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", []))
