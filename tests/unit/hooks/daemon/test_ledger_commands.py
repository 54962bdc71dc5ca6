"""Test `lading-hooks ledger` and `lading-hooks release` on a simulated node, with and without a daemon."""

import asyncio
import json
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from hooks.attach.kernel import KernelError
from hooks.daemon import ledger_commands
from hooks.daemon.daemon import read_configured
from hooks.daemon.parts import make_vendors
from hooks.daemon.settings import Settings
from hooks.frontends.cri_hook.ledger_service import LedgerService
from hooks.frontends.cri_hook.service import HookServer, HookService
from hooks.host.attributes import read_boot_id
from hooks.host.lists import read_lists
from hooks.ledger.period import End, Ended
from hooks.ledger.store import Ledger, read_history, read_journal, read_ledger
from hooks.main import main
from hooks.model.assignment import GrantedDevices, GrantedGpu, GrantedVf
from hooks.model.attachment import Attachment, Step
from hooks.model.grant import Grant
from hooks.model.inventory import Inventory
from hooks.model.lists import Lists
from lading.log import Event, Level, Log
from lading.runtime import RuntimeClient
from lading.sockets import listen
from lading.vocabulary import PREFIX, GpuUuid, PciAddress
from protos.cri.runtime.v1 import api_pb2 as cri
from simnode.build import SimNode
from tests.conftest import BuildNode
from tests.fakes import holders
from tests.fakes.raw_server import Call, Fail, RawServer
from tests.fakes.records import Records
from tests.unit.hooks.inventories import inventory

Shown = tuple[int, str, str]  # exit status, stdout, stderr
JSON = ("-o", "json")
CARD = GpuUuid("GPU-00000001-4c61-6469-6e67-000000001efc")  # index 0
VF = PciAddress("0000:18:00.2")
BOTH = GrantedDevices(gpus=(GrantedGpu(uuid=CARD),), vfs=(GrantedVf(bdf=VF),))
GRANT = holders.grant(devices=BOTH)


class Runtime(RawServer):
    """Act as a runtime that lists ready sandboxes and no container."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, self._answer, workers=2)
        self.path = path
        self._sandboxes: list[cri.PodSandbox] = []

    def run(self, pod: str) -> None:
        metadata = cri.PodSandboxMetadata(name=f"name-of-{pod}", namespace="default", uid=pod)
        self._sandboxes.append(cri.PodSandbox(id=f"{pod}-s0", metadata=metadata, state=cri.SANDBOX_READY))

    def _answer(self, call: Call) -> bytes:
        match call.method:
            case "ListPodSandbox":
                return cri.ListPodSandboxResponse(items=self._sandboxes).SerializeToString()
            case "ListContainers":
                return cri.ListContainersResponse().SerializeToString()
            case _:
                raise Fail(grpc.StatusCode.UNIMPLEMENTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """Hold a node, and run a person's commands."""

    node: SimNode
    folder: Path  # the folder of the sockets
    config: Path
    ledger: Path
    runtime: Runtime
    run: Callable[..., Shown]

    @property
    def socket(self) -> Path:
        return self.folder / "h" / "hooks.sock"

    def remember(self, *grants: Grant, row: Attachment | None = None) -> None:
        with Ledger.open(self.ledger) as ledger:
            for grant in grants:
                ledger.record(grant)
            if row is not None:
                ledger.journal.restore([row])

    def holds(self) -> tuple[tuple[Grant, ...], tuple[Attachment, ...]]:
        return read_ledger(self.ledger), read_journal(self.ledger)

    def listed(self, *argv: str) -> dict[str, Any]:
        status, out, err = self.run("ledger", *JSON, *argv)
        assert (status, err) == (0, "")
        return {device["device"]: device for device in json.loads(out)["devices"]}


@pytest.fixture
def desk(
    build_node: BuildNode, fake_nvml: Path, tmp_path: Path, short_folder: Path, capfd: pytest.CaptureFixture[str]
) -> Iterator[Desk]:
    node = build_node("demo-8gpu")
    assert read_boot_id(node.root) != holders.BOOT  # rows of another boot are forgotten, and nothing is done here for them
    config, state = tmp_path / "hooks.toml", tmp_path / "state"
    settings = {
        "host_root": node.root,
        "nvml_library": fake_nvml,
        "state_dir": state,
        "listen": short_folder / "h" / "hooks.sock",
        "runtime_endpoint": short_folder / "runtime.sock",
    }
    config.write_text("".join(f'{key} = "{value}"\n' for key, value in settings.items()))

    def run(command: str, *argv: str) -> Shown:
        capfd.readouterr()
        status: Any = 0
        try:
            main([command, "--config", str(config), *argv])
        except SystemExit as e:
            status = e.code
        shown = capfd.readouterr()
        return status, shown.out, shown.err

    with Runtime(short_folder / "runtime.sock") as runtime:
        yield Desk(node=node, folder=short_folder, config=config, ledger=state / "node.db", runtime=runtime, run=run)


def row(*, step: Step = Step.ATTACHED, failure: str = "") -> Attachment:
    one = holders.row(1, step=step, failure=failure)
    return replace(one, vf=replace(one.vf, bdf=VF))


# ---- ledger


def test_every_device_is_listed_before_there_is_a_ledger(desk: Desk) -> None:
    devices = desk.listed()
    assert [device["kind"] for device in devices.values()].count("gpu") == 8
    assert [device["kind"] for device in devices.values()].count("vf") == 16
    assert {device["state"] for device in devices.values()} == {"free"}
    assert not desk.ledger.parent.exists()


def test_what_is_held_is_read_beside_the_daemon_that_keeps_it(desk: Desk) -> None:
    with Ledger.open(desk.ledger) as ledger:
        ledger.record(GRANT)
        ledger.journal.restore([row(step=Step.RETURNING, failure="no answer")])
        ledger.tombstone(GRANT.sandbox, 7)
        devices = desk.listed()
    assert [devices[device]["state"] for device in (CARD, VF)] == ["held", "returning"]
    assert devices[CARD]["holders"][0]["stopped_at"] == "1970-01-01T00:00:07Z"
    assert "no answer" in devices[VF]["why"]
    assert [device["state"] for device in devices.values()].count("free") == 22


def test_the_table_is_for_a_person(desk: Desk) -> None:
    desk.remember(GRANT)
    status, out, err = desk.run("ledger")
    assert (status, err) == (0, "")
    assert len(out.splitlines()) == 1 + 8 + 16
    assert "0000:1a:00.0" in next(line for line in out.splitlines() if "name-of-pod-1" in line)


def test_a_card_that_a_pod_uses_without_a_grant_is_unmanaged(desk: Desk) -> None:
    state = desk.node.nvml_state
    state.write_text(state.read_text() + "process 0 42\n")
    cgroup = desk.node.root / "proc/42/cgroup"
    cgroup.parent.mkdir()
    cgroup.write_text("0::/kubepods.slice/kubepods-podaaaa_bbbb.slice/cri-containerd-" + "c" * 64 + ".scope\n")
    assert desk.listed()[CARD]["state"] == "unmanaged"


def take_netdev_away(desk: Desk) -> PciAddress:
    """Remove the network device. The demo's VFs are InfiniBand, which may have none; this one is Ethernet."""
    bdf = PciAddress("0000:19:00.2")
    (ibdev,) = (desk.node.pci(bdf) / "infiniband").iterdir()
    (ibdev / "ports/1/link_layer").write_text("Ethernet\n")
    for netdev in (desk.node.pci(bdf) / "net").iterdir():
        netdev.rename(desk.node.root / netdev.name)
    return bdf


def of(bdf: PciAddress) -> Attachment:
    return replace(row(), vf=replace(row().vf, bdf=bdf))


@pytest.mark.parametrize("attaches", [True, False])
def test_a_network_device_that_lading_did_not_move_has_an_unknown_holder(desk: Desk, attaches: bool) -> None:
    """Check both modes: without netdev mode, pods move VFs themselves, so a missing network device is normal."""
    bdf = take_netdev_away(desk)
    flag = "--netdev" if attaches else "--no-netdev"
    state = desk.listed(flag)[bdf]["state"]
    assert (state == "unknown-holder") is attaches
    desk.remember(row=of(bdf))
    assert desk.listed(flag)[bdf]["state"] == "attached"


def test_what_comes_back_while_the_devices_are_read_had_a_holder(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    bdf = take_netdev_away(desk)
    desk.remember(row=of(bdf))

    async def read_slowly(settings: Settings) -> Inventory:
        result = read_configured(settings, make_vendors(settings))
        with Ledger.open(desk.ledger) as ledger:
            ledger.journal.forget(bdf, of(bdf).generation)
        return result

    monkeypatch.setattr(ledger_commands, "read_in_time", read_slowly)
    assert desk.listed("--netdev")[bdf]["state"] == "free"


@pytest.mark.parametrize("command", [("ledger",), ("release", CARD), ("audit", "--device", "0000:1a:00.0")])
def test_a_driver_that_hangs_is_reported(desk: Desk, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    there = threading.Event()
    monkeypatch.setattr("hooks.daemon.daemon.ANSWER_S", 0.01)
    monkeypatch.setattr("hooks.daemon.daemon.read_configured", lambda *_: there.wait())
    status, out, err = desk.run(*command)
    there.set()
    assert (status, out) == (1, "")
    assert "driver" in err


@pytest.mark.parametrize("break_it", ["garbage", "no folder"])
def test_a_ledger_that_cannot_be_read_is_no_empty_one(desk: Desk, break_it: str) -> None:
    if break_it == "garbage":
        desk.ledger.parent.mkdir()
        desk.ledger.write_bytes(b"x" * 8192)
    else:
        desk.ledger.parent.write_text("")  # a file where the folder should be: ENOTDIR, as EACCES where rights are missing
    for command in (("ledger",), ("release", CARD)):
        status, out, err = desk.run(*command)
        assert (status, out) == (1, "")
        assert str(desk.ledger) in err


# ---- release without a daemon


def test_to_scan_changes_nothing(desk: Desk) -> None:
    desk.remember(GRANT, row=row())
    before = desk.holds()
    status, out, err = desk.run("release", CARD)
    assert (status, err) == (0, "")
    for word in (CARD, VF, "rdma1", "eth1", "name-of-pod-1"):
        assert word in out
    assert desk.holds() == before


def test_forced_it_is_done_and_reported(desk: Desk) -> None:
    desk.remember(GRANT, row=row())
    status, out, err = desk.run("release", VF, "--force", *JSON)
    assert status == 0
    answer = json.loads(out)
    assert (answer["device"], answer["forced"], answer["in_use"], answer["failed"]) == (VF, True, [], [])
    assert any(CARD in step for step in answer["steps"])
    assert desk.holds() == ((), ())
    assert f"event={Event.RELEASE_FORCED}" in err
    assert f"pid={os.getpid()}" in err
    (end,) = (one.end for one in read_history(desk.ledger))
    assert end is not None
    assert (end.how, end.uid) == (Ended.FORCED, os.getuid())
    assert desk.run("release", VF, "--force", *JSON)[0] == 0  # again


def test_what_someone_alive_can_use_stays_his(desk: Desk) -> None:
    desk.remember(GRANT)
    desk.runtime.run("pod-1")
    for argv, expected in (((), 0), (("--force",), 3)):
        status, out, err = desk.run("release", CARD, *argv)
        assert (status, out) == (expected, "")
        assert "name-of-pod-1" in err
        assert read_ledger(desk.ledger) == (GRANT,)
    answer = json.loads(desk.run("release", CARD, *JSON)[1])
    assert (answer["forced"], answer["steps"], len(answer["in_use"])) == (False, [], 1)


def test_without_a_runtime_nothing_is_released(desk: Desk) -> None:
    desk.remember(GRANT)
    desk.runtime.stop()
    for argv in ((), ("--force",)):
        status, out, err = desk.run("release", CARD, *argv)
        assert (status, out) == (1, "")
        assert "runtime.sock" in err
    assert read_ledger(desk.ledger) == (GRANT,)


def test_a_daemon_elsewhere_keeps_its_ledger(desk: Desk) -> None:
    with Ledger.open(desk.ledger) as ledger:
        ledger.record(GRANT)
        assert desk.run("release", CARD)[0] == 0
        status, out, err = desk.run("release", CARD, "--force")
        assert (status, out) == (1, "")
        assert str(desk.ledger.parent) in err
        assert ledger.grants() == (GRANT,)


@pytest.mark.parametrize("device", ["0", "mlx5_8", "0000:ff:00.1", "GPU-1"])
def test_what_is_no_device_of_the_node_is_status_2(desk: Desk, device: str) -> None:
    for argv in ((), ("--force",)):
        status, out, err = desk.run("release", device, *argv)
        assert (status, out) == (2, "")
        assert device in err


def test_a_card_by_its_address(desk: Desk) -> None:
    desk.remember(GRANT)
    assert json.loads(desk.run("release", "0000:1a:00.0", *JSON)[1])["device"] == CARD


# ---- release by the daemon


@dataclass(slots=True)
class Node:
    """Represent the part of hooks.node.node that the service uses."""

    ledger: Ledger
    inventory: Inventory | None
    lists: Callable[[], Awaitable[Lists]]
    watch: None = None
    clock: Callable[[], float] = lambda: float(holders.NOW)


class Stuck:
    """Represent the part of hooks.attach.attacher that the service uses; it releases nothing."""

    async def force_release(self, vf: PciAddress, generation: int) -> list[str]:
        raise KernelError(f"no answer about {vf}, {generation}")


def beside_daemon(desk: Desk, records: Records, work: Callable[[Node], None]) -> None:
    """Run `work` in a thread while the loop serves."""

    async def run() -> None:
        log = Log(records, Level.DEBUG)
        async with RuntimeClient(desk.runtime.path) as runtime:
            with Ledger.open(desk.ledger) as ledger, listen(desk.socket) as listener:
                result = inventory(vfs=(replace(holders.row(1).vf, bdf=VF),))
                node = Node(ledger, result, partial(read_lists, runtime, prefixes=(PREFIX,)))
                service = HookService(node)  # type: ignore[arg-type]
                by_hand = LedgerService(node, Stuck(), log)  # type: ignore[arg-type]
                server = HookServer(service, log, by_hand, listener=listener)
                await server.start()
                try:
                    await asyncio.to_thread(work, node)
                finally:
                    await server.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_where_a_daemon_runs_it_is_the_one_that_does_it(desk: Desk, records: Records) -> None:
    desk.remember(GRANT)

    def work(node: Node) -> None:
        status, out, _ = desk.run("release", CARD, *JSON)
        assert (status, json.loads(out)["forced"], node.ledger.grants()) == (0, False, (GRANT,))
        assert records.written == []
        forced = desk.run("release", CARD, "--force", *JSON)
        assert (forced[0], json.loads(forced[1])["steps"]) == (0, json.loads(out)["steps"])
        assert node.ledger.grants() == ()

    beside_daemon(desk, records, work)
    (fields,) = records.fields(Event.RELEASE_FORCED)
    assert fields == {"device": CARD, "uid": str(os.getuid()), "pid": str(os.getpid())}
    assert desk.holds() == ((), ())
    assert [one.end for one in read_history(desk.ledger)] == [End(at=holders.NOW, how=Ended.FORCED, uid=os.getuid())]


def test_the_daemon_takes_nothing_from_the_living_either(desk: Desk, records: Records) -> None:
    desk.remember(GRANT)
    desk.runtime.run("pod-1")

    def work(node: Node) -> None:
        status, _, err = desk.run("release", CARD, "--force")
        assert status == 3
        assert "name-of-pod-1" in err
        assert node.ledger.grants() == (GRANT,)

    beside_daemon(desk, records, work)
    assert len(records.fields(Event.RELEASE_FORCED)) == 1  # an attempt is logged too


def test_what_failed_is_status_1(desk: Desk, records: Records) -> None:
    desk.remember(GRANT, row=row())

    def work(node: Node) -> None:
        status, out, err = desk.run("release", VF, "--force")
        assert (status, out) == (1, "")
        assert VF in err
        assert node.ledger.grants() == (GRANT,)

    beside_daemon(desk, records, work)


def test_what_the_daemon_cannot_answer(desk: Desk, records: Records) -> None:
    desk.remember(GRANT)

    def work(node: Node) -> None:
        assert desk.run("release", "0000:ff:00.1")[0] == 2
        desk.runtime.stop()
        assert desk.run("release", CARD, "--force")[0] == 1
        node.inventory = None
        assert desk.run("release", CARD, "--force")[0] == 1
        assert node.ledger.grants() == (GRANT,)

    beside_daemon(desk, records, work)


@pytest.mark.parametrize("code", [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNKNOWN])
def test_another_answer_is_status_1_and_the_ledger_is_not_touched(desk: Desk, code: grpc.StatusCode) -> None:
    """Check the answers of an older daemon, of one that hangs, and of one with a fault."""
    desk.remember(GRANT)

    def fail(_: Call) -> bytes:
        raise Fail(code)

    desk.socket.parent.mkdir()
    with RawServer(desk.socket, fail, workers=1):
        status, out, err = desk.run("release", CARD, "--force")
    assert (status, out) == (1, "")
    assert str(desk.socket) in err
    assert read_ledger(desk.ledger) == (GRANT,)


def test_a_message_that_is_none_is_an_error(desk: Desk, records: Records) -> None:
    def work(_: Node) -> None:
        with grpc.insecure_channel(f"unix://{desk.socket}") as channel, pytest.raises(grpc.RpcError) as e:
            channel.unary_unary("/lading.hook.v1.Ledger/Release", bytes, bytes)(b"\xff\xff\xff", timeout=5)
        assert e.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    beside_daemon(desk, records, work)
