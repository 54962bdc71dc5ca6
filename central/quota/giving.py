"""Choose who gives back what a quota uses beyond what it may use now, so that pods of another quota can start.

It takes units: single pods, or gangs as a whole, in quotas that use more than they may; and `enough`, which says, in steps,
whether the waiting pods could start if these pods were gone. It returns the pods that have to go: none if even all of them
would not be enough.

    1. From the least important on, pods are taken in thought: first what gangs have beyond their minimum, one member each, then
       whole units. Less important is a lower priority, then a later start. No unit is taken of a quota that is within what it
       may use, with what was taken of it already, and none that is never preempted.
    2. As soon as it is enough, what was taken is put back, the most important first, as long as it stays enough.

For single pods, and with the end of the excess as what is enough, that is Koordinator's rule.

Source: Koordinator a7a1b76, pkg/scheduler/plugins/elasticquota/quota_overuse_revoke.go.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from central.quota.amounts import add, total_of
from central.quota.model import Amounts, Quota, QuotaId
from central.quota.quota_snapshot import QuotaSnapshot
from lading.vocabulary import PodUid


class Member(NamedTuple):
    """A pod of a unit."""

    uid: PodUid
    amounts: Amounts
    created: float = 0.0  # Unix seconds: the youngest members are surplus first


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Pods that start and end together."""

    quota: QuotaId
    members: tuple[Member, ...]
    least: int = 1  # members without which the others are of no use; those beyond it are surplus
    priority: int = 0
    started: float = 0.0  # Unix seconds
    preemptible: bool = True


class Piece(NamedTuple):
    """Hold a part of a unit that can go: one surplus member alone, or the whole unit."""

    unit: Unit
    members: tuple[Member, ...]
    whole: bool


Enough = Callable[[Collection[PodUid]], Generator[None, None, bool]]
Choosing = Generator[None, None, tuple[Piece, ...]]


def may_use(snapshot: QuotaSnapshot, quota: Quota, key: str) -> int | None:
    """Return what a quota keeps when others ask for their part: its runtime; its min where it has no runtime. None: the
    resource is not limited."""
    if quota.flat:
        return quota.min.get(key, 0) if key in quota.max else None
    return snapshot.runtime_of(quota, key)


def beyond(snapshot: QuotaSnapshot, quota: Quota) -> dict[str, int]:
    """Return by resource how much more the quota uses than it may."""
    excess = {}
    for key in quota.max:
        most = may_use(snapshot, quota, key)
        if most is not None and snapshot.used_of(quota.id, key) > most:
            excess[key] = snapshot.used_of(quota.id, key) - most
    return excess


def choosing(snapshot: QuotaSnapshot, units: Iterable[Unit], enough: Enough) -> Choosing:
    """Choose who gives back, in steps. The result is the pieces that go, the least important first; nothing if all that may be
    taken would not be enough, or nothing has to be."""
    taken: list[Piece] = []
    excess: dict[QuotaId, dict[str, int]] = {}
    for piece in _in_order(units):
        quota = piece.unit.quota
        left = excess.setdefault(quota, beyond(snapshot, snapshot.tree.quotas[quota]))
        gone = uids_of(taken)
        given = total_of(member.amounts for member in piece.members if member.uid not in gone)
        if not any(left.get(key, 0) > 0 for key in given):
            continue
        taken.append(piece)
        add(left, {key: amount for key, amount in given.items() if key in left}, -1)
        if (yield from enough(uids_of(taken))):
            return (yield from _put_back(taken, enough))
    return ()


def importance(unit: Unit) -> tuple[int, float]:
    """Return the sort key of units: the least important first."""
    return unit.priority, -unit.started


def _in_order(units: Iterable[Unit]) -> Iterator[Piece]:
    ordered = sorted((unit for unit in units if unit.preemptible), key=importance)
    for unit in ordered:
        for member in _surplus(unit):
            yield Piece(unit, (member,), whole=False)
    for unit in ordered:
        yield Piece(unit, unit.members, whole=True)


def _surplus(unit: Unit) -> list[Member]:
    youngest = sorted(unit.members, key=lambda member: (-member.created, member.uid))
    return youngest[: max(0, len(unit.members) - unit.least)]


def _put_back(taken: Sequence[Piece], enough: Enough) -> Choosing:
    going = list(taken)
    for piece in reversed(taken):
        rest = [one for one in going if one is not piece]
        if not piece.whole and any(one.whole and one.unit is piece.unit for one in rest):
            continue  # its gang goes, and a surplus member alone is of no use
        if (yield from enough(uids_of(rest))):
            going = rest
    return tuple(going)


def uids_of(pieces: Iterable[Piece]) -> frozenset[PodUid]:
    return frozenset(member.uid for piece in pieces for member in piece.members)
