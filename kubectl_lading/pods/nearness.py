"""The distances between the devices of one container, for each pair. Pure.

Enters: a node's report, what a container has of it. Leaves: each two GPUs, and each GPU with each of its VFs, by the levels by
which central chooses (central.fit.topology). What the node does not report any more is left out.
"""

from collections.abc import Iterator, Mapping
from itertools import combinations

import msgspec

from central.assignment.model import PlacedContainer
from central.fit.topology import distance, nvlinks
from kubectl_lading.terminal.words import DISTANCES, count
from lading.nodedevices import Gpu, NodeDevices, Pf


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
        said = count(links, "NVLink") if links else DISTANCES[distance(one.place, other.place)]
        yield Pair(one=one.uuid, other=other.uuid, said=said)
    for gpu in gpus.values():
        for vf in placed.vfs:
            if vf.pf in ports:
                yield Pair(one=gpu.uuid, other=vf.bdf, said=DISTANCES[distance(gpu.place, ports[vf.pf].place)])
