"""The largest node that is searched exactly: sixteen GPUs, each on a switch of its own with a PF of four VFs, all of a kind of
their own to a search. What is in the way is found by counting, or by choices that come early."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from central.ledger.model import NodeCapacity
from central.request.model import PartitionPolicy, Policy, RdmaPolicy, Scope
from central.search import joint
from central.search.fit import fit
from central.search.placement import Missing, NoFit, Placement
from lading.nodedevices import Partition, Place
from tests.fakes.capacities import capacity, card, port, request, vf, whole

VFS_OF_PF = 4


def sixteen(is_free: Callable[[int, int], bool] = lambda switch, number: True, *, socket: int | None = None) -> NodeCapacity:
    """`is_free`: by switch, and number of the VF there. `socket`: all of it is there."""

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


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sets of cards that a search looked at."""
    seen: list[int] = []
    judge = joint._Search._judge

    def counted(self: joint._Search, cards: int, *args: Any) -> None:
        seen.append(cards)
        judge(self, cards, *args)

    monkeypatch.setattr(joint._Search, "_judge", counted)
    joint.find.cache_clear()
    return seen


def test_containers_that_need_many_vfs_come_before_those_that_need_few() -> None:
    """Eight switches have one free VF: c and d need others, which a and b would take first."""
    where = sixteen(lambda switch, number: switch % 2 == 0 or number == 0)
    asked = {"a": (4, 1), "b": (4, 1), "c": (5, 2), "d": (2, 4)}
    pod = request(*(whole(name, gpus, vfs=vfs) for name, (gpus, vfs) in asked.items()), rdma_policy=RdmaPolicy.PER_SWITCH)
    found = fit(where, pod, policy=Policy.BINPACK)
    assert isinstance(found, Placement)
    assert list(found.containers) == list(asked)


def test_partitions_of_many_gpus_come_before_those_of_few() -> None:
    """Neighbours by their switch are not those of a partition, and three GPUs are held: the first two partitions of four."""
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


def test_why_a_pod_does_not_fit_asks_for_any_choice_and_not_for_the_best(judged: list[int]) -> None:
    where = sixteen(lambda switch, number: switch % 2 == 0)
    found = fit(where, request(whole("a", 9, vfs=1), rdma_policy=RdmaPolicy.PER_SWITCH), policy=Policy.BINPACK)
    assert found == NoFit(missing=Missing.TOO_FEW_FREE_VFS_OF_SWITCH)
    assert len(judged) < 100


def test_a_place_with_too_few_free_vfs_is_not_searched(judged: list[int]) -> None:
    """All GPUs are on a socket with four free VFs; eight more are elsewhere."""
    near = sixteen(lambda switch, number: switch < 4 and number == 0, socket=0)
    away = [vf(number, pf=port(16, switch=16)) for number in range(8)]
    found = fit(replace(near, vfs=(*near.vfs, *away)), request(whole("a", 8, vfs=8), scope=Scope.SOCKET), policy=Policy.BINPACK)
    assert found == NoFit(missing=Missing.NOT_FREE_WITHIN_SCOPE)
    assert len(judged) < 100
