"""Group a quota's pods that start and end together: a gang gives back as a whole, or its members beyond the minimum.

Tests: tests/unit/central/controllers/test_take_back.py
"""

from collections.abc import Callable, Iterator, Sequence

from central.gang.gangs import Gangs
from central.ledger.model import PodRecord
from central.quota.giving import QuotaUnit, UnitMember
from central.quota.model import QuotaId
from central.state.quotas import Counted

Holding = tuple[PodRecord, Counted]


def units_of(gangs: Gangs) -> Callable[[QuotaId, Sequence[Holding]], Iterator[QuotaUnit]]:
    """Return a function that groups the pods of one quota into units."""

    def join(quota: QuotaId, holding: Sequence[Holding]) -> Iterator[QuotaUnit]:
        by_gang: dict[object, list[Holding]] = {}
        for record, counted in holding:
            gang = gangs.bound_with(record.uid)
            by_gang.setdefault(record.uid if gang is None else gang.key, []).append((record, counted))
        for pods in by_gang.values():
            gang = gangs.bound_with(pods[0][0].uid)
            yield QuotaUnit(
                quota=quota,
                members=tuple(UnitMember(record.uid, counted.held, record.created) for record, counted in pods),
                least=1 if gang is None else max(1, sum(gang.terms.least.values())),
                priority=max(record.priority for record, _ in pods),
                started=max(record.created for record, _ in pods),
                preemptible=all(counted.owner.preemptible for _, counted in pods),
            )

    return join
