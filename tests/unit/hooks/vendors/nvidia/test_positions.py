"""Test MIG instances that are created on demand: the real pynvml over the fake library, which keeps instances as a driver
does."""

import stat
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from hooks.model.inventory import Gpu, MigInstance
from hooks.vendors.nvidia.nvml import divide_card, read_gpus
from hooks.vendors.nvidia.session import session
from lading.devices.identity import MemorySpan
from lading.errors import HostError
from simnode.build import SimNode
from simnode.nvml import Failure, NvmlState, Running
from tests.conftest import BuildNode

NO_PERMISSION = 4


class Card:
    """Represent the divided card of a simulated node, as each reading shows it."""

    def __init__(self, node: SimNode, library: Path) -> None:
        self.node = node
        self.library = library

    def gpu(self, *, divided: str = "all") -> Gpu:
        _, gpus, problems = read_gpus(self.node.root, library=self.library, divided=[divided])
        self.problems = problems
        return gpus[0]

    def position(self, name: str) -> MigInstance:
        return next(mig for mig in self.gpu().mig if mig.uuid.endswith(f"/{name}"))

    def made(self) -> dict[str, str]:
        return {mig.uuid.partition("/")[2]: mig.made_uuid for mig in self.gpu().mig if mig.made_uuid}

    def divide(self, *names: str) -> list[str]:
        gpu = self.gpu()
        granted = {f"MIG-{gpu.uuid}/{name}" for name in names}
        return list(divide_card(self.node.root, gpu, granted, library=self.library).values())

    def say(self, **changed: object) -> None:
        NvmlState(profile=self.node.profile, **changed).write(self.node.nvml_state)  # type: ignore[arg-type]


@pytest.fixture
def card(build_node: BuildNode, fake_nvml: Path) -> Card:
    return Card(build_node("mig-on-demand"), fake_nvml)


def test_every_position_of_the_card_is_shown_without_an_instance(card: Card) -> None:
    gpu = card.gpu()
    assert card.problems == ()
    names = [mig.uuid.removeprefix(f"MIG-{gpu.uuid}/") for mig in gpu.mig]
    assert [name for name in names if name.startswith("3g")] == ["3g.40gb@0", "3g.40gb@4"]
    assert len(names) == 7 + 4 + 3 + 2 + 1 + 1
    assert not any("+me" in name for name in names)  # a card has one such instance, in any of seven positions
    assert card.position("2g.20gb@4") == MigInstance(
        uuid=f"MIG-{gpu.uuid}/2g.20gb@4", memory_mib=20096, profile="2g.20gb", span=MemorySpan(4, 2)
    )


@pytest.mark.parametrize("by", ["uuid", "bdf"])
def test_only_the_named_cards_are_divided(card: Card, by: str) -> None:
    assert card.gpu(divided=getattr(card.gpu(), by)).mig
    assert card.gpu(divided="GPU-another").mig == ()


def test_a_named_card_that_is_not_in_mig_mode_is_a_problem(card: Card) -> None:
    _, gpus, _ = read_gpus(card.node.root, library=card.library)
    card.gpu(divided=gpus[1].bdf)
    (problem,) = card.problems
    assert gpus[1].uuid in problem
    assert f"nvidia-smi -i {gpus[1].bdf} -mig 1" in problem


def test_an_instance_is_made_with_its_device_nodes_and_once(card: Card) -> None:
    assert card.divide("1g.10gb@6", "3g.40gb@0") == []
    position = card.position("3g.40gb@0")
    assert position.made_uuid.startswith("MIG-")
    for node in position.nodes:
        status = Path(node.host_path).stat()
        assert stat.S_ISCHR(status.st_mode)
        assert stat.S_IMODE(status.st_mode) == 0o444
    before = card.made()
    assert card.divide("1g.10gb@6", "3g.40gb@0") == []
    assert card.made() == before


def test_what_is_not_granted_is_removed_before_anything_is_made(card: Card) -> None:
    card.divide("3g.40gb@0", "3g.40gb@4")
    kept = card.made()["3g.40gb@4"]
    assert card.divide("3g.40gb@4", "2g.20gb@2") == []
    assert card.made().keys() == {"3g.40gb@4", "2g.20gb@2"}
    assert card.made()["3g.40gb@4"] == kept
    card.divide()
    assert card.made() == {}


def test_an_instance_that_a_process_uses_stays_and_its_memory_is_not_free(card: Card) -> None:
    card.divide("3g.40gb@0")
    card.say(processes={0: [Running(1, used_mib=1, instance=(1, 0))]})
    removed, made = card.divide("1g.10gb@1")
    assert "cannot remove MIG instance" in removed
    assert "3g.40gb@0" in removed
    assert "cannot make MIG instance" in made
    assert "1g.10gb@1" in made
    card.say()
    assert card.divide("1g.10gb@1") == []
    assert card.made().keys() == {"1g.10gb@1"}


def test_a_gpu_instance_that_was_left_without_a_compute_instance_is_used_or_removed(card: Card) -> None:
    card.say(failures=(Failure(gpu=0, function="nvmlGpuInstanceCreateComputeInstance", status=NO_PERMISSION),))
    (problem,) = card.divide("2g.20gb@0")
    assert "2g.20gb@0" in problem
    card.say()
    assert card.made() == {}
    assert card.divide("2g.20gb@0") == []
    assert card.made().keys() == {"2g.20gb@0"}
    card.say(failures=(Failure(gpu=0, function="nvmlGpuInstanceCreateComputeInstance", status=NO_PERMISSION),))
    card.divide("1g.10gb@6")
    card.say()
    assert card.divide("7g.80gb@0") == []


def test_a_position_that_the_card_does_not_have_is_reported(card: Card) -> None:
    (problem,) = card.divide("9g.90gb@0")
    assert "its card has no such position" in problem


def test_an_instance_that_a_person_made_elsewhere_is_a_problem_and_is_not_given(card: Card) -> None:
    uuid = card.gpu().uuid
    card.divide("1g.10gb@0")  # it leaves the device nodes of the first instance
    card.divide()
    with session(card.library):
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        at = pynvml.c_nvmlGpuInstancePlacement_t(start=6, size=1)
        media_engines = 20
        instance = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, media_engines, pynvml.byref(at))
        pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    card.divide("1g.10gb@0")
    assert card.made().keys() == {"1g.10gb@0"}
    (problem,) = card.problems
    assert "cannot give MIG instance MIG-" in problem
    assert "did not make" in problem


def test_a_driver_that_does_not_answer_is_an_error(card: Card) -> None:
    gpu = card.gpu()
    card.say(failures=(Failure(function="nvmlInitWithFlags", status=NO_PERMISSION),))
    with pytest.raises(HostError, match=gpu.uuid):
        divide_card(card.node.root, gpu, set(), library=card.library)


def test_a_node_that_cannot_be_made_is_reported_for_its_place(card: Card) -> None:
    (card.node.root / "dev" / "nvidia-caps").write_text("in the way")
    (problem,) = card.divide("1g.10gb@0")
    assert "/dev/nvidia-caps" in problem
    assert not replace(card.position("1g.10gb@0")).is_made
