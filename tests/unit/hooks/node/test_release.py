"""Test `lading-hooks release` with a real ledger, simulated VFs, and a runtime whose lists of containers the test gives."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hooks.attach.attacher import Attacher
from hooks.ledger.period import End, Ended
from hooks.ledger.store import Ledger, read_history
from hooks.model.assignment import GrantedDevices, GrantedGpu, GrantedVf
from hooks.model.attachment import Attachment, Step, WantedVf
from hooks.model.grant import Grant
from hooks.model.inventory import Inventory
from hooks.node.release import Outcome, carry_out, find_release, read_content
from hooks.node.release_decision import Release
from lading.errors import ConfigError, RuntimeUnavailableError
from lading.log import Event, Log
from lading.vocabulary import SandboxId
from tests.fakes import holders
from tests.fakes.runtime import FakeRuntime
from tests.unit.hooks.inventories import gpu, inventory
from tests.unit.runtimeproxy.conftest import Records
from tests.vfs.life import SETTINGS, inline, path_of, pod_of
from tests.vfs.model import ModelKernel, vf

SANDBOX = "p1-s0"
CARD = holders.gpu_uuid(0)
END = End(at=holders.NOW, how=Ended.FORCED, uid=1000)


class Room:
    """Hold a node with one card and one VF, which pod p1 may have."""

    def __init__(self, ledger: Ledger, log: Log) -> None:
        self.ledger, self.log = ledger, log
        self.vf = vf(0)
        self.kernel = ModelKernel([self.vf])
        self.runtime = FakeRuntime()
        self.attacher = Attacher(
            journal=ledger.journal,
            kernel=self.kernel,
            netns_of=self._netns_of,
            stopped=ledger.is_stopped,
            boot_id="boot-1",
            log=log,
            in_thread=inline,
        )
        devices = GrantedDevices(gpus=(GrantedGpu(uuid=CARD),), vfs=(GrantedVf(bdf=self.vf.bdf),))
        self.grant = holders.grant("p1", devices=devices, sandbox=SANDBOX)

    @property
    def inventory(self) -> Inventory:
        return inventory(gpus=(replace(gpu(0), uuid=CARD),), vfs=(self.vf,))

    async def _netns_of(self, sandbox: SandboxId) -> str:
        return path_of(sandbox)

    async def given(self, *, alive: bool = False) -> Attachment:
        """Give p1 the VF and the card, and stop its sandbox, after which neither returned."""
        self.kernel.add_netns(path_of(SANDBOX))
        self.ledger.record(self.grant)
        attached = await self.attacher.attach([WantedVf(vf=self.vf, settings=SETTINGS)], pod_of(SANDBOX))
        assert isinstance(attached, tuple)
        assert self.runtime.run("p1") == SANDBOX
        if not alive:
            self.runtime.stop(SANDBOX)
        return attached[0]

    async def find_release(self, device: str = CARD) -> Release:
        return await find_release(device, self.inventory, lambda: read_content(self.ledger), self.runtime.lists)

    async def release(self, device: str = CARD) -> tuple[Release, Outcome]:
        release = await self.find_release(device)
        return release, await carry_out(release, self.ledger, self.attacher, self.log, end=END)

    def held(self) -> tuple[tuple[Grant, ...], tuple[Attachment, ...]]:
        return self.ledger.grants(), self.ledger.journal.rows()


@pytest.fixture
def room(tmp_path: Path, log: Log) -> Iterator[Room]:
    with Ledger.open(tmp_path / "state" / "node.db") as ledger:
        yield Room(ledger, log)


def test_to_scan_touches_nothing(room: Room) -> None:
    async def run() -> None:
        row = await room.given()
        changes = list(room.kernel.changes)
        release = await room.find_release()
        assert (release.attachments, release.grants) == ((row,), (room.grant,))
        assert room.held() == ((room.grant,), (row,))
        assert room.kernel.changes == changes

    asyncio.run(run())


def test_what_was_checked_is_what_is_done(room: Room, records: Records) -> None:
    async def run() -> None:
        await room.given()
        result, outcome = await room.release()
        assert outcome == Outcome(done=tuple(result.steps))
        assert result.in_use == ()

    before = room.kernel.where(room.vf.bdf)
    asyncio.run(run())
    assert room.held() == ((), ())
    assert room.kernel.where(room.vf.bdf) == before
    assert records.fields(Event.GRANT_RELEASED)[0]["pod_uid"] == "p1"
    assert [(period.pod, period.end) for period in read_history(room.ledger.path)] == [("p1", END)]


def test_again_there_is_nothing_left_to_do(room: Room) -> None:
    async def run() -> None:
        await room.given()
        await room.release()
        for device in (CARD, room.vf.bdf):
            result, outcome = await room.release(device)
            assert (result, outcome) == (Release(device=device), Outcome())

    asyncio.run(run())


def test_from_a_live_pod_nothing_is_taken(room: Room) -> None:
    async def run() -> None:
        row = await room.given(alive=True)
        for device in (CARD, room.vf.bdf):
            result, outcome = await room.release(device)
            assert result.in_use
            assert outcome == Outcome()
        assert room.held() == ((room.grant,), (row,))

    asyncio.run(run())


def test_while_the_runtime_does_not_answer_no_one_is_known_to_be_deleted(room: Room) -> None:
    async def run() -> None:
        await room.given()
        room.runtime.down = True
        with pytest.raises(RuntimeUnavailableError):
            await room.find_release()

    asyncio.run(run())
    assert room.ledger.grants() == (room.grant,)


def test_no_such_device(room: Room) -> None:
    with pytest.raises(ConfigError):
        asyncio.run(room.find_release("0000:ff:00.1"))


def test_a_vf_that_does_not_come_back_keeps_its_grant(room: Room) -> None:
    async def run() -> None:
        await room.given()
        room.kernel.fail("move_out")
        _, outcome = await room.release()
        assert outcome.done == ()
        assert any("move_out" in text for text in outcome.failed)
        (row,) = room.ledger.journal.rows()
        assert row.step is Step.RETURNING
        assert room.ledger.grants() == (room.grant,)
        assert (await room.release())[1].failed == ()

    asyncio.run(run())
    assert room.held() == ((), ())


def test_a_pod_that_comes_back_meanwhile_keeps_what_it_has(room: Room) -> None:
    """Create a new sandbox of the pod that is younger than the lists and the earlier reading of the ledger."""
    again = replace(room.grant, sandbox=SandboxId("p1-s1"))

    async def run() -> None:
        await room.given()
        room.runtime.pause()
        looking = asyncio.create_task(room.find_release())
        await asyncio.sleep(0)
        room.ledger.record(again)
        room.runtime.go_on()
        outcome = await carry_out(await looking, room.ledger, room.attacher, room.log, end=END)
        assert outcome.failed

    asyncio.run(run())
    assert room.ledger.grants() == (again,)


def test_a_vf_that_a_newer_sandbox_has_by_then_stays_there(room: Room) -> None:
    async def run() -> None:
        await room.given()
        release = await room.find_release()
        await room.attacher.detach_sandbox(SandboxId(SANDBOX))
        room.kernel.add_netns(path_of("p1-s1"))
        newer = await room.attacher.attach([WantedVf(vf=room.vf)], pod_of("p1-s1"))
        assert isinstance(newer, tuple)
        await carry_out(release, room.ledger, room.attacher, room.log, end=END)
        assert room.ledger.journal.rows() == newer
        assert room.kernel.where(room.vf.bdf) is not None
        assert room.ledger.grants() == (room.grant,)

    asyncio.run(run())


def test_a_disk_that_takes_nothing_is_a_failure_that_is_reported(room: Room) -> None:
    async def run() -> None:
        await room.given()
        release = await room.find_release()
        room.ledger.path.rename(room.ledger.path.with_suffix(".gone"))
        outcome = await carry_out(release, room.ledger, room.attacher, room.log, end=END)
        assert outcome.done == ()
        assert outcome.failed

    asyncio.run(run())
