"""Test that the configuration by which central decides can be read and used by a command, which then decides the same."""

import random

import msgspec
import pytest

from central.decide.configuration import EffectiveConfiguration, effective_configuration
from central.decide.scheduler import Scheduler
from central.ledger.model import Claim
from central.rank.forecast import Forecast
from central.rank.workload import PodKind
from central.request.model import CpuMemory, PartitionPolicy, Policy
from central.search.demand import Limits
from tests.fakes.kube_objects import decoded, share
from tests.unit.central.world import World, uid_of

PRIOR = {
    PodKind(core_percent=30, cpu_memory=CpuMemory(4000, 8192)): 3.0,
    PodKind(gpus=2, models=("NVIDIA A", "NVIDIA B")): 1.0,
    PodKind(memory_mib=9000): 0.5,
    PodKind(cpu_memory=CpuMemory(64000, 1 << 20)): 0.1,
}


def told(scheduler: Scheduler) -> EffectiveConfiguration:
    return msgspec.json.decode(msgspec.json.encode(effective_configuration(scheduler)), type=EffectiveConfiguration)


@pytest.mark.parametrize("policy", Policy)
def test_a_scheduler_from_the_effective_configuration_decides_as_the_original(policy: Policy) -> None:
    first = World(policy=policy, forecast=Forecast(PRIOR))
    limits = Limits(spread_containers_per_card=3, partition=PartitionPolicy.HONOR)
    own = Scheduler(first.ledger, first.pending, clock=lambda: 0.0, policy=policy, limits=limits, forecast=Forecast(PRIOR))
    other = told(own).scheduler(first.ledger, first.pending, clock=lambda: 0.0)
    assert (other.policy, other.limits) == (policy, limits)
    assert other.forecast.workload == own.forecast.workload


def test_without_a_file_and_before_anything_is_learned() -> None:
    scheduler = World(policy=Policy.FRAGMENTATION).scheduler
    assert told(scheduler).scheduler(World().ledger, World().pending, clock=lambda: 0.0).forecast.workload == (
        scheduler.forecast.workload
    )


def test_the_same_node_is_named() -> None:
    draw = random.Random(7)  # noqa: S311
    made = World(policy=Policy.FRAGMENTATION)
    for number in range(6):
        made.node(f"n{number}", 4)
        made.readiness(f"n{number}", True, allocatable={"cpu": "64", "memory": "256Gi"})
    names = list(made.ledger.nodes())
    for number in range(60):
        name = f"p{number}"
        made.show(name, draw.choice([share("20Gi", 25), share("", 50), {"lading.dev/gpu": "1"}, {"lading.dev/gpu": "2"}]))
        other = told(made.scheduler).scheduler(made.ledger, made.pending, clock=lambda: 0.0)
        elsewhere = other.prioritize(decoded(made.pods[name]), names)
        made.filter(name)
        claim = made.ledger.own_claim(uid_of(name), Claim.PREDICTED)
        assert (claim.node if claim else None) == elsewhere
        if claim and draw.random() < 0.8:
            made.scheduler.reserve(uid_of(name), claim.node)
