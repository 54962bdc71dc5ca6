"""Test when MIG instances are created and removed on demand; the driver is a set of positions."""

import asyncio
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import pytest

from hooks.mig import instances as module
from hooks.mig.instances import MigInstances
from hooks.model.assignment import GrantedDevices, GrantedGpu, Refusal
from hooks.model.container import Adjustment, Answer, Sandbox
from hooks.model.grant import Grant
from hooks.model.inventory import Gpu, Inventory, MigInstance
from lading.devices.identity import MemorySpan, position_name
from lading.errors import HostError
from lading.log import Event, Log
from lading.reasons import Reason
from tests.fakes.compared import seen
from tests.fakes.holders import grant
from tests.fakes.records import Records
from tests.unit.hooks.inventories import gpu, inventory, uuid

CARD = uuid(0)
SANDBOX = Sandbox(id="s", uid="p", name="p")


def position(start: int) -> str:
    return position_name(CARD, "1g.10gb", start)


def holding(*starts: int) -> Grant:
    gpus = tuple(GrantedGpu(uuid=CARD, mig_uuid=position(start)) for start in starts)
    return grant(f"pod-{starts}", devices=GrantedDevices(gpus=gpus))


class Rig:
    def __init__(self, records: Records) -> None:
        self.log = Log(records)
        self.made: dict[str, str] = {}
        self.serial = 0
        self.grants: list[Grant] = []
        self.used: set[str] = set()  # instances that processes use
        self.fails: Exception | None = None
        self.during: Callable[[], object] = lambda: None
        self.calls = 0
        self.instances = self.another()

    def another(self) -> MigInstances:
        """Return what another start of lading-hooks would have."""
        return MigInstances(divide=self._divide, grants=lambda: self.grants, log=self.log)

    def _divide(self, _: Gpu, granted: Collection[str]) -> Mapping[str, str]:
        self.calls += 1
        self.during()
        if self.fails:
            raise self.fails
        problems = {name: f"{name} is in use" for name in self.made if name not in granted and name in self.used}
        self.made = {name: made for name, made in self.made.items() if name in granted or name in problems}
        for name in granted:
            if name not in self.made:
                self.serial += 1
                self.made[name] = f"MIG-{self.serial}"
        return problems

    @property
    def read(self) -> Inventory:
        """Return a reading of the card as it is now."""
        positions = (
            MigInstance(uuid=position(n), memory_mib=9856, span=MemorySpan(n, 1), made_uuid=self.made.get(position(n), ""))
            for n in range(3)
        )
        return inventory(gpus=(replace(gpu(0), mig=tuple(positions), mig_enabled=True), gpu(1)))

    def prepare(self, *starts: int) -> Adjustment | Refusal:
        self.grants.append(holding(*starts))
        answer = Answer(adjustment=Adjustment(), grant=self.grants[-1], undivided=(self.read.gpus[0],))
        assert self.instances.wants(answer)
        return asyncio.run(self.instances.prepare(SANDBOX, answer))

    def reconcile(self, read: Inventory | None = None) -> bool:
        return asyncio.run(self.instances.reconcile(seen(self.grants, read or self.read), frozenset()))

    def shown(self, read: Inventory) -> list[str]:
        return [mig.uuid for mig in self.instances.shown(read).gpus[0].mig if mig.is_made]


@pytest.fixture
def rig(records: Records) -> Rig:
    return Rig(records)


def test_what_is_granted_is_made_and_the_rest_is_removed(rig: Rig) -> None:
    assert rig.prepare(0) == Adjustment()
    assert rig.prepare(2) == Adjustment()
    assert rig.made.keys() == {position(0), position(2)}
    rig.grants.pop(0)
    assert rig.reconcile()
    assert rig.made.keys() == {position(2)}


def test_nothing_is_asked_of_the_driver_while_nothing_is_left(rig: Rig) -> None:
    rig.prepare(0)
    rig.reconcile()  # the first one looks for what a daemon that was killed left
    calls = rig.calls
    assert not rig.reconcile()
    assert not rig.instances.ending(lambda _: False, rig.grants)
    assert rig.calls == calls


def test_an_instance_that_is_about_to_be_removed_is_shown_as_not_made(rig: Rig) -> None:
    rig.prepare(0)
    rig.reconcile()
    before = rig.read
    shown: list[list[str]] = []
    rig.during = lambda: shown.append(rig.shown(before))
    rig.grants.clear()
    rig.reconcile()
    assert shown == [[]]
    assert rig.shown(before) == []  # also after it, in a reading from before
    rig.during = lambda: None
    assert rig.prepare(0) == Adjustment()
    assert rig.shown(rig.read) == [position(0)]


def test_an_instance_that_a_process_uses_stays_shown_and_is_tried_again(rig: Rig, records: Records) -> None:
    rig.prepare(0)
    rig.reconcile()
    rig.used.add(position(0))
    rig.grants.clear()
    rig.reconcile()
    assert rig.shown(rig.read) == [position(0)]
    assert rig.instances.ending(lambda _: False, rig.grants)
    rig.reconcile()
    assert records.events() == [Event.MIG_FAILED]  # once
    rig.used.clear()
    rig.reconcile()
    assert rig.made == {}


def test_one_instance_that_cannot_be_removed_is_no_obstacle_for_another(rig: Rig) -> None:
    rig.prepare(0)
    rig.used.add(position(0))
    rig.grants.clear()
    assert rig.prepare(1) == Adjustment()


def test_a_driver_that_fails_is_a_refusal_and_nothing_is_hidden(rig: Rig) -> None:
    rig.prepare(0)
    rig.grants.clear()
    rig.fails = HostError("the driver is lost")
    refusal = rig.prepare(1)
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.message) == (Reason.ISOLATION_UNAVAILABLE, "the driver is lost")
    assert rig.shown(rig.read) == [position(0)]


def test_a_driver_that_hangs_is_waited_for_a_bounded_time(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DIVIDE_S", 0.05)
    answers = threading.Event()
    rig.during = answers.wait
    refusal = rig.prepare(1)
    answers.set()
    assert isinstance(refusal, Refusal)
    assert "did not answer within 0.05 s" in refusal.message


def test_the_next_instance_of_the_daemon_removes_what_no_reading_shows(rig: Rig) -> None:
    rig.made["half an instance"] = "MIG-half"
    rig.instances = rig.another()
    assert rig.instances.ending(lambda _: False, rig.grants)
    rig.reconcile()
    assert rig.made == {}


def test_an_instance_that_was_granted_by_its_uuid_is_kept(rig: Rig) -> None:
    """Check a pod that is older than the setting by which its card is divided."""
    rig.made = {position(0): "MIG-old", position(1): "MIG-left"}
    gpus = (GrantedGpu(uuid=CARD, mig_uuid="MIG-old"),)
    rig.grants.append(grant("older", devices=GrantedDevices(gpus=gpus)))
    rig.reconcile()
    assert rig.made == {position(0): "MIG-old"}
    assert not rig.instances.ending(lambda _: False, rig.grants)


def test_cards_that_are_not_divided_are_left_alone(rig: Rig) -> None:
    rig.reconcile(inventory(gpus=(gpu(0),)))
    assert rig.calls == 0
