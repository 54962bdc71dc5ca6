"""Test the taint of a node step by step, with an API server of one Node and scripted failures."""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hooks.report.reporter import RENEW_S, SCAN_S
from hooks.report.taint import PATIENCE_S, Tainter, change
from lading.kube.errors import ConflictError, UnreachableError
from lading.log import Event
from tests.fakes.records import Records

OURS = {"key": "lading.dev/not-ready", "effect": "NoSchedule"}
OTHER = {"key": "nvidia.com/gpu", "effect": "NoSchedule", "value": "true"}
DOWN = UnreachableError("cannot get: connection refused")


class Kube:
    def __init__(self, *taints: dict[str, Any]) -> None:
        self.taints = list(taints)
        self.version = 1
        self.failures: deque[Exception] = deque()  # errors of the next writes
        self.reads = self.writes = 0
        self.down = False

    async def get(self, path: str) -> bytes:
        assert path == "/api/v1/nodes/n1"
        if self.down:
            raise DOWN
        self.reads += 1
        spec = {"taints": self.taints} if self.taints else {}
        return msgspec.json.encode({"metadata": {"name": "n1", "resourceVersion": str(self.version)}, "spec": spec})

    async def merge(self, path: str, change: object) -> bytes:
        assert path == "/api/v1/nodes/n1"
        if self.failures:
            self.version += 1
            raise self.failures.popleft()
        sent = msgspec.json.decode(msgspec.json.encode(change))
        assert sent.keys() == {"metadata", "spec"}
        assert sent["metadata"] == {"resourceVersion": str(self.version)}
        self.taints, self.version, self.writes = sent["spec"]["taints"], self.version + 1, self.writes + 1
        return b"{}"


class World:
    """Hold a node that was ready since its boot."""

    def __init__(self, *taints: dict[str, Any], mark: Path) -> None:
        mark.parent.mkdir(exist_ok=True)
        mark.touch()
        self.mark = mark
        self.kube = Kube(*taints)
        self.problem = ""
        self.now = 0.0
        self.records = Records()
        self.tainter = Tainter(
            lambda: self.problem,
            node_name="n1",
            mark=mark,
            connect=self._connect,
            log=self.records.log,
            clock=lambda: self.now,
            chance=lambda: 0.5,
        )

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Kube]:
        yield self.kube

    async def scan(self) -> float:
        return await self.tainter.scan(self.kube)

    async def breaks(self, problem: str) -> None:
        """Let the problem last."""
        self.problem = problem
        await self.scan()
        self.now += PATIENCE_S
        await self.scan()


async def test_the_taint_goes_when_the_node_is_ready_and_comes_back_when_it_is_not(tmp_path: Path) -> None:
    world = World(OURS, OTHER, mark=tmp_path / "was-ready")
    assert await world.scan() == SCAN_S
    assert world.kube.taints == [OTHER]
    await world.breaks("no guard")
    assert world.kube.taints == [OTHER, OURS]
    assert [event for event, _ in world.records.seen] == [Event.NODE_UNTAINTED, Event.NODE_TAINTED]
    assert world.tainter.failure == ""


async def test_a_short_problem_is_not_written_to_the_node(tmp_path: Path) -> None:
    """Look at what happens while lading-hooks or the runtime is restarted."""
    world = World(OTHER, mark=tmp_path / "was-ready")
    for problem in ("it has not connected yet", "", "lost", ""):
        world.problem = problem
        await world.scan()
        world.now += PATIENCE_S / 2
    assert world.kube.writes == 0


async def test_a_node_that_was_not_ready_since_its_boot_is_tainted_at_once(tmp_path: Path) -> None:
    world = World(mark=tmp_path / "was-ready")
    world.mark.unlink()
    world.problem = "it has not connected yet"
    await world.scan()
    assert world.kube.taints == [OURS]
    world.problem = ""
    await world.scan()
    assert (world.kube.taints, world.mark.exists()) == ([], True)


async def test_a_mark_that_cannot_be_made_is_no_failure(tmp_path: Path) -> None:
    world = World(OURS, mark=tmp_path / "run/was-ready")
    world.mark.unlink()
    world.mark.parent.rmdir()
    await world.scan()
    assert (world.kube.taints, world.tainter.failure) == ([], "")


async def test_a_tainted_node_keeps_its_taint_until_it_is_ready(tmp_path: Path) -> None:
    world = World(OURS, mark=tmp_path / "was-ready")
    await world.breaks("it has not connected yet")
    assert (world.kube.taints, world.kube.writes) == ([OURS], 0)


async def test_while_nothing_changes_the_node_is_checked_now_and_then_only(tmp_path: Path) -> None:
    world = World(mark=tmp_path / "was-ready")
    for _ in range(5):
        await world.scan()
    assert (world.kube.reads, world.kube.writes) == (1, 0)
    world.kube.taints.append(OURS)  # another client wrote it meanwhile
    world.now += RENEW_S * 1.1
    await world.scan()
    assert world.kube.taints == []


async def test_another_writer_of_the_node_is_no_failure(tmp_path: Path) -> None:
    world = World(OURS, mark=tmp_path / "was-ready")
    world.kube.failures.extend([ConflictError("changed", status=409)] * 2)
    assert await world.scan() == SCAN_S
    assert world.kube.taints == []
    world.kube.failures.extend([ConflictError("changed", status=409)] * 3)
    await world.breaks("x")
    assert "changed" in world.tainter.failure
    await world.scan()
    assert (world.kube.taints, world.tainter.failure) == ([OURS], "")


async def test_without_an_api_server_the_taint_is_tried_again_and_the_failure_reported_once(tmp_path: Path) -> None:
    world = World(OURS, mark=tmp_path / "was-ready")
    assert world.tainter.failure != ""
    world.kube.down = True
    for _ in range(3):
        await world.scan()
    assert world.records.count(Event.NODE_TAINT_FAILED) == 1
    assert "refused" in world.tainter.failure
    world.kube.down = False
    await world.scan()
    assert (world.kube.taints, world.tainter.failure) == ([], "")


@pytest.mark.parametrize(
    ("taints", "wanted", "then"),
    [
        ([], False, None),
        ([OTHER], False, None),
        ([OURS], True, None),
        ([], True, [OURS]),
        ([OURS, OTHER], False, [OTHER]),
        ([{**OURS, "value": "x"}], False, []),
        ([{**OURS, "effect": "NoExecute"}], False, None),
        ([{**OURS, "effect": "NoExecute"}], True, [{**OURS, "effect": "NoExecute"}, OURS]),
    ],
)
def test_other_taints_stay(taints: list[Any], wanted: bool, then: list[Any] | None) -> None:
    assert change(taints, wanted) == then
