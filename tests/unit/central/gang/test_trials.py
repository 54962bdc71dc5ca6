"""Test Kubernetes' own scheduling by topology: kube-scheduler tries a gang in one rack after the other, and asks each time."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from central.api.watch import ABSENT_S
from central.controllers.gangs import PLAN_S, SCAN_S, TRIALS_S
from lading.log import Event
from lading.vocabulary import RESOURCE_GPU
from tests.fakes.led import Led, is_binding, is_touch, play
from tests.unit.central.gang.stories import bound, claims, nodes_of

RACK = "topology.kubernetes.io/rack"
PODGROUP = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups/g"
NAMES = ["g0", "g1"]
RACKS: Mapping[str, Sequence[str]] = {"a": ["n1", "n2"], "b": ["n3", "n4"], "c": ["n5", "n6"]}
PLANNED = TRIALS_S + 3 * SCAN_S


async def begin(one: Led, *cards: int, members: int = 2) -> None:
    """Create racks whose nodes have so many free cards, and a gang of pods with eight cards each, all in one rack."""
    for rack, nodes in RACKS.items():
        for node in nodes:
            await one.put_node(node, cards[int(node[1]) - 1], labels={RACK: rack})
    spec = {
        "schedulingPolicy": {"gang": {"minCount": members}},
        "schedulingConstraints": {"topology": [{"key": RACK}]},
    }
    await one.server.put(PODGROUP, {"metadata": {}, "spec": spec})
    await one.pause(ABSENT_S)
    for number in range(members):
        await one.put_pod(f"g{number}", {RESOURCE_GPU: "8"}, gang="g")


def trial(one: Led, rack: str, *without: str) -> list[str]:
    """Ask about each member with the nodes of one rack. Return where they may go."""
    names = [node for node in RACKS[rack] if node not in without]
    return [node for name in NAMES for node in one.filter(name, *names)]


def held(one: Led) -> object:
    return (
        one.leadership.ledger.version,
        one.leadership.ledger.snapshot().own,
        [one.leadership.pending.get_refused(one.uid(n)) for n in NAMES],
    )


def plans(one: Led) -> int:
    return one.records.count(Event.GANG_PLANNED)


def test_of_three_racks_only_the_planned_one_has_a_yes_and_the_others_change_nothing(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await begin(one, 8, 4, 8, 8, 4, 8)
        assert [trial(one, rack) for rack in RACKS] == [[], [], []]
        await one.pause(PLANNED)
        assert (claims(one), plans(one)) == (2, 1)
        for order in ("abc", "bca", "cab"):
            for rack in order:
                before = held(one)
                places = trial(one, rack)
                assert sorted(places) == (["n3", "n4"] if rack == "b" else [])
                assert rack == "b" or held(one) == before
                await one.pause(SCAN_S)
        assert (claims(one), plans(one)) == (2, 1)
        places = trial(one, "b")
        trial(one, "c")
        assert [await one.bind(name, place) for name, place in list(zip(NAMES, places, strict=True))[:1]] != [""]
        assert not any(map(is_binding, one.server.requests))
        assert await one.bind("g1", places[1]) == ""
        assert await one.bind("g0", places[0]) == ""
        assert nodes_of(one, *NAMES) == places

    play(story, tmp_path)


def test_all_racks_are_known_before_one_is_chosen(tmp_path: Path) -> None:
    """Check that the smallest rack with enough cards is chosen, although the first one would do: large racks stay whole."""

    async def story(one: Led) -> None:
        await begin(one, 16, 16, 4, 4, 8, 8)
        for rack in RACKS:
            trial(one, rack)
            await one.pause(TRIALS_S / 2)
            assert claims(one) == 0
        await one.pause(PLANNED)
        assert [sorted(trial(one, rack)) for rack in RACKS] == [[], [], ["n5", "n6"]]

    play(story, tmp_path)


def test_a_node_that_is_missing_in_the_trial_of_its_own_rack_ends_the_plan(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await begin(one, 8, 4, 8, 8, 8, 8)
        for rack in RACKS:
            trial(one, rack)
        await one.pause(PLANNED)
        assert sorted(trial(one, "b")) == ["n3", "n4"]
        trial(one, "b", "n4")  # tainted since
        trial(one, "b", "n4")
        assert claims(one) == 0
        await one.pause(PLANNED)
        assert [sorted(trial(one, rack)) for rack in "ac"] == [[], ["n5", "n6"]]
        assert bound(one) == []

    play(story, tmp_path)


def test_a_rack_that_is_not_tried_any_more_is_not_planned_again(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await begin(one, 8, 4, 8, 8, 16, 16)
        for rack in RACKS:
            trial(one, rack)
        await one.pause(PLANNED)
        touched = sum(map(is_touch, one.server.requests))
        for _ in range(int(PLAN_S / 5)):
            assert trial(one, "a") + trial(one, "c") == []
            await one.pause(5)
        await one.pause(PLANNED)
        trial(one, "c")
        await one.pause(PLANNED)
        assert trial(one, "c") == ["n5", "n5"]
        assert sum(map(is_touch, one.server.requests)) > touched

    play(story, tmp_path)


def test_a_gang_that_no_rack_holds_has_nothing_and_is_reported(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await begin(one, 8, 4, 8, 4, 8, 4)
        for _ in range(3):
            assert [trial(one, rack) for rack in RACKS] == [[], [], []]
            await one.pause(PLANNED)
            assert (claims(one), plans(one)) == (0, 0)
        assert one.leadership.gangs.of(one.uid("g0"))[0].search.reason.value == "gang-too-large"  # type: ignore[index]

    play(story, tmp_path)
