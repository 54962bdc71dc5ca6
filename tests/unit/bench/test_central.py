from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from bench.central import AHEAD, Asker, measure_binds


class Recorded(Asker):
    def __init__(self, pods: Sequence[bytes]) -> None:
        super().__init__(0, [])
        self.open: set[bytes] = set()  # asked for, and not bound
        self.most = 0
        self.left = set(pods)

    def ask(self, pod: bytes) -> tuple[float, str]:
        self.open.add(pod)
        self.most = max(self.most, len(self.open))
        return 0.0, "n1"

    def bind(self, pod: bytes, node: str) -> float:
        self.open.remove(pod)
        self.left.remove(pod)
        return 0.0


def test_no_more_predictions_are_open_than_can_be_bound_before_they_expire() -> None:
    pods = [str(number).encode() for number in range(3 * AHEAD + 1)]
    asker = Recorded(pods)
    with ThreadPoolExecutor(4) as binders:
        measure_binds(asker, binders, pods)
    assert not asker.left
    assert asker.most <= AHEAD
