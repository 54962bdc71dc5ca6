from dataclasses import replace
from pathlib import Path

import pytest

from doctor.rdma import (
    MemlockReading,
    ModulesReading,
    RdmaModeReading,
    VfsReading,
    decide_memlock,
    decide_mode,
    decide_modules,
    decide_vfs,
)
from doctor.read_node import read_modules
from hooks.host.rdma import read_rdma
from hooks.model.attachment import RdmaMode
from hooks.model.inventory import Pf
from lading.checks.model import Verdict
from lading.vocabulary import PciAddress
from simnode.build import build
from tests.unit.doctor.verdicts import only, states
from tests.unit.hooks.inventories import vf

PF = Pf(bdf=PciAddress("0000:3b:00.0"), driver="mlx5_core", numa=0, ibdev="mlx5_0", total_vfs=8, vfs=(vf(0), vf(1)))
NEEDED = frozenset({"ib_core", "ib_uverbs", "rdma_ucm", "mlx5_ib"})


@pytest.mark.parametrize(
    ("pfs", "gpus", "modules", "expected", "mend"),
    [
        ((), True, frozenset(), [Verdict.OK], ""),
        ((PF,), False, NEEDED, [Verdict.OK], ""),
        ((PF,), True, NEEDED | {"nvidia_peermem"}, [Verdict.OK], ""),
        ((PF,), True, NEEDED, [Verdict.WARNING], "modprobe nvidia_peermem"),
        ((PF,), False, NEEDED - {"ib_uverbs"}, [Verdict.FAILED], "modprobe -a ib_uverbs"),
        ((replace(PF, driver="irdma"),), False, NEEDED - {"mlx5_ib"}, [Verdict.OK], ""),
    ],
)
def test_modules(pfs: tuple[Pf, ...], gpus: bool, modules: frozenset[str], expected: list[Verdict], mend: str) -> None:
    verdicts = tuple(decide_modules(ModulesReading(pfs=pfs, gpus=gpus, modules=modules)))
    assert states(verdicts) == expected
    assert mend in verdicts[0].mend


def test_modules_show_by_what_they_make(tmp_path: Path) -> None:
    """Check modules that are built in, which have no folder below /sys/module."""
    node = build("demo-8gpu", tmp_path / "node", char_devices=False)
    pfs, *_ = read_rdma(node.root)
    assert read_modules(node.root, pfs, gpus=True).modules == NEEDED
    assert not read_modules(node.root, pfs, gpus=True).dma_buf
    (node.root / "sys/module/nvidia_peermem").mkdir(parents=True)
    assert read_modules(node.root, pfs, gpus=True).modules == NEEDED | {"nvidia_peermem"}
    assert read_modules(tmp_path, (), gpus=False).modules == frozenset()


OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build"
PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Tue Jan 14"


@pytest.mark.parametrize(
    ("driver", "release", "dma_buf"),
    [
        (OPEN, "5.12.0", True),
        (OPEN, "6.8.0-60-generic", True),
        (OPEN, "5.4.0-200-generic", False),
        (OPEN, "", False),
        (PROPRIETARY, "6.8.0", False),
        ("", "6.8.0", False),
    ],
)
def test_nvidia_peermem_is_not_needed_with_dma_buf(tmp_path: Path, driver: str, release: str, dma_buf: bool) -> None:
    for path, text in (("proc/driver/nvidia/version", driver), ("proc/sys/kernel/osrelease", release)):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{text}\n")
    reading = replace(read_modules(tmp_path, (PF,), gpus=True), modules=NEEDED)
    assert reading.dma_buf == dma_buf
    assert states(tuple(decide_modules(reading))) == [Verdict.OK if dma_buf else Verdict.WARNING]


@pytest.mark.parametrize(
    ("pfs", "mode", "attaches", "state"),
    [
        ((), RdmaMode.NONE, False, Verdict.OK),
        ((PF,), None, True, Verdict.SKIPPED),
        ((PF,), RdmaMode.NONE, True, Verdict.FAILED),
        ((PF,), RdmaMode.SHARED, False, Verdict.OK),
        ((PF,), RdmaMode.EXCLUSIVE, True, Verdict.OK),
        ((PF,), RdmaMode.EXCLUSIVE, False, Verdict.FAILED),
    ],
)
def test_mode(pfs: tuple[Pf, ...], mode: RdmaMode | None, attaches: bool, state: Verdict) -> None:
    assert only(decide_mode(RdmaModeReading(pfs=pfs, mode=mode, attaches=attaches))).verdict is state


ILL = vf(1, unhealthy="why")


@pytest.mark.parametrize(
    ("changes", "expected", "mend"),
    [
        ({}, [Verdict.OK], ""),
        ({"unhealthy": "no port is active"}, [Verdict.FAILED, Verdict.OK], "ibstat mlx5_0"),
        ({"vfs": ()}, [Verdict.WARNING], "sriov_numvfs"),
        ({"vfs": (), "total_vfs": 0}, [Verdict.OK], ""),
        ({"vfs": (), "total_vfs": 0, "unhealthy": "no port is active"}, [Verdict.OK], ""),
        ({"vfs": (vf(0), replace(ILL, driver=""))}, [Verdict.FAILED], "drivers_probe"),
        ({"vfs": (vf(0), replace(ILL, driver="vfio-pci"))}, [Verdict.WARNING], "vfio-pci/unbind"),
        ({"vfs": (vf(0), replace(ILL, ibdev=""))}, [Verdict.FAILED], "mlx5_ib"),
        ({"vfs": (vf(0), replace(ILL, uverbs=None))}, [Verdict.FAILED], "ib_uverbs"),
        ({"vfs": (vf(0), ILL)}, [Verdict.FAILED], "vf 1 mac"),
    ],
)
def test_vfs(changes: dict[str, object], expected: list[Verdict], mend: str) -> None:
    verdicts = tuple(decide_vfs(VfsReading(pfs=(replace(PF, **changes),))))  # type: ignore[arg-type]
    assert states(verdicts) == expected
    assert mend in verdicts[0].mend


def test_a_pf_without_vfs_is_meant_where_others_have_some() -> None:
    assert states(decide_vfs(VfsReading(pfs=(PF, replace(PF, vfs=()))))) == [Verdict.OK]


def test_what_could_not_be_read_is_reported() -> None:
    assert states(decide_vfs(VfsReading(pfs=(PF,), problems=("cannot use /dev/infiniband/umad0",)))) == [
        Verdict.WARNING,
        Verdict.OK,
    ]
    assert states(decide_vfs(VfsReading(pfs=()))) == [Verdict.OK]


@pytest.mark.parametrize(
    ("vfs", "ipc_lock", "problem", "state"),
    [
        (False, False, "8192 KiB", Verdict.OK),
        (True, False, "", Verdict.OK),
        (True, True, "8192 KiB", Verdict.OK),
        (True, False, "8192 KiB", Verdict.FAILED),
    ],
)
def test_memlock(vfs: bool, ipc_lock: bool, problem: str, state: Verdict) -> None:
    assert only(decide_memlock(MemlockReading(vfs=vfs, ipc_lock=ipc_lock, problem=problem))).verdict is state
    assert only(decide_memlock(MemlockReading(vfs=vfs, ipc_lock=ipc_lock, memlock=True, problem=problem))).verdict is Verdict.OK
