"""Measure how long the joint search for cards and VFs takes in its worst cases; the shipped nodes are in bench/deciding.py.

* `joint_cold_8x8_ms`, `joint_cold_16x16_ms`: the longest first search on a node of so many GPUs and PFs, in processor time.
  Each GPU has a PF of its own on a switch of its own, so that no two are alike. With NVLink between all, with PCIe alone,
  and with VFs on a quarter of the PFs only; for half of the GPUs, one more, and 3; for none, fewer, as many, more, and twice as
  many VFs.
* `joint_warm_p50_ms`, `joint_warm_p99_ms`: the whole fit of one pod on one of these nodes, of a state that was seen before.
"""

import time
from collections.abc import Iterator
from typing import Final

from bench.figures import percentile
from central.ledger.model import CardCapacity, NodeCapacity, VfCapacity
from central.request.model import ContainerRequest, DeviceRequest, Policy
from central.search import joint
from central.search.fit import fit
from lading.nodedevices import Gpu, NvLink, Pf, Place, Vf
from lading.vocabulary import GpuUuid, PciAddress

VFS_OF_PF: Final = 4
TIMES: Final = 3  # runs of each cold search; other load on the machine affects only one of them
WARM: Final = 20


def measure_joint() -> dict[str, float]:
    cold = {size: [_search(capacity, request) for capacity in _nodes(size) for request in _asks(size)] for size in (8, 16)}
    warm = [
        took
        for size in (8, 16)
        for capacity in _nodes(size)
        for request in _asks(size)
        for took in _search_again(capacity, request)
    ]
    return {
        "joint_cold_8x8_ms": max(cold[8]) * 1e3,
        "joint_cold_16x16_ms": max(cold[16]) * 1e3,
        "joint_warm_p50_ms": percentile(warm, 0.5) * 1e3,
        "joint_warm_p99_ms": percentile(warm, 0.99) * 1e3,
    }


def _search(capacity: NodeCapacity, request: DeviceRequest) -> float:
    times = []
    for _ in range(TIMES):
        joint.find.cache_clear()
        times.append(_time(capacity, request))
    return min(times)


def _search_again(capacity: NodeCapacity, request: DeviceRequest) -> Iterator[float]:
    _time(capacity, request)
    for _ in range(WARM):
        yield _time(capacity, request)


def _time(capacity: NodeCapacity, request: DeviceRequest) -> float:
    began = time.process_time()
    fit(capacity, request, policy=Policy.BINPACK)
    return time.process_time() - began


def _asks(size: int) -> Iterator[DeviceRequest]:
    for gpus in (size // 2, size // 2 + 1, 3):
        for vfs in (0, gpus - 1, gpus, gpus + 1, 2 * gpus):
            yield DeviceRequest(containers=(ContainerRequest(name="main", gpus=gpus, vfs=vfs),))


def _nodes(size: int) -> Iterator[NodeCapacity]:
    yield _node(size, nvlinks=18)
    yield _node(size, nvlinks=0)
    yield _node(size, nvlinks=18, ports=size // 4)


def _node(size: int, *, nvlinks: int, ports: int | None = None) -> NodeCapacity:
    """Return a node: two sockets, two switches to a host bridge. `ports`: PFs that have free VFs."""
    links = (NvLink(count=nvlinks),) if nvlinks else ()
    cards, vfs = [], []
    for number in range(size):
        socket, bridge = number * 2 // size, f"pci{number // 2:04x}:00"
        place = Place(path=(bridge, f"{number:04x}:00:01.0", f"{number:04x}:01:00.0"), numa=socket, socket=socket)
        gpu = Gpu(
            uuid=GpuUuid(f"GPU-{number}"),
            bdf=PciAddress(f"{number:04x}:02:00.0"),
            model="any",
            memory_mib=81920,
            links=links,
            place=place,
        )
        cards.append(CardCapacity(gpu=gpu, free_mib=gpu.usable_mib, free_core=100, pods=0, containers=0, usable=True))
        pf = Pf(bdf=PciAddress(f"{number:04x}:03:00.0"), place=place)
        for vf in range(1, VFS_OF_PF + 1):
            one = Vf(bdf=PciAddress(f"{number:04x}:03:00.{vf}"))
            vfs.append(VfCapacity(vf=one, pf=pf, usable=True, free=ports is None or number < ports))
    return NodeCapacity(name="node", version=1, cards=tuple(cards), vfs=tuple(vfs))


if __name__ == "__main__":
    for name, value in measure_joint().items():
        print(f"{name:24}{value:10.3f}")
