"""Test members of a gang without devices: their cpu and memory decide where they fit, at each call of central."""

from collections.abc import Callable

import pytest

from central.controllers.patience import Patience
from central.decide.preempt import plans
from central.decide.scheduler import Scheduler
from central.decide.why_pod import judge_nodes, why_by_nodes
from central.request.model import Policy
from central.search.placement import Placement
from central.state.nodes import Nodes
from central.state.pending import Pending
from lading.vocabulary import GANG, GANG_MIN, RESOURCE_GANG_MEMBER
from tests.fakes.records import Records
from tests.fakes.simulated_time import run_simulated
from tests.unit.central.world import World

LAUNCHER = {RESOURCE_GANG_MEMBER: "1"}

policies = pytest.mark.parametrize("policy", [*Policy])


def show_launcher(policy: Policy, *, gpus: int = 2) -> tuple[World, Pending]:
    """Return a world with a node of some cards, and a launcher that was refused in an earlier term."""
    world = World(policy=policy)
    for name in ("n1", "n2"):
        world.report(name, gpus)
        world.readiness(name, True, allocatable={"cpu": "4", "memory": "8Gi"})
    world.show("launcher", LAUNCHER, annotations={GANG: "job", GANG_MIN: "2"}, priority=10)
    pod = world.pending_pod("launcher")
    world.pending.refused(pod, 0.0)
    return world, pod


@policies
@pytest.mark.parametrize("gpus", [1, 2])
def test_a_launcher_is_requeued_while_a_node_has_cpu(policy: Policy, gpus: int) -> None:
    world, _ = show_launcher(policy, gpus=gpus)
    assert world.requeued() == ["launcher"]
    assert world.requeued() == []


@policies
def test_a_launcher_is_not_refused_any_more_after_a_filter_call(policy: Policy) -> None:
    world, pod = show_launcher(policy)
    assert list(world.filter("launcher", "n1", "n2").fitting) == ["n1", "n2"]
    assert not world.is_refused(pod.name)


@policies
@pytest.mark.parametrize("cached", [False, True])
def test_cpu_and_memory_decide_whether_a_launcher_fits(policy: Policy, cached: bool) -> None:
    world, pod = show_launcher(policy)
    scheduler = world.scheduler
    if cached:
        scheduler.judged(pod.request)
    pod.cpu_memory = pod.cpu_memory._replace(cpu_milli=4000)
    state = scheduler.ledger.without()
    assert scheduler.fit_pod(pod.shape, "n1", state) is not None
    pod.cpu_memory = pod.cpu_memory._replace(cpu_milli=4001)
    assert scheduler.fit_pod(pod.shape, "n1", state) is None


def look_patiently(scheduler: Scheduler, pod: Pending) -> bool:
    patience = Patience(scheduler, Nodes(), patience_s=1.0, clock=lambda: 100.0, log=Records().log)
    patience.refused(pod, ["n1", "n2"])
    run_simulated(patience.scan())
    return True


ENTRIES: dict[str, Callable[[Scheduler, Pending], object]] = {
    "fits_on": lambda scheduler, pod: scheduler.fits_on(pod.request, "n1"),
    "verdict": lambda scheduler, pod: isinstance(scheduler.verdict(pod.request, "n1", scheduler.ledger.without()), Placement),
    "fit_devices": lambda scheduler, pod: scheduler.fit_devices(pod.shape, "n1", scheduler.ledger.without()),
    "placement": lambda scheduler, pod: scheduler.placement(pod, "n1"),
    "best": lambda scheduler, pod: scheduler.judged(pod.request) and scheduler.verdicts.best(pod.shape, ["n1"]),
    "ranked": lambda scheduler, pod: scheduler.judged(pod.request) and scheduler.verdicts.ranked(pod.shape),
    "plans": lambda scheduler, pod: [*plans(scheduler, pod, ["n1", "n2"])] or True,
    "why": lambda scheduler, pod: why_by_nodes(scheduler, pod, 1.0, [*judge_nodes(scheduler, pod)]),
    "patience": look_patiently,
}


@policies
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("cached", [False, True])
def test_a_launcher_fits_by_every_path_of_central(policy: Policy, entry: str, cached: bool) -> None:
    world, pod = show_launcher(policy)
    if cached:
        world.scheduler.judged(pod.request)
    assert ENTRIES[entry](world.scheduler, pod)
