"""Test which pods give borrowed devices back: as few as needed, whole gangs or their surplus, the least important first."""

from collections.abc import Callable, Collection, Generator, Iterable

import pytest

from central.loop.steps import result
from central.quota.giving import Piece, QuotaUnit, UnitMember, beyond, choosing
from central.quota.model import QuotaId
from central.quota.quota_snapshot import QuotaSnapshot
from central.quota.tree import build
from central.request.cpu_memory import CPU, MEMORY
from lading.vocabulary import RESOURCE_GPU, PodUid
from tests.unit.central.quota.test_checks import CARD, cards, flat, snapshot
from tests.unit.central.quota.trees import quota

GPU = RESOURCE_GPU


def gang(
    name: str,
    count: int,
    *,
    least: int | None = None,
    priority: int = 0,
    started: float = 0.0,
    team: str = "a",
    gpus: int = 1,
    preemptible: bool = True,
) -> QuotaUnit:
    members = tuple(UnitMember(PodUid(f"{name}{number}"), {GPU: gpus * CARD}, started + number) for number in range(count))
    return QuotaUnit(
        quota=QuotaId(team),
        members=members,
        least=count if least is None else least,
        priority=priority,
        started=started,
        preemptible=preemptible,
    )


def needs(count: int, gpus: int = 1) -> Callable[[Collection[PodUid]], bool]:
    """Return that so many pods of so many cards each have to end."""
    return lambda deleted: len(deleted) * gpus >= count


def give_back(
    now: QuotaSnapshot, units: Iterable[QuotaUnit], enough: Callable[[Collection[PodUid]], bool]
) -> tuple[Piece, ...]:
    """Choose at once, with an `enough` of one step."""

    def in_a_step(deleted: Collection[PodUid]) -> Generator[None, None, bool]:
        yield
        return enough(deleted)

    return result(choosing(now, units, in_a_step))


def going(pieces: tuple[Piece, ...]) -> list[str]:
    return sorted({str(member.uid) for piece in pieces for member in piece.members})


def test_koordinators_example() -> None:
    """Check Koordinator's example: runtime (50, 0), p1 to p4 with priorities 10, 9, 8 and 7: p2 and p4 end."""
    tree = build([quota("q", max={CPU: 100, MEMORY: 100})])
    now = QuotaSnapshot(
        tree=tree, used={QuotaId("q"): {CPU: 90, MEMORY: 1}}, runtime={CPU: {QuotaId("q"): 50}, MEMORY: {QuotaId("q"): 0}}
    )
    amounts = {"p1": (20, 0), "p2": (10, 1), "p3": (20, 0), "p4": (40, 0)}
    units = [
        QuotaUnit(
            quota=QuotaId("q"),
            members=(UnitMember(PodUid(name), {key: amount for key, amount in ((CPU, cpu), (MEMORY, memory)) if amount}),),
            priority=priority,
        )
        for (name, (cpu, memory)), priority in zip(amounts.items(), (10, 9, 8, 7), strict=True)
    ]

    def within(deleted: Collection[PodUid]) -> bool:
        left = [amounts[name] for name in amounts if name not in deleted]
        return sum(cpu for cpu, _ in left) <= 50 and sum(memory for _, memory in left) <= 0

    assert going(give_back(now, units, within)) == ["p2", "p4"]


def lent() -> QuotaSnapshot:
    """Lend 16 cards of two quotas with min 8 and max 16: a runs four gangs of 4, b waits for 6, and a may use 10."""
    return snapshot([cards("a", 8), cards("b", 8)], 16, {"a": 16}, {"b": 6})


def test_as_many_whole_gangs_as_the_waiting_one_needs() -> None:
    units = [
        gang("old", 4, started=1),
        gang("new", 4, started=9),
        gang("high", 4, priority=5, started=99),
        gang("mid", 4, started=5),
    ]
    assert beyond(lent(), lent().tree.quotas[QuotaId("a")]) == {GPU: 6000}
    assert going(give_back(lent(), units, needs(6))) == [*(f"mid{n}" for n in range(4)), *(f"new{n}" for n in range(4))]


def test_no_pod_goes_where_all_that_may_go_is_not_enough() -> None:
    units = [gang("g", 4, started=n) for n in range(4)]
    assert give_back(lent(), units, needs(9)) == ()  # the third gang would be of what a may use
    assert give_back(lent(), units, lambda deleted: False) == ()


def test_surplus_members_go_before_whole_gangs_and_the_youngest_first() -> None:
    units = [gang("whole", 4, started=9), gang("large", 6, least=3, priority=9)]
    assert going(give_back(lent(), units, needs(2))) == ["large4", "large5"]
    assert going(give_back(lent(), units, needs(4))) == [f"whole{n}" for n in range(4)]  # and the surplus is put back


def test_unneeded_victims_are_spared_by_priority() -> None:
    units = [gang(name, 1, priority=priority, gpus=gpus) for name, priority, gpus in (("a", 1, 1), ("b", 2, 1), ("c", 3, 4))]
    size = {"a0": 1, "b0": 1, "c0": 4}
    assert going(give_back(lent(), units, lambda deleted: sum(size[name] for name in deleted) >= 4)) == ["c0"]

    def with_either(deleted: Collection[PodUid]) -> bool:
        return "c0" in deleted and not {"a0", "b0"}.isdisjoint(deleted)

    assert going(give_back(lent(), units, with_either)) == ["a0", "c0"]


@pytest.mark.parametrize("preemptible", [True, False])
def test_pods_that_are_never_preempted_stay(preemptible: bool) -> None:
    found = give_back(lent(), [gang("a", 2, preemptible=preemptible)], needs(2))
    assert bool(found) == preemptible


def test_a_quota_within_what_it_may_use_gives_nothing() -> None:
    now = snapshot([cards("a", 8), cards("b", 8), cards("c", 0)], 16, {"a": 8, "c": 8}, {"b": 6})
    units = [gang("a", 4), gang("c", 4, team="c", priority=9)]
    assert going(give_back(now, units, needs(4))) == [f"c{n}" for n in range(4)]


def test_a_gang_whose_surplus_went_goes_whole_or_keeps_its_minimum() -> None:
    units = [gang("g", 6, least=4)]
    assert going(give_back(lent(), units, needs(1))) == ["g5"]
    assert going(give_back(lent(), units, needs(3))) == [f"g{n}" for n in range(6)]


def test_scheduler_plugins_quotas_keep_their_min() -> None:
    now = snapshot([flat("a", 4, 6), flat("b", 6, 8)], 10, {"a/q": 6}, {"b/q": 6})
    units = [gang("a", 1, team="a/q", started=n) for n in range(6)]
    assert beyond(now, now.tree.quotas[QuotaId("a/q")]) == {GPU: 2000}
    assert len(give_back(now, units, lambda deleted: len(deleted) >= 1)) == 1
