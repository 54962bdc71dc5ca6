"""Test where the members of a gang are: within one domain, in few domains, balanced, and in the order of their ranks."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from lading.vocabulary import GANG_PREFERRED_TOPOLOGY, GANG_REQUIRED_TOPOLOGY
from tests.fakes.kube_scheduler import KubeScheduler
from tests.fakes.led import Led, play
from tests.unit.central.gang.stories import bound, nodes_of, put_gang, put_member, reasons

RACK = "topology.kubernetes.io/rack"
PREFER = {GANG_PREFERRED_TOPOLOGY: RACK}
REQUIRE = {GANG_REQUIRED_TOPOLOGY: RACK}


async def racks(one: Led, **cards: Sequence[int]) -> None:
    """Create racks by name, each with the number of cards of its nodes."""
    number = 1
    for rack, sizes in cards.items():
        for size in sizes:
            await one.put_node(f"n{number}", size, labels={RACK: rack})
            number += 1


async def racks_of(one: Led, names: Sequence[str]) -> list[str]:
    labels = {name: one.server.objects[f"/api/v1/nodes/{name}"]["metadata"]["labels"][RACK] for name in nodes_of(one, *names)}
    return [labels[node] for node in nodes_of(one, *names)]


def test_a_gang_gets_the_rack_that_holds_all_of_it(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await racks(one, a=(8, 4), b=(8, 8))
        scheduler = KubeScheduler(one)
        names = await put_gang(one, "g", 2, gpus=8, says=PREFER)
        await scheduler.run(2)
        assert sorted(nodes_of(one, *names)) == ["n3", "n4"]
        await scheduler.end()

    play(story, tmp_path)


def test_a_gang_that_requires_one_rack_waits_where_none_holds_it(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await racks(one, a=(8, 4), b=(8, 8))
        scheduler = KubeScheduler(one)
        await put_gang(one, "g", 3, gpus=8, says=REQUIRE)
        await scheduler.run(3)
        assert (bound(one), reasons(scheduler, "g0")) == ([], {"gang-too-large"})
        assert f"within one {RACK}" in scheduler.refusals["g0"][0]
        await scheduler.end()

    play(story, tmp_path)


def test_the_smallest_rack_that_holds_the_gang_is_taken(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await racks(one, a=(8, 8, 8), b=(8, 8))
        scheduler = KubeScheduler(one)
        names = await put_gang(one, "g", 2, gpus=8, says=REQUIRE)
        await scheduler.run(2)
        assert await racks_of(one, names) == ["b", "b"]
        await scheduler.end()

    play(story, tmp_path)


def test_a_gang_larger_than_a_rack_is_spread_evenly_over_the_fewest(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await racks(one, a=(5, 5), b=(5, 5), c=(2,))
        scheduler = KubeScheduler(one)
        names = await put_gang(one, "g", 12, says=PREFER)
        await scheduler.run(3)
        assert Counter(await racks_of(one, names)) == {"a": 6, "b": 6}
        await scheduler.end()

    play(story, tmp_path)


def test_members_of_neighbouring_ranks_share_a_rack(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await racks(one, a=(2, 2), b=(2, 2))
        scheduler = KubeScheduler(one)
        names = [f"g{number}" for number in range(8)]
        for rank, name in enumerate(reversed(names)):
            labels = {"batch.kubernetes.io/job-completion-index": str(rank)}
            await put_member(one, name, "g", "8", says=PREFER, labels=labels)
        await scheduler.run(3)
        result = await racks_of(one, list(reversed(names)))
        assert result in (["a"] * 4 + ["b"] * 4, ["b"] * 4 + ["a"] * 4)
        await scheduler.end()

    play(story, tmp_path)


def test_a_label_that_is_not_one_of_topology_is_refused_by_name(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 4)
        scheduler = KubeScheduler(one)
        await put_gang(one, "g", 2, says={GANG_REQUIRED_TOPOLOGY: "example.com/rack"})
        await scheduler.run(2)
        assert bound(one) == []
        assert "example.com/rack is no label of topology" in scheduler.refusals["g0"][0]
        await scheduler.end()

    play(story, tmp_path)
