"""Test the life of a card's MPS daemon, with the simulated programs (simnode/fake_mps.py) as real processes."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hooks.isolation.mps import MpsFolders
from hooks.model.assignment import GrantedDevices, GrantedGpu, Refusal
from hooks.model.container import Adjustment, Answer, Sandbox
from hooks.model.grant import Grant
from hooks.mps import control as control_module
from hooks.mps import daemons as daemons_module
from hooks.mps.control import Control
from hooks.mps.daemons import MpsDaemons
from lading.devices.isolation import IsolationName
from lading.errors import HostError
from lading.log import Event, Log
from lading.reasons import Reason
from lading.selinux import FOR_CONTAINERS, make_label, read_label
from lading.vocabulary import GpuUuid, SandboxId
from simnode.mps import SYSTEMD_RUN, client, install_fake_mps
from simnode.patience import await_until
from tests.fakes.compared import seen
from tests.fakes.holders import grant
from tests.fakes.records import Records
from tests.fakes.selinux import enable_selinux
from tests.unit.hooks.inventories import gpu, inventory, uuid

EXCLUSIVE, DEFAULT = True, False
NO_ONE = 65534
PATIENT_S = 30.0  # for a slow machine, where nothing hangs


def share(pod: str, number: int = 0, *, memory_mib: int = 1044, limit: int = 60) -> Grant:
    gpus = (GrantedGpu(uuid=uuid(number), memory_mib=memory_mib, core_limit_percent=limit, isolation=IsolationName.MPS),)
    return grant(pod, devices=GrantedDevices(gpus=gpus))


class Rig:
    """Hold a node's preparer, its ledger as a list, and its driver as a list of modes."""

    def __init__(self, folder: Path, log: Log) -> None:
        self.folders = MpsFolders(mps_dir=f"{folder}/mps", shm_dir=f"{folder}/shm")
        self.command = install_fake_mps(folder / "bin")
        self.log = log
        self.grants: list[Grant] = []
        self.modes: list[tuple[GpuUuid, bool]] = []
        self.hangs: GpuUuid | None = None  # a card whose daemon is not waited for
        self.driver: Callable[[], object] = lambda: None  # called first when a mode is set
        self.daemons = self.instance()

    def instance(self) -> MpsDaemons:
        """Return what another start of lading-hooks would have."""
        return MpsDaemons(
            folders=self.folders, control=self.control, set_exclusive=self._set, grants=lambda: self.grants, log=self.log
        )

    def control(self, card: GpuUuid) -> Control:
        run = str(self.command.with_name(SYSTEMD_RUN))
        return Control(
            uuid=card,
            folders=self.folders,
            command=str(self.command),
            systemd_run=run,
            label=make_label(Path(self.folders.mps_dir).parent / "host"),
            answer_s=1.0 if card == self.hangs else PATIENT_S,
        )

    def _set(self, card: GpuUuid, exclusive: bool) -> None:
        self.driver()
        self.modes.append((card, exclusive))

    async def create(self, one: Grant) -> Adjustment | Refusal:
        if one not in self.grants:
            self.grants.append(one)
        answer = Answer(adjustment=Adjustment(), grant=one)
        assert self.daemons.wants(answer)
        return await self.daemons.prepare(Sandbox(id=one.sandbox, uid=one.pod), answer)

    async def compare(self) -> bool:
        return await self.daemons.reconcile(seen(self.grants), frozenset())

    @property
    def pipe(self) -> Path:
        return Path(self.folders.pipe(uuid(0)))

    @property
    def pid(self) -> int | None:
        return self.control(uuid(0)).pid()

    async def kill(self) -> None:
        """Kill the daemon, and wait for its end."""
        os.kill(self.pid or 0, signal.SIGKILL)
        await await_until(lambda: self.pid is None, "the end of the daemon")

    def leave_a_file(self) -> None:
        """Do what a container may do in its /dev/shm."""
        folder = Path(self.folders.shm(uuid(0)), "folder")
        folder.mkdir()
        (folder / "file").write_text("secret")

    def folders_left(self) -> list[str]:
        return [one for one in (self.folders.of(uuid(0)), self.folders.shm(uuid(0))) if Path(one).exists()]

    def ending(self) -> bool:
        return self.daemons.ending(lambda _: False, self.grants)

    async def ask(self, *commands: str) -> list[str]:
        return (await self.control(uuid(0)).ask(*commands)).split()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (control_module, "START_S"),
        (control_module, "ENDED_S"),
        (daemons_module, "PREPARE_S"),
        (daemons_module, "_SCAN_S"),
    ):
        monkeypatch.setattr(module, name, PATIENT_S)


@pytest.fixture
def rig(programs: Path, log: Log) -> Rig:
    return Rig(programs, log)


def refused(result: Adjustment | Refusal) -> Refusal:
    assert isinstance(result, Refusal), result
    return result


# start and stop


async def test_a_daemon_lives_from_the_first_share_to_the_last(rig: Rig, records: Records) -> None:
    first, second = share("a"), share("b", memory_mib=4096, limit=30)
    assert await rig.create(first) == Adjustment()
    pid = rig.pid
    assert pid is not None
    assert rig.modes == [(uuid(0), EXCLUSIVE)]
    assert await rig.create(second) == Adjustment()
    assert rig.pid == pid
    rig.grants.remove(first)
    assert not await rig.compare()
    assert rig.pid == pid
    assert not rig.ending()
    rig.grants.remove(second)
    assert rig.ending()
    assert await rig.compare()  # the devices are to be read again
    assert rig.pid is None
    assert rig.modes == [(uuid(0), EXCLUSIVE), (uuid(0), DEFAULT)]
    assert rig.folders_left() == []
    assert not rig.ending()
    assert records.events() == [Event.MPS_STARTED, Event.MPS_STOPPED]


async def test_a_daemon_is_a_service_of_its_own_with_its_own_shared_memory(rig: Rig) -> None:
    assert await rig.create(share("a")) == Adjustment()
    text = rig.command.with_name("systemd-run.log").read_text().split()
    assert f"--unit=lading-mps-{uuid(0)}" in text
    assert f"--property=BindPaths={rig.folders.shm(uuid(0))}:/dev/shm" in text
    assert f"--setenv=CUDA_VISIBLE_DEVICES={uuid(0)}" in text
    assert text[-2:] == ["-d", "-multiuser-server"]
    assert Path(rig.folders.shm(uuid(0))).stat().st_mode & 0o7777 == 0o1777


async def test_on_a_host_with_selinux_containers_may_use_the_folders_of_a_daemon(rig: Rig) -> None:
    enable_selinux(Path(rig.folders.mps_dir).parent / "host")
    await rig.create(share("a"))
    assert read_label(rig.pipe) == read_label(Path(rig.folders.shm(uuid(0)))) == FOR_CONTAINERS


async def test_cards_have_daemons_of_their_own(rig: Rig) -> None:
    results = await asyncio.gather(*(rig.create(share(f"p{n}", n)) for n in range(2)))
    assert list(results) == [Adjustment(), Adjustment()]
    assert rig.control(uuid(0)).pid() != rig.control(uuid(1)).pid()
    rig.grants = rig.grants[:1]
    await rig.compare()
    assert [rig.control(uuid(n)).pid() is None for n in range(2)] == [False, True]


async def test_two_containers_at_once_start_one_daemon(rig: Rig, records: Records) -> None:
    results = await asyncio.gather(*(rig.create(share(f"p{n}")) for n in range(3)))
    assert list(results) == [Adjustment()] * 3
    assert records.events() == [Event.MPS_STARTED]


async def test_a_restarted_lading_hooks_finds_its_daemons(rig: Rig, records: Records) -> None:
    one = share("a")
    await rig.create(one)
    pid = rig.pid
    rig.daemons = rig.instance()
    await rig.compare()
    assert await rig.create(one) == Adjustment()
    assert rig.pid == pid
    rig.grants.clear()
    rig.daemons = rig.instance()  # it ended before it could stop the daemon
    assert rig.ending()
    await rig.compare()
    assert rig.pid is None
    assert rig.modes[-1] == (uuid(0), DEFAULT)
    assert records.events() == [Event.MPS_STARTED, Event.MPS_STOPPED]


async def test_a_socket_says_nothing_about_the_daemon(rig: Rig) -> None:
    one = share("a")
    await rig.create(one)
    pid = rig.pid
    await rig.kill()
    assert (rig.pipe / "control").exists()
    assert (rig.pipe / "nvidia-cuda-mps-control.pid").exists()
    (rig.pipe / "nvidia-cuda-mps-control.pid").write_text(f"{os.getpid()}\n")  # the pid is another process's now
    assert rig.pid is None
    await rig.compare()
    assert rig.pid not in {None, pid, os.getpid()}


async def test_a_second_start_is_refused_and_a_daemon_without_a_pid_file_replaced(rig: Rig) -> None:
    await rig.create(share("a"))
    file = rig.pipe / "nvidia-cuda-mps-control.pid"
    old = int(file.read_text())
    with pytest.raises(HostError, match="already running"):
        await rig.control(uuid(0)).start()
    assert rig.pid is None  # the daemon runs, and its pid file is gone
    assert _runs(old)
    await _until(rig, lambda: rig.pid is not None)
    assert not _runs(old)
    rig.grants.clear()
    await _until(rig, lambda: not rig.ending())


async def test_a_daemon_that_died_is_replaced_and_its_server_ended(rig: Rig, records: Records) -> None:
    await rig.create(share("a"))
    with client(rig.pipe) as program:
        server = int(program.answer()[1])
        await rig.compare()
        await rig.kill()
        assert _runs(server)
        await _until(rig, lambda: rig.pid is not None)
        assert not _runs(server)
    assert records.events() == [Event.MPS_STARTED, Event.MPS_FAILED, Event.MPS_STARTED]


async def test_files_of_containers_in_the_daemons_shared_memory_are_removed(rig: Rig) -> None:
    await rig.create(share("a"))
    rig.leave_a_file()
    rig.grants.clear()
    await _until(rig, lambda: not rig.ending())
    assert rig.folders_left() == []
    assert "rm -rf" in rig.command.with_name("systemd-run.log").read_text()


# limits


async def test_the_daemons_own_limits_follow_the_largest_share(rig: Rig) -> None:
    small, large = share("a", memory_mib=1044, limit=20), share("b", memory_mib=4096, limit=60)
    questions = ("get_default_active_thread_percentage", "get_default_device_pinned_mem_limit 0")
    await rig.create(small)
    assert await rig.ask(*questions) == ["20.0", "1G"]  # the daemon says whole GiB: nothing compares that
    with client(rig.pipe) as program:
        assert program.answer()[2:] == ["20.0", "1044M"]
    await rig.create(large)
    assert await rig.ask(*questions) == ["60.0", "4G"]
    with client(rig.pipe) as program:  # a client of the server that ran before
        assert program.answer()[2:] == ["60.0", "4096M"]


async def test_users_do_not_wait_for_one_another(rig: Rig) -> None:
    await rig.create(share("a"))
    with client(rig.pipe, uid=0) as first, client(rig.pipe, uid=NO_ONE) as second:
        assert first.answer() == second.answer()


# stop


async def test_a_stop_with_a_client_ends_the_server_before_the_mode_is_set_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_module, "QUIT_S", 1)
    servers: list[int] = []

    def server_ended() -> None:
        assert servers
        assert not any(map(_runs, servers))

    await rig.create(share("a"))
    with client(rig.pipe) as program:
        servers.append(int(program.answer()[1]))
        rig.driver = server_ended
        rig.grants.clear()
        await _until(rig, lambda: not rig.ending())
    assert rig.modes[-1] == (uuid(0), DEFAULT)


async def test_a_card_is_held_until_its_mode_is_back(rig: Rig) -> None:
    one = share("a")
    await rig.create(one)
    assert rig.daemons.holdings() == ()

    def fails() -> None:
        raise HostError("the driver does not want to")

    rig.driver = fails
    rig.grants.clear()
    [holding] = rig.daemons.holdings()
    assert [device.uuid for device in holding.devices.gpus] == [uuid(0)]
    await rig.compare()
    assert rig.pid is None
    assert rig.daemons.holdings() == (holding,)
    assert rig.ending()
    rig.driver = lambda: None
    await rig.compare()
    assert rig.daemons.holdings() == ()
    assert not rig.ending()


async def test_a_new_share_takes_over_a_card_that_is_not_back_yet(rig: Rig) -> None:
    await rig.create(share("a"))
    rig.grants.clear()
    stop, start = asyncio.create_task(rig.compare()), asyncio.create_task(rig.create(share("b")))
    assert await start == Adjustment()
    await stop
    assert rig.pid is not None
    assert rig.daemons.holdings() == ()
    assert rig.modes[-1] == (uuid(0), EXCLUSIVE)


# daemons that hang, and failures


async def test_a_daemon_that_hangs_refuses_its_card_and_no_other(rig: Rig) -> None:
    await rig.create(share("a"))
    await rig.create(share("c", 1))
    rig.hangs = uuid(0)
    os.kill(rig.pid or 0, signal.SIGSTOP)
    hangs, other = await asyncio.gather(rig.create(share("b")), rig.create(share("d", 1)))
    assert refused(hangs).reason is Reason.ISOLATION_UNAVAILABLE
    assert other == Adjustment()
    rig.grants = [one for one in rig.grants if one.pod in {"c", "d"}]
    await _until(rig, lambda: not rig.ending())
    assert rig.pid is None  # the daemon was ended by force
    assert (uuid(0), DEFAULT) in rig.modes


async def test_a_comparison_does_not_wait_for_a_daemon_that_hangs(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemons_module, "_SCAN_S", 0.1)
    await rig.create(share("a"))
    os.kill(rig.pid or 0, signal.SIGSTOP)
    rig.grants.clear()
    began = time.monotonic()
    await rig.compare()
    assert time.monotonic() - began < PATIENT_S
    assert rig.ending()
    os.kill(rig.pid or 0, signal.SIGCONT)
    await _until(rig, lambda: not rig.ending())


async def test_a_program_that_never_starts_the_daemon_refuses(
    rig: Rig, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_module, "START_S", 0.3)
    rig.hangs = uuid(0)
    rig.command.write_text("#!/bin/sh\nexec sleep 60\n")
    results = [await rig.create(share("a"))]
    rig.command.write_text("#!/bin/sh\nexit 0\n")  # says that it has, and has not
    results.append(await rig.create(share("a")))
    rig.command.unlink()
    results.append(await rig.create(share("a")))
    rig.grants.clear()
    await rig.compare()
    assert rig.modes[-1] == (uuid(0), DEFAULT)
    assert not rig.ending()
    assert [refused(result).reason for result in results] == [Reason.ISOLATION_UNAVAILABLE] * 3
    assert [fields["pod_uid"] for fields in records.fields(Event.MPS_FAILED)] == ["a"] * 3


async def test_a_card_that_was_never_changed_is_not_checked_for_ever(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.grants.append(share("a"))

    async def stuck(*_: object) -> None:
        raise HostError("process 7 of MPS does not end")

    with monkeypatch.context() as patch:
        patch.setattr(Control, "quit", stuck)
        await rig.compare()
    assert rig.ending()
    rig.grants.clear()
    await rig.compare()
    assert not rig.ending()
    assert rig.modes == []


async def test_a_driver_that_does_not_set_the_mode_refuses(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemons_module, "_MODE_S", 0.2)
    answers = threading.Event()
    rig.driver = answers.wait
    assert refused(await rig.create(share("a"))).reason is Reason.ISOLATION_UNAVAILABLE
    assert rig.pid is None
    answers.set()


async def test_a_container_waits_for_a_bounded_time(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemons_module, "PREPARE_S", 0.2)
    answers = threading.Event()
    rig.driver = answers.wait
    refusal = refused(await rig.create(share("a")))
    answers.set()
    assert refusal.reason is Reason.ISOLATION_UNAVAILABLE
    assert "0.2 s" in refusal.message


async def test_a_folder_of_another_user_is_not_used(rig: Rig) -> None:
    Path(rig.folders.shm_dir).symlink_to("/tmp")
    assert refused(await rig.create(share("a"))).reason is Reason.ISOLATION_UNAVAILABLE


async def test_a_fault_makes_the_card_unhealthy_until_its_clients_are_deleted(rig: Rig, records: Records) -> None:
    node = inventory(gpus=(gpu(0), gpu(1)))
    await rig.create(share("a"))
    assert rig.daemons.shown(node) is node
    with client(rig.pipe) as program:
        program.answer()
        program.fault()
        await rig.compare()
        assert [bool(card.unhealthy) for card in rig.daemons.shown(node).gpus] == [True, False]
        assert rig.ending()
        assert refused(await rig.create(share("b"))).reason is Reason.DEVICE_UNHEALTHY
    await _until(rig, lambda: not rig.ending())
    assert rig.daemons.shown(node) is node
    assert await rig.create(share("b")) == Adjustment()
    assert records.events() == [Event.MPS_STARTED, Event.MPS_FAULT, Event.MPS_RECOVERED]


async def test_services_are_cards_that_need_a_daemon_or_have_one(rig: Rig) -> None:
    def shown() -> list[tuple[bool, int, bool, int]]:
        services = rig.daemons.services()
        assert {(one.name, one.card) for one in services} <= {("mps", uuid(0))}
        return [(one.runs, one.clients, one.fault, one.failures) for one in services]

    assert shown() == []
    rig.grants.append(share("a"))
    assert shown() == [(False, 0, False, 0)]
    await rig.create(rig.grants[0])
    with client(rig.pipe) as program:
        program.answer()
        await rig.compare()
        assert shown() == [(True, 1, False, 0)]
        program.fault()
        await rig.compare()
        assert shown() == [(True, 1, True, 0)]
    await _until(rig, lambda: not rig.ending())
    await rig.kill()
    assert shown() == [(False, 0, False, 0)]
    await rig.compare()
    assert shown() == [(True, 0, False, 1)]
    rig.grants.clear()
    await _until(rig, lambda: not rig.ending())
    assert shown() == [(False, 0, False, 1)]


def _runs(pid: int) -> bool:
    """Return whether the process runs; what is left of one that ended has no command line."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False


async def _until(rig: Rig, done: Callable[[], bool]) -> None:
    """Compare again and again, as the node does."""

    async def compared() -> bool:
        if not done():
            await rig.compare()
        return done()

    await await_until(compared, "what a comparison does", idle_s=30.0)


def test_other_isolations_have_no_daemon(rig: Rig) -> None:
    tokens = GrantedGpu(uuid=uuid(0), memory_mib=1, isolation=IsolationName.TOKENS)
    for gpus in ((tokens,), (GrantedGpu(uuid=uuid(0)),)):
        one = grant("a", devices=GrantedDevices(gpus=gpus))
        assert not rig.daemons.wants(Answer(adjustment=Adjustment(), grant=one))
    assert not rig.daemons.wants(Answer(adjustment=Adjustment()))
    assert not rig.daemons.has(Sandbox(id=SandboxId("s")))
