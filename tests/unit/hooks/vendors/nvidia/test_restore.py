"""Test clocks and power limits after a tenant, and the compute mode, set through the real pynvml over the fake library."""

from pathlib import Path

import pytest

from hooks.vendors.nvidia.restore import PowerLimit, restore, set_exclusive
from lading.errors import HostError
from lading.vocabulary import GpuUuid
from simnode.build import SimNode
from simnode.nvml import GPU_IS_LOST, Failure, NvmlState
from tests.conftest import BuildNode

UNSUPPORTED, NO_PERMISSION = 3, 4
CLOCKS = ["nvmlDeviceResetGpuLockedClocks", "nvmlDeviceResetMemoryLockedClocks", "nvmlDeviceResetApplicationsClocks"]
POWER = "nvmlDeviceSetPowerManagementLimit"


class Cards:
    def __init__(self, node: SimNode, library: Path, trace: Path) -> None:
        self.node, self.library, self.trace = node, library, trace
        self.uuids = [GpuUuid(card.uuid) for _, card in node.profile.gpus]

    def restore(
        self, *numbers: int, clocks: bool = False, power: PowerLimit | None = None, failures: tuple[Failure, ...] = ()
    ) -> tuple[str, ...]:
        limits = {0: (500_000, 700_000), 1: (700_000, 700_000)}
        NvmlState(profile=self.node.profile, power=limits, failures=failures).write(self.node.nvml_state)
        return restore([self.uuids[n] for n in numbers], library=self.library, clocks=clocks, power_limit=power)

    @property
    def done(self) -> list[str]:
        return [line for line in self.trace.read_text().splitlines() if not line.startswith(("init", "shutdown"))]


@pytest.fixture
def cards(build_node: BuildNode, fake_nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cards:
    monkeypatch.setenv("FAKE_NVML_TRACE", str(tmp_path / "trace"))
    return Cards(build_node("demo-8gpu"), fake_nvml, tmp_path / "trace")


def test_clocks_of_these_cards_are_unlocked(cards: Cards) -> None:
    assert cards.restore(0, 2, clocks=True) == ()
    assert sorted(cards.done) == sorted(f"{call} {number}" for call in CLOCKS for number in (0, 2))


@pytest.mark.parametrize(
    ("limit", "set_on"), [(PowerLimit(), [0]), (PowerLimit(watts=500), [1]), (PowerLimit(watts=300), [0, 1])]
)
def test_a_power_limit_is_set_where_it_is_another(cards: Cards, limit: PowerLimit, set_on: list[int]) -> None:
    assert cards.restore(0, 1, power=limit) == ()
    assert cards.done == [f"{POWER} {number}" for number in set_on]


def test_what_a_card_does_not_support_is_no_problem(cards: Cards) -> None:
    unsupported = tuple(Failure(gpu=0, function=call, status=UNSUPPORTED) for call in CLOCKS)
    assert cards.restore(0, 3, clocks=True, power=PowerLimit(), failures=unsupported) == ()  # card 3 has no power limit
    assert sorted(cards.done) == sorted([f"{call} 3" for call in CLOCKS] + [f"{POWER} 0"])


def test_what_could_not_be_set_is_reported_and_the_rest_is_done(cards: Cards) -> None:
    failures = (Failure(gpu=0, function=CLOCKS[0], status=NO_PERMISSION), Failure(gpu=1, function="*", status=GPU_IS_LOST))
    denied, lost = sorted(cards.restore(0, 1, clocks=True, failures=failures), key=lambda text: cards.uuids[1] in text)
    assert cards.uuids[0] in denied
    assert "unlock the clocks" in denied
    assert cards.uuids[1] in lost
    assert cards.done == [f"{call} 0" for call in CLOCKS[1:]]


def test_a_driver_that_opens_no_session_is_an_error(cards: Cards) -> None:
    with pytest.raises(HostError):
        cards.restore(0, clocks=True, failures=(Failure(function="nvmlInitWithFlags", status=999),))


def test_a_cards_mode_is_set_and_set_back(build_node: BuildNode, fake_nvml: Path) -> None:
    node = build_node("demo-8gpu")
    state = NvmlState(profile=node.profile)
    state.write(node.nvml_state)
    card = GpuUuid(node.profile.gpus[2][1].uuid)
    set_exclusive(card, True, library=fake_nvml)
    set_exclusive(card, False, library=fake_nvml)
    assert Path(f"{node.nvml_state}.modes").read_text() == f"{card} 3\n{card} 0\n"


@pytest.mark.parametrize("function", ["nvmlDeviceSetComputeMode", "nvmlDeviceGetHandleByUUID"])
def test_a_driver_that_refuses_is_a_host_error(build_node: BuildNode, fake_nvml: Path, function: str) -> None:
    node = build_node("demo-8gpu")
    NvmlState(profile=node.profile, failures=(Failure(gpu=0, function=function, status=4),)).write(node.nvml_state)
    with pytest.raises(HostError):
        set_exclusive(GpuUuid(node.profile.gpus[0][1].uuid), True, library=fake_nvml)


def test_a_card_that_is_deleted_is_a_host_error(build_node: BuildNode, fake_nvml: Path) -> None:
    node = build_node("demo-8gpu")
    NvmlState(profile=node.profile).write(node.nvml_state)
    with pytest.raises(HostError):
        set_exclusive(GpuUuid("GPU-00000000-0000-0000-0000-000000000000"), True, library=fake_nvml)
