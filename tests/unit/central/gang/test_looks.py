"""Test which gangs a scan visits: gangs that changed or are due. A change of a PodGroup costs only the pods that name it."""

import tracemalloc
from collections import Counter

import msgspec
import pytest

from central.api.pod_groups import GangObject
from central.controllers.gangs import QUEUED_S
from central.decide.gangs import GangPlanner
from central.extender.wire import Names
from central.gang.gang import Gang, Member
from central.gang.gangs import Gangs
from central.gang.life import Phase
from central.loop.steps import Steps
from central.request.gang import GangDialect, GangKey, Membership, ObjectKey, Terms
from lading.vocabulary import PodUid
from tests.fakes.led import Led
from tests.unit.central.gang.members import bound, put_gang, put_member

GANGS = 30


@pytest.fixture
def visits(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return how often each gang is visited, or has a plan searched for it."""
    counted: Counter[str] = Counter()
    compressing, state = Gangs.compressing, GangPlanner.state

    def visit_counted(self: Gangs, gang: Gang) -> Steps:
        counted[gang.key.name] += 1
        return compressing(self, gang)

    def state_counted(self: GangPlanner, gang: Gang) -> object:
        counted[f"compare {gang.key.name}"] += 1
        return state(self, gang)

    monkeypatch.setattr(Gangs, "compressing", visit_counted)
    monkeypatch.setattr(GangPlanner, "state", state_counted)
    return counted


async def gangs_wait(cluster: Led, visits: Counter[str]) -> None:
    """Create gangs for which there are too few cards."""
    for number in range(GANGS):
        for name in await put_gang(cluster, f"g{number}x", 2):
            cluster.filter(name)
    await cluster.pause(10)
    visits.clear()


async def members_are_missing(cluster: Led, visits: Counter[str]) -> None:
    """Create one of the two members of each gang."""
    for number in range(GANGS):
        await put_member(cluster, f"g{number}x0", f"g{number}x", "2")
    await cluster.pause(1)
    visits.clear()


async def test_gangs_that_wait_are_not_checked_while_nothing_changes(cluster: Led, visits: Counter[str]) -> None:
    await gangs_wait(cluster, visits)
    await cluster.pause(QUEUED_S)
    assert visits.total() <= 3 * GANGS
    assert set(cluster.leadership.gang_phases) == {Phase.QUEUED}


async def test_gangs_whose_members_are_missing_are_not_checked(cluster: Led, visits: Counter[str]) -> None:
    await members_are_missing(cluster, visits)
    await cluster.put_node("n2")  # the cluster changes
    await cluster.pause(60)
    assert not visits


async def test_the_gang_that_changed_is_checked_alone(cluster: Led, visits: Counter[str]) -> None:
    await members_are_missing(cluster, visits)
    await put_member(cluster, "g7x1", "g7x", "2")
    await cluster.pause(0.5)
    assert {name.removeprefix("compare ") for name in visits} == {"g7x"}


async def test_each_waiting_gang_is_compared_when_the_cluster_changes(cluster: Led, visits: Counter[str]) -> None:
    await gangs_wait(cluster, visits)
    await cluster.put_node("n2", 2)
    await cluster.pause(0.5)
    assert len({name for name in visits if name.startswith("compare ")}) == GANGS


async def test_the_phase_of_a_deleted_gang_is_forgotten(cluster: Led) -> None:
    await cluster.put_node("n2")
    names = await put_gang(cluster, "g", 2)
    await cluster.pause(1)
    assert len(cluster.leadership.gang_phases.values()) == 1
    for name in names:
        await cluster.remove_pod(name)
    await cluster.pause(1)
    assert (cluster.leadership.gang_phases, bound(cluster)) == (Counter(), [])


def test_a_pod_group_costs_only_the_pods_that_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gangs, put = Gangs(), Counter[str]()
    settled = Counter[str]()

    def key(name: str) -> ObjectKey:
        return ObjectKey(GangDialect.COSCHEDULING, "default", name)

    def member(group: str, number: int) -> Member:
        membership = Membership(gang=GangKey(GangDialect.COSCHEDULING, "default", group), source=key(group))
        uid = PodUid(f"{group}-{number}")
        return Member(uid=uid, namespace="default", name=uid, membership=membership)

    for group in "ab":
        for number in range(50):
            gangs.put(member(group, number))
    original, settle = Gangs.put, Gang.settled
    monkeypatch.setattr(Gangs, "put", lambda self, one: (put.update([one.uid[0]]), original(self, one)))
    monkeypatch.setattr(Gang, "settled", lambda self, members: settled.update([self.key.name]) or settle(self, members))
    gangs.put_object(GangObject(key=key("other"), terms=Terms(least={"": 3})))
    assert not put
    gangs.put_object(GangObject(key=key("a"), terms=Terms(least={"": 3})))
    assert (put, settled) == (Counter(a=50), Counter())
    assert [len(gang.members) for gang in gangs] == [50, 50]
    assert settled == Counter(a=1, b=1)
    for number in range(50):
        gangs.remove(PodUid(f"b-{number}"))
    put.clear()
    gangs.put_object(GangObject(key=key("b"), terms=Terms(least={"": 3})))
    assert not put


async def test_node_names_of_waiting_members_take_little_memory(cluster: Led) -> None:
    """Check the memory of the node names of calls: as text, 5,000 names take 173 KB for each member, and members may have
    calls about different nodes."""
    names = [f"node-{number:05d}.zone-a.example.org" for number in range(5000)]
    for number in range(20):
        await put_member(cluster, f"g{number}", "g", "4000")
    held = list[int]()
    tracemalloc.start()
    try:
        for number in range(20):
            raw = msgspec.Raw(msgspec.json.encode(names[number:]))
            text = Names.read(raw)
            assert text is not None
            cluster.leadership.scheduler.filter(cluster.shown(f"g{number}"), text)
            await cluster.pause(0.2)
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    gang = cluster.leadership.gangs.get(GangKey(GangDialect.LADING, "default", "g"))
    assert gang is not None
    members = [*gang.members.values()]
    for number, member in enumerate(members):
        assert sorted(cluster.leadership.gangs.calls.names(member.uid)[""]) == names[number:]
    assert held[-1] - held[9] < 10 * 20_000  # the first calls numbered the names once for all gangs
