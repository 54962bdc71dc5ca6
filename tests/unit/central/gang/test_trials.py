"""Test Kubernetes' own scheduling by topology: kube-scheduler tries a gang in one rack after the other, and asks each time."""

from collections.abc import Mapping, Sequence

from central.api.watch import ABSENT_S
from central.controllers.gangs import PLAN_S, SCAN_S, TRIALS_S
from lading.log import Event
from lading.vocabulary import RESOURCE_GPU
from tests.fakes.led import Led, is_binding, is_touch
from tests.unit.central.gang.members import bound, claims, nodes_of

RACK = "topology.kubernetes.io/rack"
PODGROUP = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups/g"
NAMES = ["g0", "g1"]
RACKS: Mapping[str, Sequence[str]] = {"a": ["n1", "n2"], "b": ["n3", "n4"], "c": ["n5", "n6"]}
PLANNED = TRIALS_S + 3 * SCAN_S


async def begin(cluster: Led, *cards: int, members: int = 2) -> None:
    """Create racks whose nodes have so many free cards, and a gang of pods with eight cards each, all in one rack."""
    for rack, nodes in RACKS.items():
        for node in nodes:
            await cluster.put_node(node, cards[int(node[1]) - 1], labels={RACK: rack})
    spec = {"schedulingPolicy": {"gang": {"minCount": members}}, "schedulingConstraints": {"topology": [{"key": RACK}]}}
    await cluster.server.put(PODGROUP, {"metadata": {}, "spec": spec})
    await cluster.pause(ABSENT_S)
    for number in range(members):
        await cluster.put_pod(f"g{number}", {RESOURCE_GPU: "8"}, gang="g")


def trial(cluster: Led, rack: str, *without: str) -> list[str]:
    """Ask about each member with the nodes of one rack. Return where they may go."""
    names = [node for node in RACKS[rack] if node not in without]
    return [node for name in NAMES for node in cluster.filter(name, *names)]


async def try_all_racks(cluster: Led) -> None:
    for rack in RACKS:
        trial(cluster, rack)
    await cluster.pause(PLANNED)


def held(cluster: Led) -> object:
    return (
        cluster.leadership.ledger.version,
        cluster.leadership.ledger.snapshot().own,
        [cluster.leadership.pending.get_refused(cluster.uid(n)) for n in NAMES],
    )


def plans(cluster: Led) -> int:
    return cluster.records.count(Event.GANG_PLANNED)


async def test_of_three_racks_the_planned_one_alone_fits_and_calls_about_the_others_change_nothing(cluster: Led) -> None:
    await begin(cluster, 8, 4, 8, 8, 4, 8)
    assert [trial(cluster, rack) for rack in RACKS] == [[], [], []]
    await cluster.pause(PLANNED)
    assert (claims(cluster), plans(cluster)) == (2, 1)
    for order in ("abc", "bca", "cab"):
        for rack in order:
            before = held(cluster)
            places = trial(cluster, rack)
            assert sorted(places) == (["n3", "n4"] if rack == "b" else [])
            assert rack == "b" or held(cluster) == before
            await cluster.pause(SCAN_S)
    assert (claims(cluster), plans(cluster)) == (2, 1)
    places = trial(cluster, "b")
    trial(cluster, "c")
    assert [await cluster.bind(name, place) for name, place in list(zip(NAMES, places, strict=True))[:1]] != [""]
    assert not any(map(is_binding, cluster.server.requests))
    assert await cluster.bind("g1", places[1]) == ""
    assert await cluster.bind("g0", places[0]) == ""
    assert nodes_of(cluster, *NAMES) == places


async def test_a_rack_is_chosen_after_all_racks_were_tried(cluster: Led) -> None:
    """Check that the smallest rack with enough cards is chosen, although the first one would do: large racks stay whole."""
    await begin(cluster, 16, 16, 4, 4, 8, 8)
    for rack in RACKS:
        trial(cluster, rack)
        await cluster.pause(TRIALS_S / 2)
        assert claims(cluster) == 0
    await cluster.pause(PLANNED)
    assert [sorted(trial(cluster, rack)) for rack in RACKS] == [[], [], ["n5", "n6"]]


async def test_a_planned_node_that_is_missing_when_its_rack_is_tried_ends_the_plan(cluster: Led) -> None:
    await begin(cluster, 8, 4, 8, 8, 8, 8)
    await try_all_racks(cluster)
    assert sorted(trial(cluster, "b")) == ["n3", "n4"]
    trial(cluster, "b", "n4")  # tainted since
    trial(cluster, "b", "n4")
    assert claims(cluster) == 0
    await cluster.pause(PLANNED)
    assert [sorted(trial(cluster, rack)) for rack in "ac"] == [[], ["n5", "n6"]]
    assert bound(cluster) == []


async def test_a_rack_that_kube_scheduler_does_not_try_any_more_is_not_planned_again(cluster: Led) -> None:
    await begin(cluster, 8, 4, 8, 8, 16, 16)
    await try_all_racks(cluster)
    touched = sum(map(is_touch, cluster.server.requests))
    for _ in range(int(PLAN_S / 5)):
        assert trial(cluster, "a") + trial(cluster, "c") == []
        await cluster.pause(5)
    await cluster.pause(PLANNED)
    trial(cluster, "c")
    await cluster.pause(PLANNED)
    assert trial(cluster, "c") == ["n5", "n5"]
    assert sum(map(is_touch, cluster.server.requests)) > touched


async def test_a_gang_that_is_too_large_for_each_rack_holds_nothing(cluster: Led) -> None:
    await begin(cluster, 8, 4, 8, 4, 8, 4)
    for _ in range(3):
        assert [trial(cluster, rack) for rack in RACKS] == [[], [], []]
        await cluster.pause(PLANNED)
        assert (claims(cluster), plans(cluster)) == (0, 0)
    assert cluster.leadership.gangs.of(cluster.uid("g0"))[0].search.reason.value == "gang-too-large"  # type: ignore[index]
