"""Test where the members of a gang are: within one domain, in few domains, balanced, and in the order of their ranks."""

from collections import Counter
from collections.abc import Sequence

from lading.vocabulary import GANG_PREFERRED_TOPOLOGY, GANG_REQUIRED_TOPOLOGY
from tests.fakes.kube_scheduler import KubeScheduler
from tests.fakes.led import Led
from tests.unit.central.gang.members import bound, nodes_of, put_gang, put_member, reasons

RACK = "topology.kubernetes.io/rack"
PREFER = {GANG_PREFERRED_TOPOLOGY: RACK}
REQUIRE = {GANG_REQUIRED_TOPOLOGY: RACK}


async def racks(cluster: Led, **cards: Sequence[int]) -> None:
    """Create racks by name, each with the number of cards of its nodes."""
    number = 1
    for rack, sizes in cards.items():
        for size in sizes:
            await cluster.put_node(f"n{number}", size, labels={RACK: rack})
            number += 1


async def racks_of(cluster: Led, names: Sequence[str]) -> list[str]:
    labels = {
        name: cluster.server.objects[f"/api/v1/nodes/{name}"]["metadata"]["labels"][RACK] for name in nodes_of(cluster, *names)
    }
    return [labels[node] for node in nodes_of(cluster, *names)]


async def test_a_gang_gets_the_rack_that_holds_all_of_it(cluster: Led, scheduler: KubeScheduler) -> None:
    await racks(cluster, a=(8, 4), b=(8, 8))
    names = await put_gang(cluster, "g", 2, gpus=8, says=PREFER)
    await scheduler.run(2)
    assert sorted(nodes_of(cluster, *names)) == ["n3", "n4"]


async def test_a_gang_that_requires_one_rack_waits_where_none_holds_it(cluster: Led, scheduler: KubeScheduler) -> None:
    await racks(cluster, a=(8, 4), b=(8, 8))
    await put_gang(cluster, "g", 3, gpus=8, says=REQUIRE)
    await scheduler.run(3)
    assert (bound(cluster), reasons(scheduler, "g0")) == ([], {"gang-too-large"})
    assert f"within one {RACK}" in scheduler.refusals["g0"][0]


async def test_the_smallest_rack_that_holds_the_gang_is_taken(cluster: Led, scheduler: KubeScheduler) -> None:
    await racks(cluster, a=(8, 8, 8), b=(8, 8))
    names = await put_gang(cluster, "g", 2, gpus=8, says=REQUIRE)
    await scheduler.run(2)
    assert await racks_of(cluster, names) == ["b", "b"]


async def test_a_gang_larger_than_a_rack_is_spread_evenly_over_the_fewest(cluster: Led, scheduler: KubeScheduler) -> None:
    await racks(cluster, a=(5, 5), b=(5, 5), c=(2,))
    names = await put_gang(cluster, "g", 12, says=PREFER)
    await scheduler.run(3)
    assert Counter(await racks_of(cluster, names)) == {"a": 6, "b": 6}


async def test_members_of_neighbouring_ranks_share_a_rack(cluster: Led, scheduler: KubeScheduler) -> None:
    await racks(cluster, a=(2, 2), b=(2, 2))
    names = [f"g{number}" for number in range(8)]
    for rank, name in enumerate(reversed(names)):
        labels = {"batch.kubernetes.io/job-completion-index": str(rank)}
        await put_member(cluster, name, "g", "8", says=PREFER, labels=labels)
    await scheduler.run(3)
    result = await racks_of(cluster, list(reversed(names)))
    assert result in (["a"] * 4 + ["b"] * 4, ["b"] * 4 + ["a"] * 4)


async def test_a_label_that_is_not_one_of_topology_is_refused_by_name(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 4)
    await put_gang(cluster, "g", 2, says={GANG_REQUIRED_TOPOLOGY: "example.com/rack"})
    await scheduler.run(2)
    assert bound(cluster) == []
    assert "example.com/rack is no label of topology" in scheduler.refusals["g0"][0]
