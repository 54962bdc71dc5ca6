import pytest

from hooks.model.assignment import GpuRequest
from lading.devices.share import Amounts, Share, left_of_card, taken_by_pod


def share(memory_mib: int, core_percent: int = 0, *, pod_wide: bool = False, of_pod: int | None = None) -> Share:
    return GpuRequest(name="0", memory_mib=memory_mib, core_percent=core_percent, pod_wide=pod_wide, pod_memory_mib=of_pod)


@pytest.mark.parametrize(
    ("shares", "taken"),
    [
        ([], Amounts()),
        ([("a", share(100, 10)), ("b", share(100, 20))], Amounts(200, 30)),
        ([("a", share(100, pod_wide=True)), ("b", share(100, pod_wide=True))], Amounts(100)),
        ([("a", share(100, pod_wide=True)), ("b", share(200, pod_wide=True))], Amounts(300)),
        ([("init", share(100, of_pod=150)), ("a", share(150, of_pod=150))], Amounts(150)),
        ([("init", share(100, of_pod=150)), ("a", share(30))], Amounts(180)),
    ],
)
def test_what_a_pod_takes_of_a_card(shares: list[tuple[str, Share]], taken: Amounts) -> None:
    assert taken_by_pod(shares) == taken


def test_what_is_left_is_never_less_than_nothing() -> None:
    assert left_of_card(1000, Amounts(300, 25)) == Amounts(700, 75)
    assert left_of_card(1000, Amounts(1001, 101)) == Amounts()
