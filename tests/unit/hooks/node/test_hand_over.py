"""Test cards without a holder: what they wait for, since when they are dirty, and what is restored."""

import asyncio
import threading
from collections.abc import Collection, Sequence

import pytest

from hooks.node import hand_over
from hooks.node.hand_over import LASTS_S, HandOver
from lading.errors import HostError
from lading.log import Event, Log
from lading.vocabulary import GpuUuid
from tests.fakes.records import Records
from tests.unit.hooks.inventories import uuid

CARD, OTHER = uuid(0), uuid(1)


class World:
    def __init__(self, log: Log) -> None:
        self.now = 100.0
        self.reads = 0
        self.restored: list[frozenset[GpuUuid]] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.problems: Sequence[str] = ()
        self.hand_over = HandOver(log=log, read_soon=self.read_soon, clock=lambda: self.now)

    def read_soon(self) -> None:
        self.reads += 1

    def restore(self, cards: Collection[GpuUuid]) -> Sequence[str]:
        self.go_on.wait(10.0)
        self.restored.append(frozenset(cards))
        return self.problems

    def fails(self, _: Collection[GpuUuid]) -> Sequence[str]:
        raise HostError("no session")

    async def until_restored(self) -> None:
        await asyncio.gather(*self.hand_over._restoring.values())


@pytest.fixture
def world(log: Log) -> World:
    return World(log)


async def test_a_card_waits_for_a_reading_that_began_after_its_last_holder_was_deleted(world: World) -> None:
    world.hand_over.left([CARD])
    assert (set(world.hand_over.waits()), world.reads) == ({CARD}, 1)
    world.hand_over.read(99.0, {CARD: "", OTHER: ""}, 7)  # a reading that was under way
    assert set(world.hand_over.waits()) == {CARD}
    world.hand_over.read(101.0, {CARD: "", OTHER: ""}, 8)
    assert not world.hand_over.waits()


async def test_a_card_is_dirty_since_its_first_dirty_reading(world: World) -> None:
    for at, text in ((7, "a"), (8, "b"), (9, ""), (10, "c")):
        world.hand_over.read(1.0, {CARD: text, OTHER: ""}, at)
        assert world.hand_over.since == ({} if not text else {CARD: 7 if at < 9 else 10})
    world.hand_over.read(1.0, {OTHER: ""}, 11)  # it has a holder now, or is gone
    assert world.hand_over.since == {}


async def test_a_card_that_stays_dirty_is_logged_once_and_when_it_is_clean(records: Records, world: World) -> None:
    for _ in range(5):
        world.hand_over.read(1.0, {CARD: "its memory is in use", OTHER: ""}, 7)
        world.now += LASTS_S / 2
    world.hand_over.read(1.0, {CARD: "", OTHER: "for a moment"}, 8)
    world.hand_over.read(1.0, {CARD: "", OTHER: ""}, 9)
    assert [fields["device"] for fields in records.fields(Event.DEVICE_DIRTY)] == [CARD]
    assert [fields["device"] for fields in records.fields(Event.DEVICE_CLEAN)] == [CARD]


async def test_a_card_waits_until_it_is_restored_and_others_do_not(world: World) -> None:
    world.hand_over.restore = world.restore
    world.go_on.clear()
    world.hand_over.left([CARD])
    world.hand_over.read(101.0, {CARD: "", OTHER: ""}, 7)
    assert set(world.hand_over.waits()) == {CARD}
    world.go_on.set()
    await world.until_restored()
    assert world.restored == [frozenset({CARD})]
    assert not world.hand_over.waits()


@pytest.mark.parametrize("raises", [False, True])
async def test_a_failed_restore_is_logged_and_the_card_is_free(records: Records, raises: bool, world: World) -> None:
    world.problems = ("cannot set the power limit",)
    world.hand_over.restore = world.fails if raises else world.restore
    world.hand_over.left([CARD])
    await world.until_restored()
    world.hand_over.read(101.0, {CARD: ""}, 7)
    assert not world.hand_over.waits()
    assert records.events().count(Event.DEVICE_NOT_RESTORED) == 1


async def test_a_card_waits_for_the_operators_command_and_a_reading_after_it(
    monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    monkeypatch.setattr(hand_over, "AGAIN_S", 0.0)
    outcomes: list[str] = ["exit 3: busy", ""]
    ran: list[GpuUuid] = []

    async def command(card: GpuUuid) -> None:
        ran.append(card)
        observed.append(world.hand_over.waits()[card])
        if problem := outcomes.pop(0):
            raise HostError(problem)

    observed: list[str] = []
    world.hand_over.command = command
    world.hand_over.left([CARD])
    world.now = 101.0
    world.hand_over.read(100.5, {CARD: ""}, 7)
    await world.until_restored()
    assert ran == [CARD, CARD]
    assert "being handed over" in observed[0]
    assert "the hand-over command fails: exit 3: busy" in observed[1]
    assert world.hand_over.waits() == {CARD: "it has not been read since its last holder was gone"}
    world.hand_over.read(101.5, {CARD: ""}, 8)
    assert world.hand_over.waits() == {}


async def test_a_card_whose_command_fails_shows_the_error_and_is_handed_over_later(
    records: Records, monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    monkeypatch.setattr(hand_over, "AGAIN_S", 0.0)
    waits: list[str] = []

    async def command(card: GpuUuid) -> None:
        waits.append(world.hand_over.waits()[card])
        if len(waits) == 1:
            raise RuntimeError(card)

    world.hand_over.command = command
    world.hand_over.left([CARD])
    await world.until_restored()
    world.now = 101.0
    world.hand_over.read(101.0, {CARD: ""}, 7)
    assert not world.hand_over.waits()
    assert "internal error" in waits[1]
    assert records.events().count(Event.DEVICE_NOT_RESTORED) == 1
