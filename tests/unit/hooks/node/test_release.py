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
from tests.fakes.records import Records
from tests.fakes.runtime import FakeRuntime
from tests.unit.hooks.inventories import gpu, inventory
from tests.vfs.life import SETTINGS, inline, path_of, pod_of
from tests.vfs.model import ModelKernel, vf

SANDBOX = "p1-s0"
CARD = holders.gpu_uuid(0)
END = End(at=holders.NOW, how=Ended.FORCED, uid=1000)


class World:
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
def world(tmp_path: Path, log: Log) -> Iterator[World]:
    with Ledger.open(tmp_path / "state" / "node.db") as ledger:
        yield World(ledger, log)


async def test_finding_a_release_changes_nothing(world: World) -> None:
    row = await world.given()
    changes = list(world.kernel.changes)
    release = await world.find_release()
    assert (release.attachments, release.grants) == ((row,), (world.grant,))
    assert world.held() == ((world.grant,), (row,))
    assert world.kernel.changes == changes


async def test_a_release_takes_the_steps_that_it_showed(world: World, records: Records) -> None:
    before = world.kernel.where(world.vf.bdf)
    await world.given()
    result, outcome = await world.release()
    assert outcome == Outcome(done=tuple(result.steps))
    assert result.in_use == ()
    assert world.held() == ((), ())
    assert world.kernel.where(world.vf.bdf) == before
    assert records.fields(Event.GRANT_RELEASED)[0]["pod_uid"] == "p1"
    assert [(period.pod, period.end) for period in read_history(world.ledger.path)] == [("p1", END)]


async def test_a_second_release_has_nothing_to_do(world: World) -> None:
    await world.given()
    await world.release()
    for device in (CARD, world.vf.bdf):
        result, outcome = await world.release(device)
        assert (result, outcome) == (Release(device=device), Outcome())


async def test_nothing_is_released_from_a_live_pod(world: World) -> None:
    row = await world.given(alive=True)
    for device in (CARD, world.vf.bdf):
        result, outcome = await world.release(device)
        assert result.in_use
        assert outcome == Outcome()
    assert world.held() == ((world.grant,), (row,))


async def test_nothing_is_released_while_the_runtime_does_not_answer(world: World) -> None:
    await world.given()
    world.runtime.down = True
    with pytest.raises(RuntimeUnavailableError):
        await world.find_release()
    assert world.ledger.grants() == (world.grant,)


async def test_an_unknown_device_is_an_error(world: World) -> None:
    with pytest.raises(ConfigError):
        await world.find_release("0000:ff:00.1")


async def test_a_vf_that_does_not_come_back_keeps_its_grant(world: World) -> None:
    await world.given()
    world.kernel.fail("move_out")
    _, outcome = await world.release()
    assert outcome.done == ()
    assert any("move_out" in text for text in outcome.failed)
    (row,) = world.ledger.journal.rows()
    assert row.step is Step.RETURNING
    assert world.ledger.grants() == (world.grant,)
    assert (await world.release())[1].failed == ()
    assert world.held() == ((), ())


async def test_a_pod_that_is_created_again_meanwhile_keeps_its_grant(world: World) -> None:
    """Create a new sandbox of the pod that is younger than the lists and the earlier reading of the ledger."""
    again = replace(world.grant, sandbox=SandboxId("p1-s1"))
    await world.given()
    world.runtime.pause()
    looking = asyncio.create_task(world.find_release())
    await asyncio.sleep(0)
    world.ledger.record(again)
    world.runtime.go_on()
    outcome = await carry_out(await looking, world.ledger, world.attacher, world.log, end=END)
    assert outcome.failed
    assert world.ledger.grants() == (again,)


async def test_a_vf_that_a_newer_sandbox_has_meanwhile_stays_there(world: World) -> None:
    await world.given()
    release = await world.find_release()
    await world.attacher.detach_sandbox(SandboxId(SANDBOX))
    world.kernel.add_netns(path_of("p1-s1"))
    newer = await world.attacher.attach([WantedVf(vf=world.vf)], pod_of("p1-s1"))
    assert isinstance(newer, tuple)
    await carry_out(release, world.ledger, world.attacher, world.log, end=END)
    assert world.ledger.journal.rows() == newer
    assert world.kernel.where(world.vf.bdf) is not None
    assert world.ledger.grants() == (world.grant,)


async def test_a_ledger_that_cannot_be_written_fails_the_release(world: World) -> None:
    await world.given()
    release = await world.find_release()
    world.ledger.path.rename(world.ledger.path.with_suffix(".gone"))
    outcome = await carry_out(release, world.ledger, world.attacher, world.log, end=END)
    assert outcome.done == ()
    assert outcome.failed
