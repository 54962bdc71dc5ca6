"""Create a cluster whose nodes' reports are kept, and return what the page would receive."""

import asyncio
from typing import Any

import msgspec

from central.controllers.informer import DevicesFeed
from central.page.live import EVERY_S, PENDING_EVERY_S, Live, PageSnapshot
from central.state.node_reports import Reports
from tests.unit.central.world import World


class Shown:
    def __init__(self) -> None:
        self.world = World()
        self.reports = Reports()
        self.world.devices_feed = DevicesFeed(self.world.ledger, self.reports)
        self.live = self.make_live()

    def make_live(self) -> Live:
        return Live(self.world.scheduler, self.reports, clock=lambda: self.world.now)

    def caught_up(self, *, after_s: float = EVERY_S + PENDING_EVERY_S) -> Live:
        self.world.now += after_s
        asyncio.run(self.live.catch_up())
        return self.live

    def whole(self) -> dict[str, Any]:
        return said(self.caught_up().whole())

    def since(self, revision: str) -> dict[str, Any]:
        return said(self.caught_up().since(revision))


def said(snapshot: PageSnapshot | None) -> dict[str, Any]:
    assert snapshot is not None
    decoded: dict[str, Any] = msgspec.json.decode(b"".join(snapshot.parts))
    assert decoded["revision"] == snapshot.revision
    return decoded


def names(answer: dict[str, Any]) -> set[str]:
    return {node["name"] for node in answer["nodes"]}
