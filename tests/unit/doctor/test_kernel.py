from pathlib import Path

import pytest

from doctor.kernel import CgroupMode, CgroupsReading, ClockReading, SelinuxReading, decide_cgroups, decide_clock, decide_selinux
from doctor.read_node import read_cgroups, read_clock, read_selinux
from lading.checks.model import Verdict
from tests.unit.doctor.verdicts import only

CONTROLLERS, BPF, V1 = "sys/fs/cgroup/cgroup.controllers", "proc/sys/kernel/unprivileged_bpf_disabled", "proc/cgroups"
HEADING = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n"


@pytest.mark.parametrize(
    ("files", "reading", "state"),
    [
        ({CONTROLLERS: "cpu memory", BPF: "2"}, CgroupsReading(mode=CgroupMode.V2, devices=True), Verdict.OK),
        ({CONTROLLERS: "cpu memory"}, CgroupsReading(mode=CgroupMode.V2), Verdict.FAILED),
        ({V1: f"{HEADING}devices\t4\t90\t1\n"}, CgroupsReading(mode=CgroupMode.V1, devices=True), Verdict.OK),
        ({V1: f"{HEADING}devices\t4\t90\t0\n"}, CgroupsReading(mode=CgroupMode.V1), Verdict.FAILED),
        ({}, CgroupsReading(mode=CgroupMode.UNKNOWN), Verdict.SKIPPED),
    ],
)
def test_cgroups(tmp_path: Path, files: dict[str, str], reading: CgroupsReading, state: Verdict) -> None:
    write(tmp_path, files)
    assert read_cgroups(tmp_path) == reading
    assert only(decide_cgroups(reading)).verdict is state


@pytest.mark.parametrize(
    ("enforce", "boolean", "state"),
    [
        ("", "", Verdict.OK),
        ("0", "0 0", Verdict.OK),
        ("1", "1 1", Verdict.OK),
        ("1", "", Verdict.OK),
        ("1", "0 0", Verdict.WARNING),
    ],
)
def test_selinux(tmp_path: Path, enforce: str, boolean: str, state: Verdict) -> None:
    folder = "sys/fs/selinux"
    files = {f"{folder}/enforce": enforce, f"{folder}/booleans/container_use_devices": boolean}
    write(tmp_path, {name: text for name, text in files.items() if text})
    assert only(decide_selinux(read_selinux(tmp_path))).verdict is state


def test_no_selinux() -> None:
    assert only(decide_selinux(SelinuxReading())).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("reading", "state"),
    [
        (ClockReading(synchronised=True, max_error_s=0.02), Verdict.OK),
        (ClockReading(synchronised=True, max_error_s=3), Verdict.WARNING),
        (ClockReading(synchronised=False, max_error_s=16), Verdict.WARNING),
    ],
)
def test_clock(reading: ClockReading, state: Verdict) -> None:
    assert only(decide_clock(reading)).verdict is state


def test_this_machines_clock() -> None:
    """Read this machine's clock. The kernel lets maxerror grow to 16 s (NTP_PHASE_LIMIT) while nothing disciplines the
    clock."""
    assert 0 <= read_clock().max_error_s <= 16


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
