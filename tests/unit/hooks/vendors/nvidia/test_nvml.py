"""Test NVML by the real pynvml over the fake library."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from hooks.model.inventory import Driver, Gpu, Inventory
from hooks.vendors.nvidia.nvml import read_gpus, read_processes
from lading.errors import HostError
from lading.vocabulary import GpuUuid
from simnode.build import SimNode
from simnode.nvml import GPU_IS_LOST, Failure, NvmlState, Running
from tests.conftest import BuildNode

UNSUPPORTED, FUNCTION_NOT_FOUND, NO_PERMISSION, MISMATCH = 3, 13, 4, 18
LOST = "GPU-00000004-4c61-6469-6e67-000000007bc9"  # index 3, minor 1, 0000:3d:00.0


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "trace"
    monkeypatch.setenv("FAKE_NVML_TRACE", str(path))
    return path


class Read:
    """Read the cards of a simulated node while NVML answers as a test says."""

    def __init__(self, node: SimNode, library: Path) -> None:
        self.node = node
        self._library = library

    def __call__(self, *failures: Failure, **said: Any) -> tuple[Driver | None, tuple[Gpu, ...], tuple[str, ...]]:
        NvmlState(profile=self.node.profile, failures=failures, **said).write(self.node.nvml_state)
        return read_gpus(self.node.root, library=self._library)

    def unhealthy(self, **said: Any) -> list[int]:
        return [gpu.index for gpu in self(**said)[1] if gpu.unhealthy]


@pytest.fixture
def demo(build_node: BuildNode, fake_nvml: Path) -> Read:
    return Read(build_node("demo-8gpu"), fake_nvml)


@pytest.fixture
def workstation(build_node: BuildNode, fake_nvml: Path) -> Read:
    return Read(build_node("workstation"), fake_nvml)


@pytest.fixture
def divided(build_node: BuildNode, fake_nvml: Path) -> Read:
    """Return the node of two cards of which the first is in MIG mode."""
    return Read(build_node("mig"), fake_nvml)


def test_node_of_a_card_is_its_minors_not_its_indexs(demo: Read) -> None:
    _, gpus, problems = demo()
    assert [(gpu.index, gpu.node.path if gpu.node else None) for gpu in gpus] == [
        (index, f"/dev/nvidia{minor}") for index, minor in enumerate((2, 3, 0, 1, 6, 7, 4, 5))
    ]
    assert gpus[0].bdf == "0000:1a:00.0"
    assert gpus[0].usable_mib == 81559 - 551
    assert problems == ()


@pytest.mark.parametrize(
    "failure", [None, Failure(gpu=0, status=GPU_IS_LOST), Failure(function="nvmlDeviceGetCount_v2", status=999)]
)
def test_session_is_closed_after_every_poll(demo: Read, trace: Path, failure: Failure | None) -> None:
    demo(*filter(None, [failure]))
    assert trace.read_text() == "init 1\nshutdown 0\n"


def test_a_lost_gpu_is_unhealthy_and_comes_back(demo: Read) -> None:
    well = demo()
    driver, gpus, problems = demo(Failure(gpu=3, status=GPU_IS_LOST))
    assert driver == well[0]
    assert problems == ()
    assert [gpu.uuid for gpu in gpus if gpu.unhealthy] == [LOST]
    assert (gpus[3].index, gpus[3].minor, gpus[3].bdf, gpus[3].node) == (3, 1, "0000:3d:00.0", None)
    assert [gpu for gpu in gpus if gpu.uuid != LOST] == [gpu for gpu in well[1] if gpu.uuid != LOST]
    assert demo() == well


def test_a_card_that_fails_half_way_is_unhealthy(demo: Read) -> None:
    half_way = Failure(gpu=3, function="nvmlDeviceGetMemoryInfo_v2", status=999)
    _, gpus, _ = demo(half_way, Failure(gpu=5, function="nvmlDeviceGetHandleByIndex_v2", status=GPU_IS_LOST))
    assert [(gpu.index, gpu.unhealthy) for gpu in gpus if gpu.unhealthy] == [
        (3, "NVML: Unknown Error"),
        (5, "NVML: GPU is lost"),
    ]


def test_a_card_that_nvml_does_not_count_has_no_index(build_node: BuildNode, fake_nvml: Path) -> None:
    node = build_node("mig")
    whole = node.profile.gpus[1][1]
    # NVML sees one card only: the driver excluded the first.
    observed = NvmlState(profile=node.profile).render().splitlines()
    node.nvml_state.write_text("\n".join(line for line in observed if line.startswith("driver") or whole.uuid in line) + "\n")
    _, gpus, _ = read_gpus(node.root, library=fake_nvml)
    assert [(gpu.index, gpu.uuid == whole.uuid, bool(gpu.unhealthy)) for gpu in gpus] == [(-1, False, True), (0, True, False)]


def test_a_card_that_nothing_can_identify_is_a_problem(demo: Read) -> None:
    (demo.node.root / "proc/driver/nvidia/gpus/0000:3d:00.0/information").write_text("GPU UUID: \t GPU-????????-????\n")
    _, gpus, (problem,) = demo(Failure(gpu=3, status=GPU_IS_LOST))
    assert len(gpus) == 7
    assert "0000:3d:00.0" in problem


@pytest.mark.parametrize("memory", ["remap_failures", "remap_pending", "retired_pending"])
def test_memory_that_needs_a_repair_is_ill_health_until_the_reset(demo: Read, memory: str) -> None:
    assert demo.unhealthy(**{memory: (2,)}) == [2]
    assert demo()[1][2].node is not None
    assert demo.unhealthy() == []


def test_what_a_tenant_may_have_left(demo: Read) -> None:
    _, gpus, _ = demo(compute_modes={1: 3, 2: 2}, uncorrected={1: 0, 2: 7})
    assert [(gpu.compute_mode, gpu.uncorrected_errors) for gpu in gpus[:3]] == [
        ("", None),
        ("EXCLUSIVE_PROCESS", 0),
        ("PROHIBITED", 7),
    ]


@pytest.mark.parametrize("status", [UNSUPPORTED, FUNCTION_NOT_FOUND, NO_PERMISSION])
def test_what_a_card_does_not_tell_of_what_was_left_is_no_ill_health(workstation: Read, status: int) -> None:
    calls = ("nvmlDeviceGetComputeMode", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRetiredPagesPendingStatus")
    failures = tuple(Failure(gpu=0, function=function, status=status) for function in calls)
    _, (gpu,), problems = workstation(*failures, compute_modes={0: 3}, uncorrected={0: 7}, retired_pending=(0,))
    assert (gpu.compute_mode, gpu.uncorrected_errors, gpu.unhealthy, problems) == ("", None, "", ())


@pytest.mark.parametrize("status", [UNSUPPORTED, FUNCTION_NOT_FOUND])
def test_a_card_without_memory_of_its_own_has_the_hosts(workstation: Read, status: int) -> None:
    """Check GB10."""
    (workstation.node.root / "proc/meminfo").write_text("MemTotal:       125370516 kB\nMemFree:        1 kB\n")
    functions = ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetUtilizationRates")
    failures = tuple(Failure(gpu=0, function=function, status=status) for function in functions)
    _, (gpu,), problems = workstation(*failures)
    assert (gpu.unhealthy, gpu.memory_mib, gpu.used_mib, problems) == ("", 125370516 >> 10, None, ())


def test_a_card_whose_fabric_is_not_set_up_is_unhealthy(demo: Read) -> None:
    fabric = ((1, 1, 0), (2, 2, 0), (3, 3, 0), (4, 3, 999))  # not started, in progress, completed, failed
    assert demo.unhealthy(fabric=fabric) == [1, 2, 4]


def test_what_is_in_use(divided: Read) -> None:
    """Check a card in MIG mode too, which reports its memory and not how busy it is."""
    _, gpus, _ = divided(used={0: (3000, 50), 1: (12345, 97)})
    assert [(gpu.used_mib, gpu.busy_percent) for gpu in gpus] == [(3000, None), (12345, 97)]


def test_another_use_makes_no_other_card(workstation: Read) -> None:
    idle, busy = (workstation(used={0: use}) for use in ((0, 0), (4096, 100)))
    assert idle[1][0].used_mib != busy[1][0].used_mib
    assert idle == busy
    assert Inventory(gpus=idle[1]) == Inventory(gpus=busy[1])


@pytest.mark.parametrize("status", [UNSUPPORTED, NO_PERMISSION, GPU_IS_LOST])
def test_a_card_that_does_not_tell_its_use_is_well(workstation: Read, status: int) -> None:
    failure = Failure(gpu=0, function="nvmlDeviceGetUtilizationRates", status=status)
    _, (gpu,), problems = workstation(failure, used={0: (512, 5)})
    assert (gpu.used_mib, gpu.busy_percent, gpu.unhealthy, problems) == (512, None, "", ())


def test_a_use_that_cannot_be_is_not_reported(workstation: Read) -> None:
    _, (gpu,), problems = workstation(used={0: (2**43, 2**32 - 1)})
    assert (gpu.used_mib, gpu.busy_percent, gpu.unhealthy, problems) == (None, None, "", ())


@pytest.mark.parametrize("status", [UNSUPPORTED, FUNCTION_NOT_FOUND])
def test_what_a_card_does_not_support_is_no_ill_health(workstation: Read, status: int) -> None:
    optional = ("nvmlDeviceGetMigMode", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetMemoryInfo_v2")
    failures = tuple(Failure(gpu=0, function=function, status=status) for function in optional)
    _, (gpu,), problems = workstation(*failures)
    assert (gpu.unhealthy, gpu.memory_mib, gpu.reserved_mib, gpu.numa, gpu.used_mib) == ("", 49140, 0, None, None)
    assert problems == ()


def test_processes(divided: Read) -> None:
    _, gpus, _ = divided(processes={1: (4711, 42, 42)})
    assert [gpu.process_ids for gpu in gpus] == [(), (42, 4711)]


def test_the_memory_of_processes_also_of_mps_clients(divided: Read) -> None:
    running = {
        0: (Running(42, 1000, (1, 0)), Running(42, 500, (5, 0))),
        1: (Running(43, 700), Running(44, 30), 46, Running(45, 900, mps=True), Running(44, 800, mps=True)),
    }
    _, (split, card), _ = divided(processes=running)
    assert [(one.pid, one.instance, one.used_mib) for one in split.processes or ()] == [(42, (1, 0), 1000), (42, (5, 0), 500)]
    assert [(one.pid, one.instance, one.used_mib) for one in card.processes or ()] == [
        (43, None, 700),
        (44, None, 800),
        (45, None, 900),
        (46, None, None),
    ]


@pytest.mark.parametrize("status", [UNSUPPORTED, FUNCTION_NOT_FOUND])
def test_a_driver_without_a_list_of_mps_clients(workstation: Read, status: int) -> None:
    failure = Failure(gpu=0, function="nvmlDeviceGetMPSComputeRunningProcesses_v3", status=status)
    _, (gpu,), problems = workstation(failure, processes={0: (42,)})
    assert (gpu.process_ids, problems) == ((42,), ())


def test_another_memory_of_a_process_makes_no_other_card_and_another_process_does(workstation: Read) -> None:
    one, same, other = (workstation(processes={0: (Running(pid, mib),)})[1] for pid, mib in ((42, 1), (42, 2), (43, 1)))
    assert one == same
    assert one != other


def test_processes_of_some_cards_in_a_session_of_its_own(build_node: BuildNode, fake_nvml: Path, trace: Path) -> None:
    node = build_node("demo-8gpu")
    cards = [GpuUuid(card.uuid) for _, card in node.profile.gpus]
    failure = Failure(gpu=2, status=GPU_IS_LOST)
    running = {0: (Running(42, 5),), 2: (Running(43),), 3: (Running(44),)}
    NvmlState(profile=node.profile, processes=running, failures=(failure,)).write(node.nvml_state)
    result = read_processes([*cards[:3], GpuUuid("GPU-that-is-not-there")], library=fake_nvml)
    assert {cards.index(card): [one.pid for one in processes] for card, processes in result.items()} == {0: [42], 1: []}
    assert trace.read_text() == "init 1\nshutdown 0\n"
    broken = Failure(function="nvmlInitWithFlags", status=999)
    NvmlState(profile=node.profile, failures=(broken,)).write(node.nvml_state)
    with pytest.raises(HostError):
        read_processes(cards, library=fake_nvml)


@pytest.mark.parametrize("status", [UNSUPPORTED, FUNCTION_NOT_FOUND, NO_PERMISSION])
def test_processes_that_cannot_be_read_are_a_problem(workstation: Read, status: int) -> None:
    failure = Failure(gpu=0, function="nvmlDeviceGetComputeRunningProcesses_v3", status=status)
    _, (gpu,), (problem,) = workstation(failure)
    assert (gpu.unhealthy, gpu.processes) == ("", None)
    assert gpu.uuid in problem


def test_mig_instances_have_both_capability_nodes(divided: Read) -> None:
    _, (split, whole), problems = divided()
    assert (split.mig_enabled, whole.mig_enabled, whole.mig) == (True, False, ())
    assert [(mig.gpu_instance, mig.compute_instance, mig.memory_mib) for mig in split.mig] == [(1, 0, 40448), (5, 0, 20096)]
    assert [[(node.path, node.major, node.minor) for node in mig.nodes] for mig in split.mig] == [
        [("/dev/nvidia-caps/nvidia-cap147", 237, 147), ("/dev/nvidia-caps/nvidia-cap148", 237, 148)],
        [("/dev/nvidia-caps/nvidia-cap183", 237, 183), ("/dev/nvidia-caps/nvidia-cap184", 237, 184)],
    ]
    assert problems == ()


@pytest.mark.parametrize("status", [pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_FOUND])
def test_a_slot_without_an_instance_hides_no_other(divided: Read, status: int) -> None:
    _, (whole, *_), _ = divided()
    _, (card, *_), problems = divided(bad_mig={(0, 0): status, (0, 6): status})
    assert (card.unhealthy, problems) == ("", ())
    assert card.mig == whole.mig[1:]


def test_mig_profiles_are_the_drivers_names_or_computed(divided: Read) -> None:
    for unnamed in ((), (0,)):
        _, (split, _), _ = divided(unnamed_mig=unnamed)
        assert [mig.profile for mig in split.mig] == ["3g.40gb", "2g.20gb"]
    silent = Failure(gpu=0, function="nvmlDeviceGetAttributes_v2", status=UNSUPPORTED)
    _, (split, _), problems = divided(silent, unnamed_mig=(0,))
    assert [mig.profile for mig in split.mig] == ["", ""]
    assert (split.unhealthy, problems) == ("", ())


def test_a_card_that_is_on_no_board_has_no_module_id(workstation: Read) -> None:
    _, (gpu,), _ = workstation()  # NVML answers 0
    assert gpu.module_id is None


def test_mig_instance_without_its_nodes_is_not_offered(divided: Read) -> None:
    (divided.node.root / "dev/nvidia-caps/nvidia-cap148").unlink()
    _, (split, _), (problem,) = divided()
    assert [mig.gpu_instance for mig in split.mig] == [5]
    assert "MIG-00000051" in problem


def test_mig_capabilities_are_those_of_the_minor_not_of_the_index(divided: Read) -> None:
    table = divided.node.root / "proc/driver/nvidia-caps/mig-minors"
    table.write_text(table.read_text().replace("gpu1/", "gpu0/"))  # index 0 is minor 1
    _, (split, _), problems = divided()
    assert split.mig == ()
    assert len(problems) == 2


@pytest.mark.parametrize("damage", ["missing", "link", "number", "driver"])
def test_card_without_a_good_node_is_unhealthy(demo: Read, damage: str) -> None:
    dev = demo.node.root / "dev/nvidia2"
    match damage:
        case "missing":
            dev.unlink()
        case "link":
            dev.unlink()
            dev.symlink_to("nvidia3")
        case "number":
            dev.unlink()
            (demo.node.root / "dev/nvidia3").rename(dev)
        case _:
            (demo.node.root / "proc/devices").write_text("Character devices:\n")
    _, gpus, _ = demo()
    assert gpus[0].node is None
    assert "/dev/nvidia2" in gpus[0].unhealthy
    assert bool(gpus[2].unhealthy) == (damage == "driver")


def test_control_nodes_that_are_not_there_are_a_problem(workstation: Read) -> None:
    (workstation.node.root / "dev/nvidia-uvm").unlink()
    driver, _, (problem,) = workstation()
    assert driver is not None
    assert (driver.version, [control.path for control in driver.control]) == (
        "550.127.05",
        ["/dev/nvidiactl", "/dev/nvidia-uvm-tools"],
    )
    assert "/dev/nvidia-uvm" in problem


def test_a_driver_container_has_the_nodes_below_its_own_root(build_node: BuildNode, fake_nvml: Path, tmp_path: Path) -> None:
    node = build_node("workstation")
    (tmp_path / "driver").mkdir()
    (node.root / "dev").rename(tmp_path / "driver/dev")
    (node.root / "dev").mkdir()
    driver, gpus, problems = read_gpus(node.root, library=fake_nvml, driver_root=str(tmp_path / "driver"))
    assert driver
    assert [control.host_path for control in driver.control] == [str(tmp_path / f"driver{one.path}") for one in driver.control]
    assert [gpu.node and gpu.node.host_path for gpu in gpus] == [
        str(tmp_path / f"driver/dev/nvidia{gpu.minor}") for gpu in gpus
    ]
    assert [gpu.node and gpu.node.path for gpu in gpus] == [f"/dev/nvidia{gpu.minor}" for gpu in gpus]
    assert (len(driver.control), problems) == (3, ())


def test_a_driver_root_without_nodes_leaves_the_hosts(build_node: BuildNode, fake_nvml: Path, tmp_path: Path) -> None:
    node = build_node("workstation")
    (tmp_path / "driver/dev").mkdir(parents=True)  # a driver container that mounts no nodes there
    _, gpus, problems = read_gpus(node.root, library=fake_nvml, driver_root=str(tmp_path / "driver"))
    assert [gpu.node and gpu.node.host_path for gpu in gpus] == [f"{node.root}/dev/nvidia{gpu.minor}" for gpu in gpus]
    assert problems == ()


def test_driver_that_answers_no_session(demo: Read) -> None:
    driver, gpus, (problem,) = demo(Failure(function="nvmlInitWithFlags", status=MISMATCH))
    assert driver is None
    assert [gpu.index for gpu in gpus] == list(range(8))
    assert all(gpu.unhealthy for gpu in gpus)
    assert "lading-hooks" in problem  # the service to restart
    assert demo()[0] is not None


def test_node_without_the_driver_has_no_gpus(tmp_path: Path, fake_nvml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAKE_NVML_STATE", raising=False)  # NVML_ERROR_DRIVER_NOT_LOADED
    assert read_gpus(tmp_path, library=fake_nvml) == (None, (), ())
    assert read_gpus(tmp_path, library=tmp_path / "no-such-library") == (None, (), ())


def test_node_without_the_library_has_no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_library)
    assert read_gpus(tmp_path, library=None) == (None, (), ())


def test_loaded_driver_without_its_library_is_a_problem(build_node: BuildNode) -> None:
    node = build_node("workstation")
    missing = node.root / "no-such-library"
    driver, (gpu,), (problem,) = read_gpus(node.root, library=missing)
    assert driver is None
    assert gpu.unhealthy
    assert str(missing) in problem


def test_order_of_the_domains(build_node: BuildNode, fake_nvml: Path) -> None:
    node = build_node("workstation")
    ((bdf, card),) = node.profile.gpus
    text = NvmlState(profile=node.profile).render()
    node.nvml_state.write_text(text.replace("00000000:01:00.0", "00010000:01:00.0"))
    _, gpus, _ = read_gpus(node.root, library=fake_nvml)
    assert [(gpu.bdf, gpu.index) for gpu in gpus] == [(bdf, -1), ("10000:01:00.0", 0)]
    assert gpus[1].uuid == card.uuid
    assert replace(gpus[1], unhealthy="") == gpus[1]
