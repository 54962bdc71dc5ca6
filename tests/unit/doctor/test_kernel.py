from pathlib import Path

import pytest

from doctor.kernel import (
    CgroupMode,
    CgroupsSeen,
    ClockSeen,
    SelinuxSeen,
    decide_cgroups,
    decide_clock,
    decide_selinux,
)
from doctor.model import State
from doctor.read_node import read_cgroups, read_clock, read_selinux
from tests.unit.doctor.verdicts import only

CONTROLLERS, BPF, V1 = "sys/fs/cgroup/cgroup.controllers", "proc/sys/kernel/unprivileged_bpf_disabled", "proc/cgroups"
HEADING = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n"


@pytest.mark.parametrize(
    ("files", "seen", "state"),
    [
        ({CONTROLLERS: "cpu memory", BPF: "2"}, CgroupsSeen(mode=CgroupMode.V2, devices=True), State.OK),
        ({CONTROLLERS: "cpu memory"}, CgroupsSeen(mode=CgroupMode.V2), State.FAILED),
        ({V1: f"{HEADING}devices\t4\t90\t1\n"}, CgroupsSeen(mode=CgroupMode.V1, devices=True), State.OK),
        ({V1: f"{HEADING}devices\t4\t90\t0\n"}, CgroupsSeen(mode=CgroupMode.V1), State.FAILED),
        ({}, CgroupsSeen(mode=CgroupMode.UNKNOWN), State.SKIPPED),
    ],
)
def test_cgroups(tmp_path: Path, files: dict[str, str], seen: CgroupsSeen, state: State) -> None:
    write(tmp_path, files)
    assert read_cgroups(tmp_path) == seen
    assert only(decide_cgroups(seen)).state is state


@pytest.mark.parametrize(
    ("enforce", "boolean", "state"),
    [("", "", State.OK), ("0", "0 0", State.OK), ("1", "1 1", State.OK), ("1", "", State.OK), ("1", "0 0", State.WARNING)],
)
def test_selinux(tmp_path: Path, enforce: str, boolean: str, state: State) -> None:
    folder = "sys/fs/selinux"
    files = {f"{folder}/enforce": enforce, f"{folder}/booleans/container_use_devices": boolean}
    write(tmp_path, {name: text for name, text in files.items() if text})
    assert only(decide_selinux(read_selinux(tmp_path))).state is state


def test_no_selinux() -> None:
    assert only(decide_selinux(SelinuxSeen())).state is State.OK


@pytest.mark.parametrize(
    ("seen", "state"),
    [
        (ClockSeen(synchronised=True, max_error_s=0.02), State.OK),
        (ClockSeen(synchronised=True, max_error_s=3), State.WARNING),
        (ClockSeen(synchronised=False, max_error_s=16), State.WARNING),
    ],
)
def test_clock(seen: ClockSeen, state: State) -> None:
    assert only(decide_clock(seen)).state is state


def test_this_machines_clock() -> None:
    """The kernel lets maxerror grow to 16 s (NTP_PHASE_LIMIT) while no one keeps it."""
    assert 0 <= read_clock().max_error_s <= 16


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
