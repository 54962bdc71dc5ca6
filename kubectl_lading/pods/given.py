"""Describe the devices of one container, for programs and for people, and the distances between them. Pure.

Take a container's devices from an assignment or a placement, and the node's report. Return a `Given`, with amounts in MiB of
memory and percent of compute. Also return a `Pair` for each two GPUs, and for each GPU with each VF. Distances are central's
levels (central.search.topology). A device that the node no longer reports is in no pair.
"""

from collections.abc import Iterator, Mapping
from itertools import combinations

import msgspec

from central.assignment.annotation import OwnAssignment, parse_own
from central.assignment.model import PlacedContainer
from central.request.pod import Pod, roles_of
from central.search.topology import distance, nvlinks
from kubectl_lading.terminal.format import DISTANCES, count, gib
from lading.devices.isolation import IsolationName
from lading.nodedevices import Gpu, NodeDevices, Pf
from lading.vocabulary import ASSIGNMENT


class GivenGpu(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent a GPU of a container: the whole card if neither amounts nor a MIG instance are set."""

    uuid: str
    bdf: str
    mig: str = ""
    memory_mib: int | None = None
    core_percent: int | None = None
    core_limit_percent: int | None = None
    isolation: str = ""  # isolation of a share; empty: none, or not reported

    @property
    def share(self) -> list[str]:
        """Return the share's amounts as text, such as `10Gi` and `50%`."""
        memory = [gib(self.memory_mib)] if self.memory_mib else []
        return memory + ([f"{self.core_percent}%"] if self.core_percent else [])

    @property
    def kept_by(self) -> list[str]:
        """Return the share's limit of compute and its isolation, as text."""
        limit = [f"limit {self.core_limit_percent}%"] if self.core_limit_percent else []
        return limit + ([self.isolation] if self.isolation else [])


class GivenVf(msgspec.Struct, frozen=True):
    bdf: str
    pf: str


class Given(msgspec.Struct, frozen=True, omit_defaults=True):
    gpus: tuple[GivenGpu, ...] = ()
    vfs: tuple[GivenVf, ...] = ()

    def as_text(self) -> Iterator[str]:
        for gpu in self.gpus:
            kept_by = f", {', '.join(gpu.kept_by)}" if gpu.kept_by else ""
            yield (f"{' and '.join(gpu.share)} of " if gpu.share else "") + f"{gpu.mig or gpu.uuid} ({gpu.bdf}){kept_by}"
        for vf in self.vfs:
            yield f"VF {vf.bdf} (of {vf.pf})"


def given_of(placed: PlacedContainer) -> Given:
    gpus = (
        GivenGpu(
            uuid=gpu.uuid,
            bdf=gpu.bdf,
            mig=gpu.mig_uuid,
            memory_mib=gpu.memory_mib,
            core_percent=gpu.core_percent,
            core_limit_percent=gpu.core_limit_percent,
            isolation="" if gpu.isolation in {None, IsolationName.NONE} else str(gpu.isolation),
        )
        for gpu in placed.gpus
    )
    return Given(gpus=tuple(gpus), vfs=tuple(GivenVf(bdf=vf.bdf, pf=vf.pf) for vf in placed.vfs))


def given_to(pod: Pod) -> Mapping[str, Given]:
    """Return the devices in the pod's assignment, by container; empty without a readable assignment."""
    written = pod.metadata.annotations.get(ASSIGNMENT)
    own = parse_own(written, roles_of(pod), namespace=pod.metadata.namespace) if written else None
    if not isinstance(own, OwnAssignment):
        return {}
    return {name: given_of(placed) for name, placed in own.placed.items()}


class Pair(msgspec.Struct, frozen=True):
    one: str  # a GPU's UUID
    other: str  # a GPU's UUID, or a VF's PCI address
    said: str


def pairs_of(report: NodeDevices, placed: PlacedContainer) -> Iterator[Pair]:
    cards: Mapping[str, Gpu] = {gpu.uuid: gpu for gpu in report.status.gpus}
    ports: Mapping[str, Pf] = {pf.bdf: pf for pf in report.status.pfs}
    gpus = {gpu.uuid: cards[gpu.uuid] for gpu in placed.gpus if gpu.uuid in cards}
    for one, other in combinations(gpus.values(), 2):
        links = nvlinks(one, other)
        text = count(links, "NVLink") if links else DISTANCES[distance(one.place, other.place)]
        yield Pair(one=one.uuid, other=other.uuid, said=text)
    for gpu in gpus.values():
        for vf in placed.vfs:
            if vf.pf in ports:
                yield Pair(one=gpu.uuid, other=vf.bdf, said=DISTANCES[distance(gpu.place, ports[vf.pf].place)])
