"""Test memory by container, from the processes of cards, cgroups and grants, in MiB."""

from dataclasses import replace
from pathlib import Path

import pytest

from hooks.host.processes import sees_host_processes
from hooks.ledger.use import Part, decide_use, find_use
from hooks.model.assignment import GrantedDevices, GrantedGpu
from hooks.model.grant import GrantKey
from hooks.model.inventory import GpuProcess
from lading.vocabulary import PodUid
from tests.fakes.holders import grant
from tests.unit.hooks.inventories import gpu, inventory, mig_gpu, mig_uuid, running, uuid

CARD = replace(gpu(0), processes=(*running(1, used_mib=100), *running(2, used_mib=30), *running(3, used_mib=7)))
SHARE = GrantedDevices(gpus=(GrantedGpu(uuid=uuid(0), memory_mib=1024),))


def cgroup(pod: str, container: str = "") -> str:
    below = f"/{container * 64}" if container else ""
    return f"0::/kubepods/burstable/pod{pod}{below}\n"


def part(pod: str, container: str = "train", device: str = "") -> Part:
    return Part(device or uuid(0), GrantKey(PodUid(pod), container))


def test_the_processes_of_a_container_add_up() -> None:
    grants = (grant("a", devices=SHARE, containers={"a" * 64: "s"}), grant("b", devices=SHARE, containers={"b" * 64: "s"}))
    cgroups = {1: cgroup("a", "a"), 2: cgroup("b", "b"), 3: cgroup("a", "a")}
    assert decide_use([CARD], cgroups, grants) == {part("a"): 107, part("b"): 30}


def test_a_holder_without_a_process_uses_nothing() -> None:
    assert decide_use([replace(CARD, processes=())], {}, [grant("a", devices=SHARE)]) == {part("a"): 0}


def test_of_a_card_that_does_not_tell_its_processes_nothing_is_known() -> None:
    assert decide_use([gpu(0)], {}, [grant("a", devices=SHARE)]) == {}


@pytest.mark.parametrize("text", ["0::/system.slice/sshd.service\n", cgroup("stranger", "c")])
def test_a_process_of_no_holder_is_not_counted(text: str) -> None:
    assert decide_use([CARD], {1: text}, [grant("a", devices=SHARE)]) == {part("a"): 0}


def test_containers_of_one_pod_are_distinguished_by_their_ids() -> None:
    grants = [grant("a", "x", SHARE, containers={"a" * 64: "s"}), grant("a", "y", SHARE, containers={"b" * 64: "s"})]
    cgroups = {1: cgroup("a", "a"), 2: cgroup("a", "b")}
    assert decide_use([CARD], cgroups, grants) == {part("a", "x"): 100, part("a", "y"): 30}


@pytest.mark.parametrize("container", ["", "c"])
def test_a_container_that_the_ledger_does_not_know_yet_is_the_pods_only_one_or_none(container: str) -> None:
    known, new = grant("a", "x", SHARE, containers={"a" * 64: "s"}), grant("a", "y", SHARE)
    cgroups = {1: cgroup("a", container)}
    assert decide_use([CARD], cgroups, [new]) == {part("a", "y"): 100}
    assert decide_use([CARD], cgroups, [known, new, grant("b", devices=SHARE)]) == {part("b"): 0}


def test_a_process_whose_memory_is_not_reported_makes_that_of_its_container_unknown() -> None:
    card = replace(gpu(0), processes=(*running(1), *running(2, used_mib=30)))
    cgroups = {1: cgroup("a", "a"), 2: cgroup("a", "a")}
    assert decide_use([card], cgroups, [grant("a", devices=SHARE), grant("b", devices=SHARE)]) == {part("b"): 0}


def test_instances_are_distinguished() -> None:
    both = GrantedDevices(gpus=tuple(GrantedGpu(uuid=uuid(1), mig_uuid=mig_uuid(number)) for number in (10, 11)))
    card = replace(
        mig_gpu(1), processes=(GpuProcess(pid=1, instance=(1, 0), used_mib=5), GpuProcess(pid=1, instance=(2, 0), used_mib=7))
    )
    expected = {part("a", device=mig_uuid(10)): 5, part("a", device=mig_uuid(11)): 7}
    assert decide_use([card], {1: cgroup("a")}, [grant("a", devices=both)]) == expected


def test_nothing_is_reported_outside_the_hosts_pid_namespace(tmp_path: Path) -> None:
    result, grants = inventory(gpus=(CARD,)), [grant("a", devices=SHARE)]
    assert find_use(tmp_path, result, grants) == {}
    link = tmp_path / "proc/self/ns/pid"
    link.parent.mkdir(parents=True)
    link.symlink_to("pid:[4026532201]")
    assert not sees_host_processes(tmp_path)
    assert find_use(tmp_path, result, grants) == {}
    link.unlink()
    link.symlink_to("pid:[4026531836]")
    (tmp_path / "proc/1").mkdir()
    (tmp_path / "proc/1/cgroup").write_text(cgroup("a", "a"))
    assert find_use(tmp_path, result, grants) == {part("a"): 100}
