"""Test that containers that run without their devices are stopped, one after the other."""

import asyncio
from dataclasses import dataclass, field

from hooks.node.bypass import BareStopper, Bypassed
from lading.errors import RuntimeUnavailableError
from lading.log import Event
from lading.vocabulary import ContainerId, PodUid
from tests.fakes.records import Records


@dataclass
class Runtime:
    asked: list[str] = field(default_factory=list)
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)
    fails: bool = False

    async def stop(self, container_id: str, *, grace_s: int) -> None:
        self.asked.append(container_id)
        await self.goes_on.wait()
        if self.fails:
            raise RuntimeUnavailableError("cannot call StopContainer")


def bypassed(name: str, *, running: bool = True) -> Bypassed:
    return Bypassed(id=ContainerId(name), container="main", pod=PodUid("u"), namespace="n", pod_name="p", running=running)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_bypassed_running_container_is_stopped_once_and_counted() -> None:
    runtime, records, done = Runtime(), Records(), list[str]()
    stopper = BareStopper(
        compare_soon=lambda: done.append("compared"), stop=runtime.stop, log=records.log, stopped=lambda: done.append("stopped")
    )
    for _ in range(2):
        stopper.handle([bypassed("a"), bypassed("created", running=False)])
        await settled()
    assert runtime.asked == ["a"]
    assert done == []
    runtime.goes_on.set()
    await settled()
    assert done == ["stopped", "compared"]
    assert records.seen[0][0] is Event.CONTAINER_STOPPED


async def test_a_container_that_could_not_be_stopped_is_tried_again_after_the_next_comparison() -> None:
    runtime, records, done = Runtime(fails=True), Records(), list[str]()
    runtime.goes_on.set()
    stopper = BareStopper(
        compare_soon=lambda: done.append("compared"), stop=runtime.stop, log=records.log, stopped=lambda: None
    )
    stopper.handle([bypassed("a")])
    await settled()
    runtime.fails = False
    assert (runtime.asked, done) == (["a"], [])
    stopper.handle([bypassed("a")])
    await settled()
    assert (runtime.asked, done) == (["a", "a"], ["compared"])
    assert [event for event, _ in records.seen] == [Event.CONTAINER_STOP_FAILED, Event.CONTAINER_STOPPED]
