"""Test the largest node that is searched exactly: sixteen GPUs, each on a switch with a PF of four VFs and unlike all others.
Conflicts are found by counting, or by the first choices."""

from collections.abc import Callable
from dataclasses import replace

import msgspec

from central.ledger.model import NodeCapacity
from central.request.model import PartitionPolicy, Policy, RdmaPolicy
from central.search.fit import fit
from central.search.placement import Placement
from lading.nodedevices import Partition, Place
from tests.fakes.capacities import capacity, card, port, request, vf, whole

VFS_OF_PF = 4


def sixteen(is_free: Callable[[int, int], bool] = lambda switch, number: True, *, socket: int | None = None) -> NodeCapacity:
    """Return such a node. `is_free`: by switch, and number of the VF there. `socket`: all devices are on one socket."""

    def here(place: Place) -> Place:
        return place if socket is None else msgspec.structs.replace(place, numa=socket, socket=socket)

    cards = [card(n, switch=n) for n in range(16)]
    ports = [port(n, switch=n) for n in range(16)]
    return capacity(
        *(replace(one, gpu=msgspec.structs.replace(one.gpu, place=here(one.gpu.place))) for one in cards),
        vfs=[
            vf(number, pf=msgspec.structs.replace(pf, place=here(pf.place)), held=not is_free(switch, number))
            for switch, pf in enumerate(ports)
            for number in range(VFS_OF_PF)
        ],
    )


def test_containers_that_need_many_vfs_come_before_those_that_need_few() -> None:
    """Leave one free VF on each of eight switches: c and d need other switches, which a and b would take first."""
    where = sixteen(lambda switch, number: switch % 2 == 0 or number == 0)
    requested = {"a": (4, 1), "b": (4, 1), "c": (5, 2), "d": (2, 4)}
    pod = request(*(whole(name, gpus, vfs=vfs) for name, (gpus, vfs) in requested.items()), rdma_policy=RdmaPolicy.PER_SWITCH)
    result = fit(where, pod, policy=Policy.BINPACK)
    assert isinstance(result, Placement)
    assert list(result.containers) == list(requested)


def test_partitions_of_many_gpus_come_before_those_of_few() -> None:
    """Hold three GPUs, which are in the first two partitions of four: neighbours by switch are not neighbours in a
    partition."""
    pairs = [(14, 13), (7, 16), (5, 8), (1, 6), (12, 2), (15, 10), (3, 4), (11, 9)]
    fours = [(*one, *other) for one, other in zip(pairs[::2], pairs[1::2], strict=True)]
    modules = [*((number,) for number in range(1, 17)), *pairs, *fours]
    taken = {2, 10, 13}
    cards = [card(n, switch=n // 2, free_mib=0 if n + 1 in taken else None) for n in range(16)]
    where = replace(
        capacity(*(replace(one, gpu=msgspec.structs.replace(one.gpu, module_id=n + 1)) for n, one in enumerate(cards))),
        partitions=tuple(Partition(id=number, modules=one) for number, one in enumerate(modules)),
    )
    pod = request(whole("a", 2), whole("b"), whole("c", 4), whole("d", 4), partition=PartitionPolicy.HONOR)
    assert isinstance(fit(where, pod, policy=Policy.BINPACK), Placement)
