"""Test on which rails the members of a gang are: equal ones, unless that takes more nodes or more distant VFs."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from central.gang import rails as searched
from central.ledger.overlay import rails_of
from lading.vocabulary import GANG_PREFERRED_TOPOLOGY, RESOURCE_GPU, RESOURCE_RDMA
from tests.fakes.capacities import CARD_MIB, MODEL
from tests.fakes.kube_objects import Json, devices_path, gpu_uuid, node, node_path
from tests.fakes.kube_scheduler import KubeScheduler
from tests.fakes.led import Led, play
from tests.unit.central.gang.stories import bound, nodes_of, put_gang, put_member

RACK = "topology.kubernetes.io/rack"
FOUR = {RESOURCE_GPU: "4", RESOURCE_RDMA: "4"}
LOW, HIGH = {0, 1, 2, 3}, {4, 5, 6, 7}

Rail = Callable[[int], int | None]


def in_order(nic: int) -> int:
    return nic


def unknown(nic: int) -> None:
    return None


def place(number: int, sockets: int) -> Json:
    """Return a place with a switch for each card and its NIC."""
    socket = number * sockets // 8
    return {"path": [f"pci0000:{number:02x}", f"0000:{number:02x}:01.0"], "numa": socket, "socket": socket}


async def put_node(one: Led, name: str, *, rail: Rail = in_order, vfs: int = 1, rack: str = "", sockets: int = 2) -> None:
    """Create a node with 8 cards and 8 NICs of so many VFs each."""
    kind = {"model": MODEL, "memoryMiB": CARD_MIB}
    cards = [
        {"uuid": gpu_uuid(name, n), "bdf": f"0000:{0x10 + n:02x}:00.0", "place": place(n, sockets), **kind} for n in range(8)
    ]
    pfs: list[Json] = []
    for nic in range(8):
        bus = f"0000:{0x60 + nic:02x}"
        functions = [{"bdf": f"{bus}:00.{vf + 1}"} for vf in range(vfs)]
        known = {} if rail(nic) is None else {"rail": rail(nic)}
        pfs.append({"bdf": f"{bus}:00.0", "place": place(nic, sockets), "vfs": functions, **known})
    await one.server.put(node_path(name), node(name, labels={RACK: rack} if rack else None))
    report = {"metadata": {"name": name}, "status": {"reconciled": True, "gpus": cards, "pfs": pfs}}
    await one.server.put(devices_path(name), report)
    await one.pause()


async def take(one: Led, scheduler: KubeScheduler, name: str, node: str, limits: Mapping[str, str] = FOUR) -> None:
    """Have another pod take the node's first devices."""
    await one.put_pod(name, limits)
    assert one.filter(name, node) == [node]
    await one.bind(name, node)
    await one.pause()


def rails(one: Led, *names: str) -> list[set[int]]:
    result = []
    for name in names:
        record = one.leadership.ledger.pod(one.uid(name))
        assert record is not None
        assert record.taken is not None
        result.append({*rails_of(one.leadership.ledger.capacity(record.node), record.taken.vfs)})
    return result


def beside(one: Led, name: str) -> bool:
    """Return whether each card of the pod has a VF of its own switch."""
    record = one.leadership.ledger.pod(one.uid(name))
    assert record is not None
    assert record.taken is not None
    capacity = one.leadership.ledger.capacity(record.node)
    cards = {card.gpu.place.path for card in capacity.cards if card.gpu.uuid in record.taken.gpus}
    return cards == {vf.pf.place.path for vf in capacity.vfs if vf.vf.bdf in record.taken.vfs}


def test_members_are_on_the_rails_that_are_free_on_all_of_their_nodes(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        scheduler = KubeScheduler(one)
        for name in ("n3", "n4"):
            await put_node(one, name)
        await take(one, scheduler, "other", "n3")
        assert rails(one, "other") == [LOW]
        names = await put_gang(one, "g", 2, limits=FOUR)
        await scheduler.run(2)
        assert sorted(nodes_of(one, *names)) == ["n3", "n4"]
        assert rails(one, *names) == [HIGH, HIGH]
        assert all(beside(one, name) for name in names)
        await scheduler.end()

    play(story, tmp_path)


def test_nodes_with_the_common_rails_go_before_fuller_ones_without(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        scheduler = KubeScheduler(one)
        for name in ("n1", "n2", "n3", "n4"):
            await put_node(one, name)
        await take(one, scheduler, "a", "n1")  # n1 has the high rails left, and n2 the low ones
        await take(one, scheduler, "b", "n2")
        await take(one, scheduler, "c", "n2")
        await one.remove_pod("b")
        names = await put_gang(one, "g", 2, limits=FOUR)
        await scheduler.run(2)
        first, second = rails(one, *names)
        assert first == second
        assert "n1" in nodes_of(one, *names) or "n2" in nodes_of(one, *names)
        await scheduler.end()

    play(story, tmp_path)


def test_where_all_rails_are_free_all_members_have_the_same(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        scheduler = KubeScheduler(one)
        for number in range(3):
            await put_node(one, f"n{number}")
        five = {RESOURCE_GPU: "5", RESOURCE_RDMA: "5"}
        names = await put_gang(one, "g", 3, limits=five)
        await scheduler.run(2)
        assert len({*nodes_of(one, *names)}) == 3
        assert rails(one, *names) == [{0, 1, 2, 3, 4}] * 3
        await scheduler.end()

    play(story, tmp_path)


def test_common_rails_are_not_worth_another_node(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        scheduler = KubeScheduler(one)
        for number in range(4):
            await put_node(one, f"n{number}")
        names = await put_gang(one, "g", 4, limits=FOUR)
        await scheduler.run(2)
        assert len({*nodes_of(one, *names)}) == 2
        assert sorted(map(sorted, rails(one, *names))) == [[*LOW], [*LOW], [*HIGH], [*HIGH]]
        await scheduler.end()

    play(story, tmp_path)


def test_common_rails_are_not_worth_a_vf_farther_from_its_card(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        scheduler = KubeScheduler(one)
        await put_node(one, "n1", vfs=2)
        names = await put_gang(one, "g", 2, limits=FOUR)
        await scheduler.run(2)
        assert sorted(map(sorted, rails(one, *names))) == [[*LOW], [*HIGH]]
        assert all(beside(one, name) for name in names)
        await scheduler.end()

    play(story, tmp_path)


def test_a_gang_without_common_rails_is_placed_all_the_same(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        scheduler = KubeScheduler(one)
        for name in ("n1", "n2"):
            await put_node(one, name)
        await take(one, scheduler, "a", "n1")
        await take(one, scheduler, "b", "n2")
        await take(one, scheduler, "c", "n2")
        await one.remove_pod("b")
        names = await put_gang(one, "g", 2, limits=FOUR)
        await scheduler.run(2)
        assert sorted(map(sorted, rails(one, *names))) == [[*LOW], [*HIGH]]
        await scheduler.end()

    play(story, tmp_path)


def test_members_without_common_rails_have_as_few_different_ones_as_their_nodes_allow(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        scheduler = KubeScheduler(one)
        for name in ("n1", "n2", "n3"):
            await put_node(one, name, sockets=1)
        two = {RESOURCE_GPU: "2", RESOURCE_RDMA: "2"}
        await take(one, scheduler, "a", "n1")
        await take(one, scheduler, "b", "n2")
        await take(one, scheduler, "c", "n2")
        await one.remove_pod("b")
        await take(one, scheduler, "d", "n3", two)  # rails 0 and 1
        names = await put_gang(one, "g", 3, limits=FOUR)
        await scheduler.run(2)
        assert len({*nodes_of(one, *names)}) == 3
        assert sorted(map(sorted, rails(one, *names))) == [[*LOW], [*HIGH], [*HIGH]]  # not 2 to 5 on n3
        await scheduler.end()

    play(story, tmp_path)


@pytest.mark.parametrize("known", [(), ("n3",), ("n4",)])
def test_nodes_that_do_not_know_their_rails_are_as_good_as_others(tmp_path: Path, known: Sequence[str]) -> None:
    async def story(one: Led) -> None:
        scheduler = KubeScheduler(one)
        for name in ("n3", "n4"):
            await put_node(one, name, rail=in_order if name in known else unknown)
        await take(one, scheduler, "other", "n3")
        names = await put_gang(one, "g", 2, limits=FOUR)
        await scheduler.run(2)
        assert sorted(nodes_of(one, *names)) == ["n3", "n4"]
        assert all(beside(one, name) for name in names)
        await scheduler.end()

    play(story, tmp_path)


def test_rails_count_by_their_numbers_and_not_by_the_order_of_nics(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        scheduler = KubeScheduler(one)
        await put_node(one, "n3")
        await put_node(one, "n4", rail=lambda nic: 7 - nic)
        await take(one, scheduler, "other", "n3")
        names = await put_gang(one, "g", 2, limits=FOUR)
        await scheduler.run(2)
        assert sorted(nodes_of(one, *names)) == ["n3", "n4"]
        assert rails(one, *names) == [HIGH, HIGH]
        assert all(beside(one, name) for name in names)
        await scheduler.end()

    play(story, tmp_path)


def test_a_rack_that_holds_the_gang_goes_before_common_rails(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        scheduler = KubeScheduler(one)
        for name, rack in (("n1", "a"), ("n2", "a"), ("n3", "b")):
            await put_node(one, name, rack=rack)
        await take(one, scheduler, "a", "n1")
        await take(one, scheduler, "b", "n2")
        await take(one, scheduler, "c", "n2")
        await one.remove_pod("b")  # rack a has the high rails on n1 and the low ones on n2
        await take(one, scheduler, "d", "n3")
        names = await put_gang(one, "g", 2, limits=FOUR, says={GANG_PREFERRED_TOPOLOGY: RACK})
        await scheduler.run(2)
        assert sorted(nodes_of(one, *names)) == ["n1", "n2"]
        await scheduler.end()

    play(story, tmp_path)


def test_of_two_racks_that_hold_the_gang_the_one_with_common_rails_is_taken(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        scheduler = KubeScheduler(one)
        for name, rack in (("n1", "a"), ("n2", "a"), ("n3", "b"), ("n4", "b")):
            await put_node(one, name, rack=rack)
        await take(one, scheduler, "a", "n1")
        await take(one, scheduler, "b", "n2")
        await take(one, scheduler, "c", "n2")
        await one.remove_pod("b")
        await take(one, scheduler, "d", "n3")  # rack b has more left, and would come second
        names = await put_gang(one, "g", 2, limits=FOUR, says={GANG_PREFERRED_TOPOLOGY: RACK})
        await scheduler.run(2)
        assert sorted(nodes_of(one, *names)) == ["n3", "n4"]
        assert rails(one, *names) == [HIGH, HIGH]
        await scheduler.end()

    play(story, tmp_path)


def test_a_member_with_fewer_vfs_has_its_rails_among_those_of_the_others(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        scheduler = KubeScheduler(one)
        for name in ("n3", "n4"):
            await put_node(one, name)
        await take(one, scheduler, "other", "n3")
        await put_member(one, "ps", "g", "2", limits={RESOURCE_GPU: "3", RESOURCE_RDMA: "3"})
        await put_member(one, "worker", "g", "2", limits=FOUR, age=1)
        await scheduler.run(2)
        assert rails(one, "ps", "worker") == [{4, 5, 6}, HIGH]
        await scheduler.end()

    play(story, tmp_path)


def test_members_beyond_the_minimum_and_later_ones_are_on_the_rails_of_those_that_run(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        scheduler = KubeScheduler(one)
        for name in ("n3", "n4"):
            await put_node(one, name)
        await take(one, scheduler, "other", "n3")
        names = await put_gang(one, "g", 2, limits=FOUR)
        await scheduler.run(2)
        assert rails(one, *names) == [HIGH, HIGH]
        await put_node(one, "n5")
        await one.put_pod("alone", FOUR)
        assert one.filter("alone", "n5") == ["n5"]
        await one.bind("alone", "n5")
        await one.pause()
        assert rails(one, "alone") == [LOW]
        await one.remove_pod("alone")
        await one.remove_pod("g1")
        await put_member(one, "later", "g", "2", limits=FOUR)
        assert one.filter("later", "n5") == ["n5"]
        await one.bind("later", "n5")
        await one.pause()
        assert rails(one, "later") == [HIGH]
        await scheduler.end()

    play(story, tmp_path)


def test_a_gang_whose_tries_are_used_up_keeps_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searched, "MOST_STEPS", 1)

    async def story(one: Led) -> None:
        scheduler = KubeScheduler(one)
        for name in ("n3", "n4"):
            await put_node(one, name)
        await take(one, scheduler, "other", "n3")
        names = await put_gang(one, "g", 2, limits=FOUR)
        await scheduler.run(2)
        assert sorted(bound(one)) == ["g0", "g1", "other"]
        assert sorted(nodes_of(one, *names)) == ["n3", "n4"]
        await scheduler.end()

    play(story, tmp_path)
