"""Create twenty pods at once for fewer devices: each device is granted once, and the other pods are refused."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Barrier
from typing import NamedTuple, TypeVar

import pytest

from lading.reasons import Reason
from simnode.cri import Container
from simnode.patience import wait_until
from tests.node.site import Refused, Site, granted_in

pytestmark = pytest.mark.node

PODS = 20
PATIENCE_S = 60.0  # a pod waits for others to go for as long as something works, and this much longer

T = TypeVar("T")


class Held(NamedTuple):
    since: float
    until: float


def at_once(one: Callable[[int], T]) -> list[T]:
    with ThreadPoolExecutor(PODS) as threads:
        return list(threads.map(one, range(PODS)))


@pytest.mark.parametrize(
    ("annotate", "devices", "holders", "reason"),
    [
        pytest.param(lambda _: {"lading.dev/vfs": "1"}, 16, 1, Reason.CAPACITY_EXCEEDED, id="a-vf-by-number"),
        pytest.param(lambda n: {"lading.dev/gpus": str(n % 8)}, 8, 1, Reason.DEVICE_HELD, id="a-gpu-by-index"),
        pytest.param(lambda _: {"lading.dev/gpus": "0:core=20"}, 1, 5, Reason.CAPACITY_EXCEEDED, id="a-share-of-one-gpu"),
    ],
)
def test_exactly_as_many_as_there_are_succeed(
    site: Site, annotate: Callable[[int], dict[str, str]], devices: int, holders: int, reason: Reason
) -> None:
    pods = [site.kubelet.run_pod(f"pod-{n}", annotations=annotate(n)) for n in range(PODS)]
    together = Barrier(PODS)

    def create(n: int) -> Container | Refused:
        together.wait()
        return site.create(pods[n])

    outcomes = at_once(create)
    made = [outcome for outcome in outcomes if isinstance(outcome, Container)]
    refused = Counter(outcome.reason for outcome in outcomes if isinstance(outcome, Refused))
    assert refused == {reason: PODS - devices * holders}
    assert len(site.direct.list_containers()) == len(made) == devices * holders
    counts: Counter[str] = Counter()
    for container in made:
        container.start()
        sight = site.see(container)
        assert granted_in(container) == (sight.gpus, sight.vfs)
        counts.update((*sight.gpus, *sight.vfs))
    assert len(counts) == devices
    assert set(counts.values()) == {holders}


def test_pods_that_come_and_go_never_hold_one_device_at_a_time(site: Site) -> None:
    """Let each pod ask until it gets four VFs, as kubelet does, keep them for a moment, and end."""
    history: defaultdict[str, list[Held]] = defaultdict(list)

    def live(n: int) -> None:
        pod = site.kubelet.run_pod(f"pod-{n}", annotations={"lading.dev/vfs": "4"})
        containers: list[Container] = []

        def created() -> bool:
            outcome = site.create(pod)
            if isinstance(outcome, Refused):
                assert outcome.reason is Reason.CAPACITY_EXCEEDED
            else:
                containers.append(outcome)
            return bool(containers)

        wait_until(created, f"four VFs for pod-{n}", idle_s=PATIENCE_S)
        (made,) = containers
        since = time.monotonic()
        made.start()
        _, vfs = granted_in(made)
        assert site.see(made).vfs == vfs
        for vf in vfs:
            history[vf].append(Held(since, time.monotonic()))
        pod.remove()

    at_once(live)
    assert sum(map(len, history.values())) == 4 * PODS
    for times in history.values():
        assert all(first.until <= second.since for first, second in pairwise(sorted(times)))
