"""Read the cards of a simulated node from the fake NVML, in the process that the doctor starts, and check the findings."""

import signal
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from doctor.nvidia import cards
from doctor.nvidia.cards import BadNode, CardsReading, NvmlReading, read_cards
from doctor.nvidia.gpus import (
    InjectionReading,
    LoaderCacheReading,
    OwnSpecs,
    ReloadReading,
    decide_cdi_specs,
    decide_driver,
    decide_driver_files,
    decide_gpu_nodes,
    decide_gpus,
    decide_loader_cache,
    decide_persistence,
    decide_reload,
)
from doctor.read_node import read_own_specs
from hooks.daemon.settings import Settings
from hooks.host.cdi_files import write_specs
from hooks.host.cdi_spec import make_spec
from hooks.host.devnodes import Cause
from hooks.model.cdi import CdiDevice, CdiMount, Edits
from hooks.vendors.nvidia.inject import GpuMode
from lading.checks.model import Verdict
from simnode.build import SimNode
from simnode.nvml import GPU_IS_LOST, Failure, NvmlState
from tests.conftest import BuildNode
from tests.unit.doctor.verdicts import only, states
from tests.unit.hooks.inventories import gpu, mig_gpu, mig_uuid, uuid

VERSION = "550.127.05"
WELL = CardsReading(
    on_bus=(gpu(0).bdf, gpu(1).bdf),
    loaded=True,
    module_version=VERSION,
    nvml=NvmlReading(library_version=VERSION, gpus=(gpu(0), gpu(1))),
)
NOTHING = CardsReading(nvml=NvmlReading(error=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))


def nvml(**changes: object) -> CardsReading:
    assert WELL.nvml
    return replace(WELL, nvml=replace(WELL.nvml, **changes))  # type: ignore[arg-type]


def test_the_process_that_asks_does_not_outlive_the_doctor_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "read_nvml", lambda *_: NvmlReading())
    try:
        cards.main("/", "", "", "8.0")
    finally:
        left_s = signal.alarm(0)
    assert 8 < left_s <= 8 + cards.LEFT_S


@pytest.mark.parametrize(
    ("reading", "state", "mend"),
    [
        (WELL, Verdict.OK, ""),
        (NOTHING, Verdict.OK, ""),
        (replace(NOTHING, on_bus=("0000:10:00.0",)), Verdict.FAILED, "modprobe nvidia"),
        (replace(WELL, nvml=None), Verdict.FAILED, "reboot"),
        (nvml(error=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, library_version=""), Verdict.FAILED, "rmmod"),
        (nvml(error=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND), Verdict.FAILED, "nvml_library"),
        (nvml(error=pynvml.NVML_ERROR_UNKNOWN), Verdict.FAILED, "dmesg"),
        (replace(WELL, module_version="550.90.07"), Verdict.FAILED, "rmmod"),
        (replace(WELL, module_version=""), Verdict.OK, ""),  # a driver that does not say
    ],
)
def test_driver(reading: CardsReading, state: Verdict, mend: str) -> None:
    verdict = only(decide_driver(reading))
    assert verdict.verdict is state
    assert mend in verdict.mend


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        (WELL, [Verdict.OK]),
        (NOTHING, [Verdict.OK]),
        (replace(WELL, nvml=None), [Verdict.SKIPPED]),
        (replace(WELL, loaded=False), [Verdict.SKIPPED]),
        (nvml(gpus=(gpu(0), gpu(1, unhealthy="a memory row"))), [Verdict.FAILED]),
        (nvml(gpus=(gpu(0), replace(gpu(1, unhealthy="NVML: lost"), node=None, memory_mib=0))), [Verdict.FAILED]),
        (nvml(gpus=(gpu(0), replace(gpu(1, unhealthy="no node"), node=None))), [Verdict.OK]),  # `gpu-nodes` says so
        (nvml(gpus=(gpu(0),)), [Verdict.FAILED, Verdict.OK]),  # one is on the bus only
    ],
)
def test_gpus(reading: CardsReading, expected: list[Verdict]) -> None:
    assert states(decide_gpus(reading)) == expected


UVM = BadNode(path="/dev/nvidia-uvm", cause=Cause.MISSING, why="cannot use /dev/nvidia-uvm: there is no such node")
CARD = BadNode(path="/dev/nvidia5", cause=Cause.MISSING, why="cannot use /dev/nvidia5: there is no such node", card=5)


def with_nodes(*nodes: BadNode) -> CardsReading:
    return replace(WELL, bad_nodes=nodes)


@pytest.mark.parametrize(
    ("reading", "state", "mend"),
    [
        (WELL, Verdict.OK, ""),
        (NOTHING, Verdict.OK, ""),
        (replace(WELL, nvml=None), Verdict.OK, ""),  # they are looked at without it
        (replace(with_nodes(UVM), nvml=None), Verdict.FAILED, "nvidia-modprobe -c 0 -u "),
        (with_nodes(CARD), Verdict.FAILED, "nvidia-modprobe -c 5 "),
        (with_nodes(UVM, CARD), Verdict.FAILED, "nvidia-modprobe -c 0 -c 5 -u "),
        (with_nodes(replace(CARD, cause=Cause.WRONG_NUMBER)), Verdict.FAILED, "rm -f /dev/nvidia5; nvidia-modprobe -c 5 "),
        (with_nodes(replace(CARD, cause=Cause.LINK)), Verdict.FAILED, "ls -l /dev/nvidia5"),
    ],
)
def test_nodes(reading: CardsReading, state: Verdict, mend: str) -> None:
    verdict = only(decide_gpu_nodes(reading))
    assert verdict.verdict is state
    assert mend in verdict.mend


def test_a_removal_is_printed_only_for_what_was_observed_to_be_wrong() -> None:
    for cause in Cause:
        verdict = only(decide_gpu_nodes(with_nodes(replace(CARD, cause=cause))))
        assert ("rm " in verdict.mend) is (cause in {Cause.WRONG_NUMBER, Cause.NOT_A_CHAR_DEVICE})


def test_what_is_wrong_with_several_nodes_is_reported_once() -> None:
    cards = [replace(CARD, path=f"/dev/nvidia{n}", why=CARD.why.replace("5", str(n)), card=n) for n in range(8)]
    what = only(decide_gpu_nodes(with_nodes(*cards))).what
    assert what.count("there is no such node") == 1
    assert all(node.path in what for node in cards)


def test_cards_that_are_ill_for_one_reason_are_one_finding() -> None:
    ill = [gpu(n, unhealthy="NVML: GPU is lost") for n in range(3)] + [gpu(3, unhealthy="a memory row")]
    several, one = decide_gpus(nvml(gpus=tuple(ill)))
    assert [several.what.count(card.bdf) for card in ill] == [1, 1, 1, 0]
    assert ill[3].uuid in one.what


def test_without_a_session_only_what_needs_none_is_reported(
    build_node: BuildNode, fake_nvml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the most frequent failure: the driver was upgraded, and its device nodes are as before."""
    node, mismatch = build_node("demo-8gpu"), pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    NvmlState(profile=node.profile, failures=(Failure(function="nvmlInitWithFlags", status=mismatch),)).write(node.nvml_state)
    reading = read(node, fake_nvml, monkeypatch)
    assert states(decide_driver(reading)) == [Verdict.FAILED]
    assert states(decide_gpu_nodes(reading)) == [Verdict.OK]
    assert states(decide_gpus(reading)) == states(decide_persistence(reading)) == [Verdict.SKIPPED]
    (node.root / "dev/nvidia3").unlink()
    verdict = only(decide_gpu_nodes(read(node, fake_nvml, monkeypatch)))
    assert (verdict.verdict, "rm " in verdict.mend, "-c 3 " in verdict.mend) == (Verdict.FAILED, False, True)


@pytest.mark.parametrize(("reading", "state"), [(WELL, Verdict.OK), (nvml(not_persistent=(uuid(0),)), Verdict.WARNING)])
def test_persistence(reading: CardsReading, state: Verdict) -> None:
    assert only(decide_persistence(reading)).verdict is state


@pytest.mark.parametrize(
    ("mode", "root", "folder", "state", "shown"),
    [
        (GpuMode.DEVICES, "", "/usr/local/nvidia/lib64", Verdict.OK, "/usr/local/nvidia/lib64 (known folder of AKS)"),
        (GpuMode.DEVICES, "", "", Verdict.FAILED, "on the host"),
        (GpuMode.DEVICES, "/driver", "", Verdict.FAILED, "driver_root /driver"),
        (GpuMode.CDI, "", "", Verdict.FAILED, "on the host"),
        (GpuMode.NVIDIA_RUNTIME, "", "", Verdict.OK, "not needed"),
    ],
)
def test_driver_files(mode: GpuMode, root: str, folder: str, state: Verdict, shown: str) -> None:
    reading = InjectionReading(
        mode=mode,
        cards=WELL,
        driver_root=root,
        libraries=12,
        folder=folder,
        source=folder and "known folder of AKS",
        own=OwnSpecs(folder="/var/run/cdi") if mode is GpuMode.CDI else None,
    )
    verdict = only(decide_driver_files(reading))
    assert verdict.verdict is state
    assert shown in verdict.what


@pytest.mark.parametrize(
    ("reading", "verdict", "says"),
    [
        (LoaderCacheReading(gives_files=False, by_hook=True), Verdict.OK, "not needed"),
        (LoaderCacheReading(gives_files=True, by_hook=False), Verdict.OK, "gpu_mode = cdi or front_end = nri"),
        (LoaderCacheReading(gives_files=True, by_hook=True), Verdict.WARNING, "no lading-ldcache"),
        (LoaderCacheReading(gives_files=True, by_hook=True, program="/x"), Verdict.WARNING, "no /x that may be run"),
        (LoaderCacheReading(gives_files=True, by_hook=True, program="/x", usable=True), Verdict.OK, "runs /x"),
    ],
)
def test_the_loaders_cache_of_containers(reading: LoaderCacheReading, verdict: Verdict, says: str) -> None:
    finding = only(decide_loader_cache(reading))
    assert finding.verdict is verdict
    assert says in finding.what


def test_driver_files_of_another_version_than_the_module_that_runs() -> None:
    """Check it where NVML does not answer too, as with such a library."""
    mismatch = nvml(error=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, library_version="")
    reading = InjectionReading(mode=GpuMode.DEVICES, cards=mismatch, driver_root="/", versions=("560.35.03",))
    verdict = only(decide_driver_files(reading))
    assert verdict.verdict is Verdict.FAILED
    assert VERSION in verdict.what
    assert "560.35.03" in verdict.what


@pytest.mark.parametrize(
    ("mode", "systemd", "state"),
    [
        (GpuMode.NVIDIA_RUNTIME, True, Verdict.WARNING),
        (GpuMode.NVIDIA_RUNTIME, False, Verdict.OK),
        (GpuMode.NVIDIA_RUNTIME, None, Verdict.SKIPPED),
        (GpuMode.DEVICES, True, Verdict.OK),
        (GpuMode.CDI, True, Verdict.OK),
    ],
)
def test_a_reload_of_systemd_takes_what_the_specification_does_not_have(
    mode: GpuMode, systemd: bool | None, state: Verdict
) -> None:
    assert only(decide_reload(ReloadReading(mode=mode, systemd=systemd))).verdict is state


def test_every_device_has_a_cdi_name() -> None:
    with_mig = nvml(gpus=(gpu(0), mig_gpu(1, instances=1)))
    names = frozenset(f"nvidia.com/gpu={name}" for name in (uuid(0), mig_uuid(10)))
    reading = InjectionReading(mode=GpuMode.CDI, cards=with_mig, spec_dirs=("/etc/cdi",), cdi_names=names)
    assert only(decide_cdi_specs(reading)).verdict is Verdict.OK
    for name in names:
        assert only(decide_cdi_specs(replace(reading, cdi_names=names - {name}))).verdict is Verdict.FAILED
    assert only(decide_cdi_specs(replace(reading, mode=GpuMode.DEVICES, cdi_names=frozenset()))).verdict is Verdict.OK


OWN_NAMES = frozenset({f"lading.dev/gpu={uuid(0)}", f"lading.dev/mig={mig_uuid(10)}"})
OWN = OwnSpecs(folder="/var/run/cdi", libraries=frozenset({f"libcuda.so.{VERSION}"}), hooked=True, hook="/usr/bin/h")


@pytest.mark.parametrize(
    ("own", "names", "state", "named"),
    [
        (OWN, OWN_NAMES, Verdict.OK, "all of 2"),
        (replace(OWN, hooked=False), OWN_NAMES, Verdict.OK, "/usr/bin/h"),
        (OWN, frozenset({f"lading.dev/gpu={uuid(0)}"}), Verdict.FAILED, mig_uuid(10)),
        (OWN, frozenset({f"nvidia.com/gpu={uuid(0)}"}), Verdict.FAILED, "2 of 2"),
        (replace(OWN, invalid=("/x.json: invalid CDI spec",)), OWN_NAMES, Verdict.FAILED, "/x.json"),
        (replace(OWN, missing=("/dev/nvidia9",)), OWN_NAMES, Verdict.FAILED, "/dev/nvidia9"),
        (replace(OWN, libraries=frozenset({"libcuda.so.1.2"})), OWN_NAMES, Verdict.FAILED, VERSION),
    ],
)
def test_ladings_own_specs_are_those_of_this_moment(own: OwnSpecs, names: frozenset[str], state: Verdict, named: str) -> None:
    with_mig = nvml(gpus=(gpu(0), mig_gpu(1, instances=1)))
    verdict = only(decide_cdi_specs(InjectionReading(mode=GpuMode.CDI, cards=with_mig, cdi_names=names, own=own)))
    assert verdict.verdict is state
    assert named in verdict.what
    assert bool(verdict.mend) is (state is Verdict.FAILED)


def test_what_is_in_the_specs_is_searched(tmp_path: Path) -> None:
    settings = Settings(cdi_dir=str(tmp_path), cdi_hook="/usr/bin/h")
    assert read_own_specs(settings) == OwnSpecs(folder=str(tmp_path), hook="/usr/bin/h")
    there = tmp_path / "libcuda.so.1"
    there.touch()
    mounts = [
        CdiMount(host_path=str(path), container_path=f"/usr/lib/{path.name}", options=("ro", "nosuid"))
        for path in (there, tmp_path / "gone.so.1")
    ]
    device = CdiDevice(name="a", container_edits=Edits(mounts=tuple(mounts)))
    spec, _ = make_spec("lading.dev/gpu", Edits(), [device])
    assert spec is not None
    write_specs(tmp_path, [spec])
    reading = read_own_specs(settings)
    assert (reading.missing, reading.libraries) == ((str(tmp_path / "gone.so.1"),), frozenset({"libcuda.so.1", "gone.so.1"}))
    (tmp_path / "lading.dev-mig.json").write_text("{}")
    assert "lading.dev-mig.json" in read_own_specs(settings).invalid[0]


# ---- read


def read(node: SimNode, library: Path | str, monkeypatch: pytest.MonkeyPatch) -> CardsReading:
    monkeypatch.setenv("FAKE_NVML_STATE", str(node.nvml_state))
    return read_cards(node.root, library=str(library))


def test_a_node_as_its_process_reads_it(build_node: BuildNode, fake_nvml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = read(build_node("demo-8gpu"), fake_nvml, monkeypatch)
    assert reading.nvml
    assert reading.on_bus == tuple(gpu.bdf for gpu in reading.nvml.gpus)
    assert (reading.module_version, reading.nvml.library_version, len(reading.on_bus)) == (VERSION, VERSION, 8)
    assert states(decide_gpu_nodes(reading)) == [Verdict.OK]


def test_a_card_that_is_lost(build_node: BuildNode, fake_nvml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = build_node("demo-8gpu")
    NvmlState(profile=node.profile, failures=(Failure(gpu=3, status=GPU_IS_LOST),)).write(node.nvml_state)
    reading = read(node, fake_nvml, monkeypatch)
    assert states(decide_gpus(reading)) == [Verdict.FAILED]
    assert states(decide_gpu_nodes(reading)) == [Verdict.OK]


def test_a_library_of_another_version(build_node: BuildNode, fake_nvml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, mismatch = build_node("demo-8gpu"), pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    NvmlState(profile=node.profile, failures=(Failure(function="nvmlInitWithFlags", status=mismatch),)).write(node.nvml_state)
    reading = read(node, fake_nvml, monkeypatch)
    assert reading.nvml
    assert reading.nvml.error == mismatch


def test_no_library(build_node: BuildNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = read(build_node("demo-8gpu"), tmp_path / "none.so", monkeypatch)
    assert reading.nvml
    assert reading.nvml.error == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND


def test_a_driver_that_hangs_is_not_waited_for(build_node: BuildNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = tmp_path / "python"
    stuck.write_text("#!/bin/sh\nexec sleep 60\n")
    stuck.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(stuck))
    monkeypatch.setattr(cards, "ANSWER_S", 0.2)
    assert read(build_node("demo-8gpu"), "", monkeypatch).nvml is None


@pytest.mark.parametrize(
    "text",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.127.05  Tue Oct  8 03:22:07 UTC 2024",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.127.05  Release Build  (dvs-builder@U16)",
    ],
)
def test_the_kernel_modules_version(build_node: BuildNode, fake_nvml: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    node = build_node("workstation")
    (node.root / "proc/driver/nvidia/version").write_text(f"{text}\nGCC version:  gcc version 12\n")
    assert read(node, fake_nvml, monkeypatch).module_version == VERSION
