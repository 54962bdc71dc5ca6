"""Test the cluster statistics: the first scan, later scans that only count changes, and that other tasks run meanwhile."""

import asyncio
from itertools import count

import pytest

from central.controllers import statistics as module
from central.controllers.statistics import Amounts, ClusterStatistics, Overview
from central.ledger.ledger import Ledger
from central.rank.columns import Bools
from central.rank.unusable import FreeColumns, unusable_milli
from central.rank.workload import PodKind, workload_of
from central.request.model import CpuMemory
from central.view.model import NodeState
from tests.fakes.kube_objects import share
from tests.fakes.records import made_faults
from tests.unit.central.world import World

CARD = 81920


def statistics_of(made: World, **kinds: PodKind) -> ClusterStatistics:
    if kinds:
        made.scheduler.forecast.workload = workload_of(dict.fromkeys(kinds.values(), 1.0))
    return ClusterStatistics(made.ledger, made.scheduler.forecast, clock=lambda: 0.0, faults=made_faults())


def test_the_statistics_of_devices_pods_and_nodes() -> None:
    made = World()
    made.node("n1", 4, 3)
    made.node("n2", 2, unhealthy="Xid 79")
    made.bind("whole", "n1", {"lading.dev/gpu": "1", "lading.dev/rdma": "1"})
    made.bind("part", "n1", share("20Gi", 30))
    statistics = statistics_of(
        made, half=PodKind(core_percent=80), two=PodKind(gpus=2), none=PodKind(cpu_memory=CpuMemory(1, 1))
    )
    assert statistics.overview is None
    observed = _look(statistics)
    assert observed.nodes == {NodeState.READY: 2, NodeState.UNREACHABLE: 0, NodeState.NOT_RECONCILED: 0, NodeState.REBOOTED: 0}
    assert (observed.gpus, observed.mig_gpus) == (Amounts(free=2, held=2, unusable=2), 0)
    assert observed.memory_mib == Amounts(free=2 * CARD + 61440, held=CARD + 20480, unusable=2 * CARD)
    assert observed.core_percent == Amounts(free=270, held=130, unusable=200)
    assert observed.vfs == Amounts(free=2, held=1, unusable=0)
    assert observed.free_milli == 2700
    assert observed.unusable_milli == 700  # the shared card's free part, for both kinds of pods that request GPUs
    assert round(observed.fragmentation, 3) == round(700 / 2700, 3)
    assert observed.places == {1: 2, 2: 1, 4: 0, 8: 0}


def test_devices_of_an_unreachable_node_are_unusable() -> None:
    made = World()
    made.node("n1", 2, 1, ready=False)
    statistics = statistics_of(made)
    observed = _look(statistics)
    assert observed.nodes[NodeState.UNREACHABLE] == 1
    assert (observed.gpus.unusable, observed.memory_mib.unusable, observed.vfs.unusable, observed.free_milli) == (
        2,
        2 * CARD,
        1,
        0,
    )
    assert observed.fragmentation == 0.0
    assert observed.places[1] == 0


def test_the_next_scan_sees_what_changed() -> None:
    made = World()
    for name in ("n1", "n2", "n3"):
        made.node(name, 2, 1)
    kept_up = statistics_of(made, two=PodKind(gpus=2, cpu_memory=CpuMemory(cpu_milli=100)))
    _look(kept_up)
    made.bind("a", "n1")
    made.report("n2", 2, 1, cordon="all")
    made.readiness("n3", True, allocatable={"cpu": "50m", "memory": "1Gi"})
    assert _look(kept_up) == _look(statistics_of(made))
    made.deleted("a")
    made.ledger.facts.remove_report("n2", made.next_version())
    assert _look(kept_up) == _look(statistics_of(made))
    assert _look(kept_up).gpus == Amounts(free=4)


def _look(statistics: ClusterStatistics) -> Overview:
    asyncio.run(statistics.scan())
    assert statistics.overview is not None
    return statistics.overview


def test_parts_add_up_to_the_whole_and_no_step_is_of_more_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = World()
    for number in range(7):
        made.node(f"n{number}", 1 + number % 3, number % 2, ready=number != 2, unhealthy="Xid 79" if number == 4 else "")
    made.bind("whole", "n1", {"lading.dev/gpu": "1", "lading.dev/rdma": "1"})
    made.bind("part", "n5", share("20Gi", 30))
    kinds = {"half": PodKind(core_percent=80), "two": PodKind(gpus=2), "three": PodKind(gpus=3, cpu_memory=CpuMemory(1, 1))}
    whole = _look(statistics_of(made, **kinds))
    rows = []

    def counted(free: FreeColumns, kind: PodKind, models: Bools | None) -> int:
        rows.append(len(free.milli))
        return unusable_milli(free, kind, models)

    monkeypatch.setattr(module, "PART_NODES", 2)
    monkeypatch.setattr(module, "unusable_milli", counted)
    statistics = statistics_of(made, **kinds)
    assert _look(statistics) == whole
    assert max(rows) <= 2
    made.ledger.facts.remove_report("n0", made.next_version())
    made.ledger.facts.remove_report("n6", made.next_version())
    made.node("n7", 4, 2)
    made.node("n8", 2, 1)
    assert _look(statistics) == _look(statistics_of(made, **kinds))
    assert _look(statistics).gpus.free + _look(statistics).gpus.held + _look(statistics).gpus.unusable == 17


def test_the_first_scan_lists_no_loads_beside_the_rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that no second list of loads is made: a node's capacity has its cpu and memory, and a list of all nodes is one long
    step."""
    made = World.of(n1=2, n2=2, n3=2)
    listed = []
    real = Ledger.loads_changed_since

    def loads(self: Ledger, version: int) -> tuple[list[tuple[str, int, int, bool]], int]:
        listed.append(real(self, version)[0])
        return real(self, version)

    monkeypatch.setattr(Ledger, "loads_changed_since", loads)
    statistics = statistics_of(made, one=PodKind(gpus=1, cpu_memory=CpuMemory(cpu_milli=100)))
    _look(statistics)
    made.readiness("n3", True, allocatable={"cpu": "50m", "memory": "1Gi"})
    assert _look(statistics).unusable_milli == 2000
    assert [len(some) for some in listed] == [0, 1]


async def test_other_tasks_have_their_turn_during_a_scan() -> None:
    made = World()
    for number in range(20):
        made.node(f"n{number}", 1)
    ticks = count()
    statistics = ClusterStatistics(made.ledger, made.scheduler.forecast, clock=lambda: float(next(ticks)), faults=made_faults())
    turns = 0
    looking = asyncio.create_task(statistics.scan())
    while not looking.done():
        turns += 1
        await asyncio.sleep(0.001)
    assert turns > 20
