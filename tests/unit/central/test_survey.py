"""The cluster in numbers: what a look says, that the next one keeps up, and that others have their turn meanwhile."""

import asyncio
from itertools import count

from central.ask.model import Requests
from central.fit.workload import PodKind, workload_of
from central.survey import Amounts, Overview, Survey
from central.view.model import NodeState
from tests.fakes.kube_objects import share
from tests.unit.central.world import World

CARD = 81920


def survey_of(made: World, **kinds: PodKind) -> Survey:
    if kinds:
        made.scheduler.forecast.workload = workload_of(dict.fromkeys(kinds.values(), 1.0))
    return Survey(made.ledger, made.scheduler.forecast, clock=lambda: 0.0)


def test_what_there_is() -> None:
    made = World()
    made.node("n1", 4, 3)
    made.node("n2", 2, unhealthy="Xid 79")
    made.bind("whole", "n1", {"lading.dev/gpu": "1", "lading.dev/rdma": "1"})
    made.bind("part", "n1", share("20Gi", 30))
    survey = survey_of(made, half=PodKind(core_percent=80), two=PodKind(gpus=2), none=PodKind(requests=Requests(1, 1)))
    assert survey.overview is None
    seen = _look(survey)
    assert seen.nodes == {NodeState.READY: 2, NodeState.UNREACHABLE: 0, NodeState.NOT_RECONCILED: 0}
    assert (seen.gpus, seen.mig_gpus) == (Amounts(free=2, held=2, unusable=2), 0)
    assert seen.memory_mib == Amounts(free=2 * CARD + 61440, held=CARD + 20480, unusable=2 * CARD)
    assert seen.core_percent == Amounts(free=270, held=130, unusable=200)
    assert seen.vfs == Amounts(free=2, held=1, unusable=0)
    assert seen.free_milli == 2700
    assert seen.unusable_milli == 700  # of the card that is shared, for both of the kinds that ask for GPUs
    assert round(seen.fragmentation, 3) == round(700 / 2700, 3)
    assert seen.places == {1: 2, 2: 1, 4: 0, 8: 0}


def test_what_is_free_on_a_node_that_does_not_serve_can_not_be_given() -> None:
    made = World()
    made.node("n1", 2, 1, ready=False)
    survey = survey_of(made)
    seen = _look(survey)
    assert seen.nodes[NodeState.UNREACHABLE] == 1
    assert (seen.gpus.unusable, seen.memory_mib.unusable, seen.vfs.unusable, seen.free_milli) == (2, 2 * CARD, 1, 0)
    assert seen.fragmentation == 0.0
    assert seen.places[1] == 0


def test_the_next_look_sees_what_changed() -> None:
    made = World()
    for name in ("n1", "n2", "n3"):
        made.node(name, 2, 1)
    kept_up = survey_of(made, two=PodKind(gpus=2, requests=Requests(cpu_milli=100)))
    _look(kept_up)
    made.bind("a", "n1")
    made.report("n2", 2, 1, cordon="all")
    made.readiness("n3", True, allocatable={"cpu": "50m", "memory": "1Gi"})
    assert _look(kept_up) == _look(survey_of(made))
    made.gone("a")
    made.ledger.remove_node("n2", made.next_version())
    assert _look(kept_up) == _look(survey_of(made))
    assert _look(kept_up).gpus == Amounts(free=4)


def _look(survey: Survey) -> Overview:
    asyncio.run(survey.look())
    assert survey.overview is not None
    return survey.overview


def test_others_have_their_turn() -> None:
    made = World()
    for number in range(20):
        made.node(f"n{number}", 1)
    ticks = count()
    survey = Survey(made.ledger, made.scheduler.forecast, clock=lambda: float(next(ticks)))
    turns = 0

    async def story() -> None:
        nonlocal turns
        looking = asyncio.create_task(survey.look())
        while not looking.done():
            turns += 1
            await asyncio.sleep(0)

    asyncio.run(story())
    assert turns > 20
