"""Choose the victims that give back borrowed amounts of quotas, so that pods of another quota can start.

Take units (single pods, or gangs as a whole) of quotas over their limits, and a function `enough`. It reports, in steps,
whether the waiting pods could start without the given pods. Return the victims; none if even the eviction of all candidates is
not enough.

    1. From the least important on, pods become candidates: first the surplus members of gangs, one by one, then whole units.
       Less important is a lower priority, then a later start. A unit is skipped if its quota, without the candidates so far,
       is within its limit, or if it is never preempted.
    2. As soon as `enough` is true, candidates are spared, the most important first, as long as it stays true.

For single pods, and with the end of the excess as `enough`, this is Koordinator's rule.

Source: Koordinator a7a1b76, pkg/scheduler/plugins/elasticquota/quota_overuse_revoke.go.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from central.quota.amounts import add, total_of
from central.quota.model import Amounts, Quota, QuotaId
from central.quota.quota_snapshot import QuotaSnapshot
from lading.vocabulary import PodUid


class UnitMember(NamedTuple):
    uid: PodUid
    amounts: Amounts
    created: float = 0.0  # Unix seconds: the youngest members are surplus first


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUnit:
    """Represent pods that start and end together: a single pod, or a gang."""

    quota: QuotaId
    members: tuple[UnitMember, ...]
    least: int = 1  # minimum number of members that can run together; further members are surplus
    priority: int = 0
    started: float = 0.0  # Unix seconds
    preemptible: bool = True


class Piece(NamedTuple):
    """Represent a possible victim: one surplus member alone, or a whole unit."""

    unit: QuotaUnit
    members: tuple[UnitMember, ...]
    whole: bool


Enough = Callable[[Collection[PodUid]], Generator[None, None, bool]]
Choosing = Generator[None, None, tuple[Piece, ...]]


def may_use(snapshot: QuotaSnapshot, quota: Quota, key: str) -> int | None:
    """Return the amount that a quota keeps when others request their part: its runtime, or its min if it has no runtime. None
    means that the resource is not limited."""
    if quota.flat:
        return quota.min.get(key, 0) if key in quota.max else None
    return snapshot.runtime_of(quota, key)


def beyond(snapshot: QuotaSnapshot, quota: Quota) -> dict[str, int]:
    """Return the quota's use beyond its limit, by resource."""
    excess = {}
    for key in quota.max:
        most = may_use(snapshot, quota, key)
        if most is not None and snapshot.used_of(quota.id, key) > most:
            excess[key] = snapshot.used_of(quota.id, key) - most
    return excess


def choosing(snapshot: QuotaSnapshot, units: Iterable[QuotaUnit], enough: Enough) -> Choosing:
    """Choose the victims, in steps. The result has the least important first; it is empty if no victim is needed, or if all of
    them are not enough."""
    taken: list[Piece] = []
    excess: dict[QuotaId, dict[str, int]] = {}
    for piece in _in_order(units):
        quota = piece.unit.quota
        left = excess.setdefault(quota, beyond(snapshot, snapshot.tree.quotas[quota]))
        evicted = uids_of(taken)
        given = total_of(member.amounts for member in piece.members if member.uid not in evicted)
        if not any(left.get(key, 0) > 0 for key in given):
            continue
        taken.append(piece)
        add(left, {key: amount for key, amount in given.items() if key in left}, -1)
        if (yield from enough(uids_of(taken))):
            return (yield from _put_back(taken, enough))
    return ()


def importance(unit: QuotaUnit) -> tuple[int, float]:
    """Return the sort key of a unit; the least important unit comes first."""
    return unit.priority, -unit.started


def _in_order(units: Iterable[QuotaUnit]) -> Iterator[Piece]:
    ordered = sorted((unit for unit in units if unit.preemptible), key=importance)
    for unit in ordered:
        for member in _surplus(unit):
            yield Piece(unit, (member,), whole=False)
    for unit in ordered:
        yield Piece(unit, unit.members, whole=True)


def _surplus(unit: QuotaUnit) -> list[UnitMember]:
    youngest = sorted(unit.members, key=lambda member: (-member.created, member.uid))
    return youngest[: max(0, len(unit.members) - unit.least)]


def _put_back(taken: Sequence[Piece], enough: Enough) -> Choosing:
    going = list(taken)
    for piece in reversed(taken):
        rest = [one for one in going if one is not piece]
        if not piece.whole and any(one.whole and one.unit is piece.unit for one in rest):
            continue  # the whole gang is evicted, and a surplus member alone is of no use
        if (yield from enough(uids_of(rest))):
            going = rest
    return tuple(going)


def uids_of(pieces: Iterable[Piece]) -> frozenset[PodUid]:
    return frozenset(member.uid for piece in pieces for member in piece.members)
