"""Test limits of memory that the driver keeps, by the real pynvml on the fake NVML, with a folder for the kernel's cgroups."""

from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from hooks.vendors.nvidia.memory_limits import LimitProbe, limit_memory
from hooks.vendors.nvidia.settings import NvidiaSettings
from hooks.vendors.nvidia.vendor import Nvidia
from lading.errors import HostError
from lading.vocabulary import GpuUuid
from simnode.build import SimNode
from simnode.nvml import Failure, NvmlState
from tests.conftest import BuildNode

NO_PERMISSION = pynvml.NVML_ERROR_NO_PERMISSION
SET = "nvmlDeviceSetMemoryLimits_v1"


class Driver:
    def __init__(self, node: SimNode, library: Path) -> None:
        self.node, self.library = node, library
        self.cgroups = node.root / "sys/fs/cgroup"
        self.cgroups.mkdir(parents=True)
        (self.cgroups / "cgroup.controllers").write_text("cpu memory dmem\n")
        self.state = NvmlState(profile=node.profile)
        self.probe = LimitProbe(required=True)

    def says(self, **state: object) -> None:
        self.state = replace(self.state, **state)  # type: ignore[arg-type]
        self.state.write(self.node.nvml_state)

    def card(self, index: int) -> GpuUuid:
        return GpuUuid(self.node.profile.gpus[index][1].uuid)

    def cgroup(self, name: str) -> Path:
        folder = self.cgroups / name
        folder.mkdir(parents=True)
        return folder

    def limit(self, index: int, cgroup: Path, limit_mib: int | None) -> None:
        limit_memory(self.card(index), cgroup, limit_mib, library=self.library)

    def scan(self) -> tuple[list[bool], tuple[str, ...]]:
        """Return which of the first cards are limited, and the problems."""
        result = Nvidia(NvidiaSettings(nvml_library=str(self.library)), limits=self.probe).read(self.node.root)
        return [gpu.limits_memory for gpu in result.gpus[:3]], tuple(one for one in result.problems if "limit" in one)


@pytest.fixture
def driver(build_node: BuildNode, fake_nvml: Path) -> Driver:
    return Driver(build_node("demo-8gpu"), fake_nvml)


def test_a_limit_is_in_the_cgroup_beside_those_of_other_cards(driver: Driver) -> None:
    driver.says(memory_limits={0: 0, 1: 0})
    pod = driver.cgroup("pod")
    driver.limit(0, pod, 8192)
    driver.limit(1, pod, 1024)
    driver.limit(0, pod, 4096)
    first, second = (f"nvidia/{driver.node.profile.gpus[index][0]}/vidmem" for index in range(2))
    assert sorted((pod / "dmem.max").read_text().splitlines()) == sorted([f"{first} {4096 << 20}", f"{second} {1024 << 20}"])
    driver.limit(0, pod, None)
    assert (pod / "dmem.max").read_text() == f"{second} {1024 << 20}\n"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({}, "Not Supported"),
        ({"memory_limits": {0: 4096}}, "was given a limit of 1073741824 bytes"),
        ({"memory_limits": {0: 0}, "failures": (Failure(gpu=0, function=SET, status=NO_PERMISSION),)}, "Permission"),
    ],
)
def test_a_limit_that_is_not_kept_is_an_error(driver: Driver, state: dict[str, object], words: str) -> None:
    driver.says(**state)
    with pytest.raises(HostError, match=words):
        driver.limit(0, driver.cgroup("pod"), 1024)


def test_a_cgroup_that_is_deleted_is_an_error(driver: Driver) -> None:
    driver.says(memory_limits={0: 0})
    with pytest.raises(HostError, match="cannot limit"):
        driver.limit(0, driver.cgroups / "gone", 1024)


def test_what_works_is_tried_once_and_for_each_card(driver: Driver) -> None:
    driver.says(memory_limits={0: 0, 2: 0})
    limited, problems = driver.scan()
    assert limited == [True, False, True]
    assert any(driver.card(1) in problem for problem in problems)
    driver.says(failures=(Failure(gpu=0, function=SET, status=NO_PERMISSION),))
    assert driver.scan()[0] == [True, False, True]


def test_a_failure_is_tried_again(driver: Driver) -> None:
    driver.says(memory_limits={0: 0}, failures=(Failure(gpu=0, function=SET, status=NO_PERMISSION),))
    limited, problems = driver.scan()
    assert not any(limited)
    assert any("Permission" in problem for problem in problems)
    driver.says(failures=())
    assert driver.scan()[0] == [True, False, False]


def test_a_driver_that_keeps_another_limit_does_not_work(driver: Driver) -> None:
    driver.says(memory_limits={0: 1})
    assert driver.scan()[0][0] is False


def test_without_cgroup_v2_no_card_is_limited(driver: Driver) -> None:
    driver.says(memory_limits={0: 0})
    (driver.cgroups / "cgroup.controllers").unlink()
    limited, problems = driver.scan()
    assert not any(limited)
    assert all("cgroup v2" in problem for problem in problems)
    assert len(problems) == len(driver.node.profile.gpus)


def test_where_it_is_not_required_its_absence_is_no_problem(driver: Driver) -> None:
    driver.says()
    driver.probe = LimitProbe()
    assert driver.scan() == ([False] * 3, ())


def test_a_card_in_mig_mode_is_not_tried(build_node: BuildNode, fake_nvml: Path) -> None:
    driver = Driver(build_node("mig"), fake_nvml)
    driver.says(memory_limits=dict.fromkeys(range(len(driver.node.profile.gpus)), 0))
    result = Nvidia(NvidiaSettings(nvml_library=str(fake_nvml)), limits=driver.probe).read(driver.node.root)
    assert {gpu.limits_memory for gpu in result.gpus if gpu.mig_enabled} == {False}
