"""Define the effective configuration of central's decisions (`GET /v1/configuration`): policy, limits and expected pods.

`kubectl lading simulate` decides as central does, with this configuration and the ledger's facts from the API server.
"""

from collections.abc import Callable, Iterable
from typing import Annotated

import msgspec

from central.decide.scheduler import Domains, Scheduler
from central.ledger.ledger import Ledger
from central.rank.forecast import STEPS, Forecast
from central.rank.workload import ExpectedWorkload, PodKind, WrittenPod, kinds_written
from central.request.dialects.options import NO_OPTIONS, DialectOptions
from central.request.model import PartitionPolicy, Policy
from central.request.parse import Dialects
from central.search.demand import DEFAULT_LIMITS, Limits
from central.state.pending import PendingPods


class EffectiveConfiguration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    policy: Policy = Policy.FRAGMENTATION  # central's default too
    spread_containers_per_card: int = DEFAULT_LIMITS.spread_containers_per_card
    nvswitch_partition: PartitionPolicy = DEFAULT_LIMITS.partition
    foreign_annotations: tuple[str, ...] = ()  # annotations of other systems, which central ignores
    dialects: DialectOptions = NO_OPTIONS
    workload: tuple[WrittenPod, ...] = ()  # expected pods with weights; empty: no file, and nothing learned
    turnover: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0  # share of newly placed pods that replace ended pods

    def scheduler(
        self, ledger: Ledger, pending: PendingPods, *, clock: Callable[[], float], domains: Domains = lambda key: None
    ) -> Scheduler:
        return Scheduler(
            ledger,
            pending,
            clock=clock,
            policy=self.policy,
            limits=Limits(spread_containers_per_card=self.spread_containers_per_card, partition=self.nvswitch_partition),
            domains=domains,
            dialects=Dialects(self.dialects),
            forecast=Forecast.settled(_read(self.workload) if self.workload else None, round(STEPS * self.turnover)),
        )


def effective_configuration(scheduler: Scheduler, foreign: Iterable[str] = ()) -> EffectiveConfiguration:
    return EffectiveConfiguration(
        foreign_annotations=tuple(sorted(foreign)),
        dialects=scheduler.dialects.options,
        policy=scheduler.policy,
        spread_containers_per_card=scheduler.limits.spread_containers_per_card,
        nvswitch_partition=scheduler.limits.partition,
        workload=_written(scheduler.forecast.workload),
        turnover=scheduler.forecast.turnover.share,
    )


def _read(workload: tuple[WrittenPod, ...]) -> ExpectedWorkload:
    return ExpectedWorkload(kinds=tuple((kind, int(mass)) for kind, mass in kinds_written(workload).items()))


def _written(workload: ExpectedWorkload) -> tuple[WrittenPod, ...]:
    return tuple(_written_kind(kind, mass) for kind, mass in workload.kinds)


def _written_kind(kind: PodKind, mass: int) -> WrittenPod:
    return WrittenPod(
        weight=mass,
        cpu_milli=kind.cpu_memory.cpu_milli,
        memory_mib=kind.cpu_memory.memory_mib,
        gpus=kind.gpus,
        gpu_memory_mib=kind.memory_mib,
        gpu_core_percent=kind.core_percent,
        gpu_models=kind.models,
    )
