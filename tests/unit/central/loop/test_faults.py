"""Test an exception about one object: it is logged and counted, and the object is set aside for a growing time."""

import asyncio
from collections import Counter

import pytest

from central.loop import faults as module
from central.loop.faults import FIRST_S, LONGEST_S, QUIET_S, Faults, Work
from lading.log import Event
from tests.fakes.records import Records


class Rig:
    def __init__(self) -> None:
        self.now = 0.0
        self.records = Records()
        self.faults = Faults(clock=lambda: self.now, log=self.records.log)

    def fail(self, name: str) -> None:
        with self.faults.handling(Work.GANGS, name):
            raise ZeroDivisionError(name)

    def aside(self, name: str) -> bool:
        return self.faults.sets_aside(Work.GANGS, name)

    def logged(self) -> list[dict[str, str]]:
        return [fields for event, fields in self.records.seen if event is Event.HANDLING_FAILED]


def test_an_object_is_set_aside_for_twice_as_long_each_time() -> None:
    one = Rig()
    pauses = []
    for _ in range(9):
        one.fail("default/a")
        began = one.now
        while one.aside("default/a"):
            one.now += FIRST_S
        pauses.append(one.now - began)
    assert pauses == [1, 2, 4, 8, 16, 32, *[LONGEST_S] * 3]


def test_others_and_other_work_go_on() -> None:
    one = Rig()
    one.fail("default/a")
    assert (one.aside("default/a"), one.aside("default/b")) == (True, False)
    assert not one.faults.sets_aside(Work.PATIENCE, "default/a")
    assert (one.faults.counts, one.faults.set_aside()) == (Counter({Work.GANGS: 1}), Counter({Work.GANGS: 1}))


def test_success_ends_it() -> None:
    one = Rig()
    for _ in range(5):
        one.fail("default/a")
    one.now += 100
    with one.faults.handling(Work.GANGS, "default/a"):
        pass
    one.fail("default/a")
    one.now += FIRST_S
    assert not one.aside("default/a")


def test_the_log_names_the_object_and_has_the_traceback() -> None:
    one = Rig()
    one.fail("default/a")
    (record,) = one.logged()
    assert (record["object"], record["work"]) == ("default/a", "gangs")
    assert "ZeroDivisionError: default/a" in record["traceback"]
    assert "in fail" in record["traceback"]


def test_many_objects_with_one_error_do_not_fill_the_log() -> None:
    one = Rig()
    for number in range(1000):
        one.fail(f"default/{number}")
    assert len(one.logged()) == 1
    one.now += QUIET_S
    one.fail("default/a")
    assert one.logged()[-1]["unlogged"] == "999"


def test_no_more_objects_are_remembered_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 10)
    one = Rig()
    for number in range(100):
        one.fail(f"default/{number}")
    assert one.faults.set_aside().total() == 10
    assert one.aside("default/99")


async def test_a_task_that_fails_begins_again_after_a_growing_pause() -> None:
    clock = asyncio.get_running_loop().time
    faults = Faults(clock=clock, log=Records().log)
    began: list[float] = []

    async def run() -> None:
        began.append(clock())
        if len(began) < 4:
            raise ZeroDivisionError

    await faults.keep(Work.EVENTS, run)
    assert began == [0, 1, 3, 7]


async def test_a_cancelled_task_ends() -> None:
    faults = Faults(clock=asyncio.get_running_loop().time, log=Records().log)
    task = asyncio.create_task(faults.keep(Work.EVENTS, lambda: asyncio.sleep(1000)))
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert not faults.counts
