"""Test who does not keep to a share: processes, cgroups, what the share server knows, and grants."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from hooks.ledger.share_bypass import SUSPECT_S, How, ShareBypass, Suspicions, find_share_bypasses, shared_cards
from hooks.model.assignment import GrantedDevices, GrantedGpu
from hooks.model.grant import Grant
from hooks.model.inventory import GpuProcess
from lading.devices.isolation import IsolationName
from lading.sharestatus import ShareUse
from lading.vocabulary import PodUid
from tests.fakes.holders import grant, whole
from tests.unit.hooks.inventories import gpu, running, uuid

A, B = "a" * 64, "b" * 64


def sharer(
    pod: str,
    container: str = "train",
    *,
    memory_mib: int | None = 1000,
    ids: str = "",
    pod_wide: bool = False,
    isolation: IsolationName = IsolationName.TOKENS,
) -> Grant:
    gpu = GrantedGpu(uuid=uuid(0), memory_mib=memory_mib, core_percent=10, isolation=isolation, pod_wide=pod_wide)
    return grant(pod, container, GrantedDevices(gpus=(gpu,)), containers={ids: "s"} if ids else None)


def cgroup(pod: str, container: str = A) -> str:
    return f"0::/kubepods/burstable/pod{pod}/{container}\n"


def known(pod: str, *pids: int) -> ShareUse:
    return ShareUse(
        namespace="default", pod="x", pod_uid=pod, container="train", gpu=uuid(0), request_percent=10, limit_percent=100,
        held_s=0.0, has_turn=False, waiters=0, memory_used_mib=0, memory_limit_mib=1000, processes=len(pids), process_ids=pids,
    )  # fmt: skip


def find(
    processes: tuple[GpuProcess, ...] | None,
    cgroups: dict[int, str],
    uses: Sequence[ShareUse],
    *grants: Grant,
    tolerance_mib: int = 100,
) -> list[tuple[str, str, How, tuple[int, ...]]]:
    card = replace(gpu(0), processes=processes)
    share_bypasses = find_share_bypasses([card], cgroups, uses, grants, tolerance_mib=tolerance_mib)
    return [(one.pod, one.container, one.how, one.process_ids) for one in share_bypasses]


def test_only_cards_whose_shares_the_server_may_keep_are_checked() -> None:
    assert shared_cards([sharer("a"), grant("b", devices=whole(1))]) == {uuid(0)}


def test_a_process_that_the_share_server_does_not_know() -> None:
    cgroups = {1: cgroup("a"), 2: cgroup("a"), 3: cgroup("b", B)}
    grants = (sharer("a", ids=A), sharer("b", "serve", ids=B))
    assert find(running(1, 2, 3), cgroups, [known("a", 1), known("b", 3)], *grants) == [("a", "train", How.PROCESS, (2,))]
    assert find(running(1, 2, 3), cgroups, [known("a", 1, 2), known("b", 3)], *grants) == []


def test_shares_by_mps_are_checked_if_the_server_keeps_them() -> None:
    processes = (GpuProcess(pid=1, used_mib=1300), GpuProcess(pid=2, used_mib=10))
    cgroups = dict.fromkeys((1, 2), cgroup("a"))
    by_mps = sharer("a", ids=A, isolation=IsolationName.MPS)
    found = [("a", "train", How.MEMORY, ()), ("a", "train", How.PROCESS, (2,))]
    assert find(processes, cgroups, [known("a", 1)], by_mps) == found
    assert find(processes, cgroups, [known("b", 3)], by_mps) == []  # the container got its share when the server kept none


def test_a_process_that_is_known_for_another_pod_is_not_known_for_this_one() -> None:
    assert find(running(1), {1: cgroup("a")}, [known("b", 1)], sharer("a", ids=A)) == [("a", "train", How.PROCESS, (1,))]


def test_a_process_of_a_container_that_is_not_in_the_ledger_is_of_its_pod() -> None:
    assert find(running(1), {1: cgroup("a", B)}, [], sharer("a", ids=A)) == [("a", "", How.PROCESS, (1,))]


@pytest.mark.parametrize("text", ["0::/system.slice/dcgm.service\n", cgroup("stranger"), ""])
def test_processes_of_no_sharer_are_not_meant(text: str) -> None:
    assert find(running(1), {1: text}, [], sharer("a")) == []


def test_a_server_that_does_not_tell_its_processes_accuses_no_pod() -> None:
    older = known("a")
    uses = [ShareUse(**{name: getattr(older, name) for name in older.__struct_fields__} | {"process_ids": None})]
    assert find(running(1), {1: cgroup("a")}, uses, sharer("a")) == []


def test_a_card_that_does_not_tell_its_processes_accuses_no_pod() -> None:
    assert find(None, {}, [], sharer("a")) == []


@pytest.mark.parametrize(("used_mib", "is_over"), [((1100,), False), ((1101,), True), ((600, 600), False), ((600, 601), True)])
def test_more_memory_than_the_share_and_what_each_process_may_use_besides(used_mib: tuple[int, ...], is_over: bool) -> None:
    processes = tuple(GpuProcess(pid=pid, used_mib=mib) for pid, mib in enumerate(used_mib, 1))
    cgroups = dict.fromkeys(range(1, 3), cgroup("a"))
    result = find(processes, cgroups, [known("a", 1, 2)], sharer("a", ids=A))
    assert result == ([("a", "train", How.MEMORY, ())] if is_over else [])


def test_memory_that_is_not_reported_or_not_limited_is_not_over_a_limit() -> None:
    cgroups = {1: cgroup("a")}
    assert find(running(1), cgroups, [known("a", 1)], sharer("a")) == []
    assert find(running(1, used_mib=80_000), cgroups, [known("a", 1)], sharer("a", memory_mib=None)) == []


def test_containers_that_have_one_share_together_are_measured_together() -> None:
    grants = (sharer("a", "x", ids=A, pod_wide=True), sharer("a", "y", ids=B, pod_wide=True))
    cgroups = {1: cgroup("a", A), 2: cgroup("a", B)}
    uses = [known("a", 1, 2)]
    assert find(running(1, 2, used_mib=600), cgroups, uses, *grants) == []
    assert find(running(1, 2, used_mib=601), cgroups, uses, *grants) == [("a", "", How.MEMORY, ())]


def bypass(*pids: int) -> ShareBypass:
    return ShareBypass(
        pod=PodUid("a"), container="c", namespace="n", pod_name="p", card=uuid(0), how=How.PROCESS, process_ids=pids
    )


def test_a_suspicion_is_reported_when_it_lasts() -> None:
    suspicions = Suspicions()
    assert suspicions.settle([bypass(1)], 10.0) == ()
    assert suspicions.settle([bypass(1, 2)], 10.0 + SUSPECT_S) == (bypass(1),)
    assert suspicions.settle([bypass(1, 2)], 10.0 + 2 * SUSPECT_S) == (bypass(1, 2),)


def test_a_suspicion_that_was_deleted_begins_anew() -> None:
    suspicions = Suspicions()
    suspicions.settle([bypass(1)], 10.0)
    suspicions.settle([], 11.0)
    assert suspicions.settle([bypass(1)], 10.0 + SUSPECT_S) == ()


def test_words_name_a_few_processes() -> None:
    assert bypass(1, 2, 3, 4, 5).text.endswith("process 1, 2, 3 and 2 more")
    assert "1000 MiB" in replace(bypass(), how=How.MEMORY, limit_mib=1000).text
