"""Test the MPS daemons of cards: the simulated programs as real processes, and the verdicts about them."""

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from doctor.mps import DaemonReading, MemoryReading, MpsReading, decide_mps, read_memory, read_mps
from hooks.isolation.mps import MpsFolders
from hooks.model.inventory import GpuProcess
from hooks.mps import control as control_module
from hooks.mps.control import Control
from lading.checks.model import Verdict
from lading.devices.isolation import MPS_CLIENTS
from lading.sharestatus import ShareUse
from simnode.mps import SYSTEMD_RUN, client, install_fake_mps
from tests.unit.doctor.verdicts import only, states
from tests.unit.hooks.inventories import gpu, uuid

WELL = DaemonReading(uuid=uuid(0), runs=True, clients=2)
OFFERED = MpsReading(offered=True, command="/usr/bin/nvidia-cuda-mps-control", daemons=(WELL,))


@pytest.fixture
def control(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Control]:
    """Start a daemon that runs and answers."""
    monkeypatch.setattr(control_module, "START_S", 30.0)
    command = install_fake_mps(short_folder / "bin")
    folders = MpsFolders(mps_dir=f"{short_folder}/mps", shm_dir=f"{short_folder}/shm")
    run = str(command.with_name(SYSTEMD_RUN))
    one = Control(uuid=uuid(0), folders=folders, command=str(command), systemd_run=run, answer_s=30.0)
    one.make_folders()
    asyncio.run(one.start())
    pid = one.pid()
    assert pid
    yield one
    os.kill(pid, signal.SIGCONT)
    asyncio.run(replace(one, answer_s=1.0).quit(()))


def reading(control: Control, root: Path, *, answer_s: float = 30.0) -> MpsReading:
    return asyncio.run(read_mps(control.folders, control.command, offered=True, root=root, answer_s=answer_s))


def test_a_daemon_is_asked_for_its_clients_and_a_fault(control: Control, tmp_path: Path) -> None:
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    pipe = Path(control.folders.pipe(control.uuid))
    with client(pipe) as program:
        program.answer()
        result = reading(control, tmp_path)
        (daemon,) = result.daemons
        assert (daemon.uuid, daemon.runs, daemon.clients, len(daemon.servers)) == (uuid(0), True, 1, 1)
        assert "daemons: 1, processes that use cards by them: 1" in only(decide_mps(result)).what
        program.fault()
        assert "blocks" in only(decide_mps(reading(control, tmp_path))).what


def test_a_daemon_that_hangs_or_is_deleted_is_found(control: Control, tmp_path: Path) -> None:
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    pid = control.pid()
    assert pid
    os.kill(pid, signal.SIGSTOP)
    assert "KILL" in only(decide_mps(reading(control, tmp_path, answer_s=0.5))).mend
    os.kill(pid, signal.SIGKILL)
    while control.pid() is not None:
        os.sched_yield()
    assert "mps.failed" in only(decide_mps(reading(control, tmp_path))).mend


def test_a_node_without_mps_needs_none_of_it() -> None:
    assert only(decide_mps(MpsReading(offered=False, executable=False, systemd=False))).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("found", "state", "words"),
    [
        (OFFERED, Verdict.OK, "by them: 2"),
        (replace(OFFERED, daemons=()), Verdict.OK, "no card"),
        (replace(OFFERED, executable=False), Verdict.FAILED, "mps_control"),
        (replace(OFFERED, systemd=False), Verdict.FAILED, "systemd"),
        (replace(OFFERED, daemons=(replace(WELL, clients=MPS_CLIENTS),)), Verdict.WARNING, "48"),
        (replace(OFFERED, offered=False, daemons=(replace(WELL, runs=False),)), Verdict.FAILED, "does not run"),
    ],
)
def test_what_is_wrong_is_reported(found: MpsReading, state: Verdict, words: str) -> None:
    verdict = only(decide_mps(found))
    assert verdict.verdict is state
    assert words in verdict.what


def use(memory_limit_mib: int) -> ShareUse:
    return ShareUse(
        namespace="n", pod="p", pod_uid="u", container="c", gpu=uuid(0), request_percent=0, limit_percent=100, held_s=0.0,
        has_turn=False, waiters=0, turns=False, memory_used_mib=0, memory_limit_mib=memory_limit_mib, processes=0,
    )  # fmt: skip


def test_shares_that_leave_no_place_for_the_server_are_reported() -> None:
    card = replace(gpu(0), processes=(GpuProcess(pid=7, used_mib=300), GpuProcess(pid=8, used_mib=1000)))
    daemon, rest = replace(WELL, servers=(7,)), card.usable_mib - 300
    memory = MemoryReading(uses=(use(1000), use(rest - 1000)), gpus=(card,))
    assert only(decide_mps(replace(OFFERED, daemons=(daemon,), memory=memory))).verdict is Verdict.OK
    full = replace(memory, uses=(use(1000), use(rest - 999)))
    finding = only(decide_mps(replace(OFFERED, daemons=(daemon,), memory=full)))
    assert finding.verdict is Verdict.WARNING
    assert "MPS server 300" in finding.what


def test_a_share_server_that_does_not_answer_is_reported(tmp_path: Path) -> None:
    memory = asyncio.run(read_memory(tmp_path / "shares.sock", ()))
    finding = only(decide_mps(replace(OFFERED, memory=memory)))
    assert finding.verdict is Verdict.FAILED
    assert "lading-shares" in finding.mend


def test_each_daemon_is_a_finding_of_its_own() -> None:
    two = (replace(WELL, fault=True), replace(WELL, uuid=uuid(1), problem="no answer"))
    assert states(decide_mps(replace(OFFERED, daemons=two))) == [Verdict.FAILED] * 2
