"""Test limits of card memory that the driver keeps for a pod: which cgroup, which amount, and what is refused."""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from pathlib import Path
from typing import Any

import pytest

from hooks.attach import memory_limits
from hooks.attach.memory_limits import MemoryLimits
from hooks.model.assignment import GrantedDevices, GrantedGpu, Refusal
from hooks.model.container import Adjustment, Answer, Sandbox
from hooks.model.grant import Grant
from lading.errors import HostError
from lading.reasons import Reason
from lading.sharegrant import SharedGpu, ShareGrant
from lading.vocabulary import GpuUuid, PodUid
from tests.fakes.holders import grant
from tests.fakes.simulated_time import run_simulated
from tests.unit.hooks.inventories import uuid

POD = PodUid("11111111-2222-3333-4444-555555555555")
FLAT = f"/kubepods/burstable/pod{POD}"
SLICE = f"kubepods-burstable-pod{POD.replace('-', '_')}.slice"
IN_SLICES = f"/kubepods.slice/kubepods-burstable.slice/{SLICE}"
TOTAL_MIB = 80_000
Run = Callable[[Coroutine[Any, Any, Adjustment | Refusal]], Adjustment | Refusal]


class Rig:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.grants: list[Grant] = []
        self.limits: dict[tuple[GpuUuid, Path], int | None] = {}
        self.fails = ""
        self.preparer = MemoryLimits(host_root=root, limit=self.limit, grants=lambda: self.grants)

    def limit(self, card: GpuUuid, cgroup: Path, limit_mib: int | None) -> None:
        if self.fails:
            raise HostError(self.fails)
        self.limits[card, cgroup] = limit_mib

    def cgroup(self, path: str = FLAT, *, populated: bool = True) -> Path:
        folder = self.root / "sys/fs/cgroup" / path.lstrip("/")
        folder.mkdir(parents=True)
        (folder / "cgroup.events").write_text(f"populated {int(populated)}\nfrozen 0\n")
        return folder

    def hold(self, container: str, *gpus: GrantedGpu, pod: str = POD) -> None:
        self.grants.append(grant(pod, container, GrantedDevices(gpus=gpus)))

    def create(self, *cards: int, parent: str = FLAT, run: Run = asyncio.run) -> Adjustment | Refusal:
        """Create the newest container, with a share of these cards."""
        shares = tuple(
            SharedGpu(uuid=uuid(one), memory_mib=1, total_mib=TOTAL_MIB, request_percent=1, limit_percent=1, driver_limits=True)
            for one in cards
        )
        answer = Answer(adjustment=Adjustment(), grant=self.grants[-1], share=ShareGrant(pod=POD, container="c", gpus=shares))
        assert self.preparer.wants(answer)
        return run(self.preparer.prepare(Sandbox(id="s", uid=POD, cgroup_parent=parent), answer))


def share(card: int = 0, mib: int | None = 1000, *, pod_wide: bool = False, pod_mib: int | None = None) -> GrantedGpu:
    return GrantedGpu(uuid=uuid(card), memory_mib=mib, core_percent=1, pod_wide=pod_wide, pod_memory_mib=pod_mib)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def refused(result: Adjustment | Refusal) -> str:
    assert isinstance(result, Refusal), result
    assert result.reason is Reason.ISOLATION_UNAVAILABLE
    return result.message


@pytest.mark.parametrize(("parent", "path"), [(FLAT, FLAT), (SLICE, IN_SLICES), (IN_SLICES, IN_SLICES)])
def test_the_limit_is_that_of_the_pods_cgroup(rig: Rig, parent: str, path: str) -> None:
    folder = rig.cgroup(path)
    rig.hold("a", share())
    assert rig.create(0, parent=parent) == Adjustment()
    assert rig.limits == {(uuid(0), folder): 1000}


@pytest.mark.parametrize(
    ("held", "limit_mib"),
    [
        ([("a", share(mib=1000)), ("b", share(mib=500))], 1500),
        ([("a", share(mib=1000, pod_wide=True)), ("b", share(mib=1000, pod_wide=True))], 1000),
        ([("a", share(mib=1000, pod_mib=1200)), ("b", share(mib=500, pod_mib=1200))], 1200),
        ([("a", share(mib=1000)), ("b", share(card=1, mib=500))], 1000),
        ([("a", share(mib=None))], TOTAL_MIB),
        ([("a", share(mib=90_000))], TOTAL_MIB),
        ([("init", GrantedGpu(uuid=uuid(0))), ("a", share())], None),
    ],
)
def test_a_pod_may_use_what_its_containers_have_together(
    rig: Rig, held: Collection[tuple[str, GrantedGpu]], limit_mib: int | None
) -> None:
    folder = rig.cgroup()
    rig.hold("other", share(mib=7), pod="another-pod")
    for container, gpu in held:
        rig.hold(container, gpu)
    assert rig.create(0) == Adjustment()
    assert rig.limits == {(uuid(0), folder): limit_mib}


def test_each_card_has_a_limit_of_its_own(rig: Rig) -> None:
    folder = rig.cgroup()
    rig.hold("a", share(0, 1000), share(1, 2000))
    assert rig.create(0, 1) == Adjustment()
    assert rig.limits == {(uuid(0), folder): 1000, (uuid(1), folder): 2000}


@pytest.mark.parametrize(
    ("parent", "words"),
    [
        ("", "is not the cgroup of pod"),
        ("/kubepods/burstable/pod99999999-2222-3333-4444-555555555555", "is not the cgroup of pod"),
        (f"{FLAT}/../podx", "is not the cgroup of pod"),
        (IN_SLICES, "cgroup v2 is needed"),
    ],
)
def test_another_cgroup_is_refused(rig: Rig, parent: str, words: str) -> None:
    rig.cgroup()
    rig.hold("a", share())
    assert words in refused(rig.create(0, parent=parent))
    assert rig.limits == {}


def test_a_cgroup_in_which_the_sandbox_does_not_run_is_refused(rig: Rig) -> None:
    rig.cgroup(populated=False)
    rig.hold("a", share())
    assert "cgroup driver" in refused(rig.create(0))


def test_a_limit_that_the_driver_does_not_keep_is_refused(rig: Rig) -> None:
    rig.cgroup()
    rig.hold("a", share())
    rig.fails = "the driver says another limit"
    assert rig.fails in refused(rig.create(0))


def test_a_driver_that_hangs_is_refused_in_time(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs(_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(memory_limits, "in_thread", hangs)
    rig.cgroup()
    rig.hold("a", share())
    assert f"{memory_limits.LIMIT_S:g} s" in refused(rig.create(0, run=run_simulated))


def test_the_bound_is_of_all_cards_of_a_container(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(_: object) -> None:
        await asyncio.sleep(0.7 * memory_limits.LIMIT_S)

    monkeypatch.setattr(memory_limits, "in_thread", slow)
    rig.cgroup()
    rig.hold("a", share(0), share(1))
    assert f"{memory_limits.LIMIT_S:g} s" in refused(rig.create(0, 1, run=run_simulated))


def test_a_share_that_the_library_limits_is_none_of_it(rig: Rig) -> None:
    gpus = (SharedGpu(uuid=uuid(0), memory_mib=1, total_mib=2, request_percent=1, limit_percent=1),)
    answer = Answer(adjustment=Adjustment(), share=ShareGrant(pod=POD, container="c", gpus=gpus))
    assert not rig.preparer.wants(answer)
    assert not rig.preparer.wants(Answer(adjustment=Adjustment()))
