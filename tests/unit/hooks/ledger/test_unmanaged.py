from dataclasses import replace
from pathlib import Path

import pytest

from hooks.ledger.unmanaged import Unmanaged, decide_unmanaged
from hooks.model.inventory import Gpu
from lading.cgroups import PodProcess, parse_cgroup, read_cgroups
from lading.errors import HostError
from lading.vocabulary import ContainerId, PciAddress, PodUid
from tests.fakes.holders import gpu_uuid, grant, share, whole
from tests.unit.hooks.inventories import running

UID = "3f8a1c9e-0b7d-4e57-9c51-2d4f6a8b0c1e"
SYSTEMD_UID = UID.replace("-", "_")
STATIC_UID = "5e2fb6a1c9e70b7d4e579c512d4f6a8b"  # a static pod's is a hash
ID = "c0ffee" + "0" * 58
BURSTABLE, BESTEFFORT = "/kubepods.slice/kubepods-burstable.slice", "/kubepods.slice/kubepods-besteffort.slice"

GPU = Gpu(
    vendor="nvidia",
    uuid=gpu_uuid(0),
    bdf=PciAddress("0000:1b:00.0"),
    index=0,
    minor=0,
    model="H100",
    memory_mib=81559,
    reserved_mib=0,
    numa=0,
    node=None,
)


@pytest.mark.parametrize(
    ("path", "uid", "container"),
    [
        (f"/kubepods/burstable/pod{UID}/{ID}", UID, ID),
        (f"/kubepods/besteffort/pod{UID}/{ID}", UID, ID),
        (f"/kubepods/pod{UID}/{ID}", UID, ID),
        (f"/kubepods/pod{UID}/crio-{ID}", UID, ID),
        (f"/kubepods/pod{STATIC_UID}/{ID}", STATIC_UID, ID),
        (f"/kubelet/kubepods/pod{UID}/{ID}", UID, ID),
        (f"/kubepods.slice/kubepods-pod{SYSTEMD_UID}.slice/cri-containerd-{ID}.scope", UID, ID),
        (
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SYSTEMD_UID}.slice/cri-containerd-{ID}.scope",
            UID,
            ID,
        ),
        (f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SYSTEMD_UID}.slice/crio-{ID}.scope", UID, ID),
        (f"/kubepods.slice/kubepods-pod{STATIC_UID}.slice/docker-{ID}.scope", STATIC_UID, ID),
        (f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SYSTEMD_UID}.slice/cri-containerd-{ID}.scope", UID, ID),
        (f"/system.slice/containerd.service/kubepods-burstable-pod{SYSTEMD_UID}.slice:cri-containerd:{ID}", UID, ID),
        (f"/kubepods.slice/kubepods-pod{SYSTEMD_UID}.slice/cri-containerd-{ID}.scope/init.scope", UID, ID),
        (f"/kubepods/pod{UID}/{ID} (deleted)", UID, ID),
        (f"/kubepods/pod{UID}", UID, None),
        # a cgroup that a container made inside its own does not name another pod
        (f"/kubepods/pod{UID}/{ID}/kubepods/podother/{'f' * 64}", UID, ID),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_whose_process_it_is(path: str, uid: str, container: str | None, version: int) -> None:
    text = f"0::{path}\n" if version == 2 else f"12:cpuset:/\n11:devices:{path}\n1:name=systemd:{path}\n0::/\n"
    assert parse_cgroup(text) == PodProcess(PodUid(uid), ContainerId(container) if container else None)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/user.slice/user-1000.slice/session-1.scope",
        "/system.slice/nvidia-dcgm.service",
        f"/docker/{ID}",
        f"/system.slice/docker-{ID}.scope",
        "/kubepods/burstable",
        "/podracer/x",
        "/system.slice/podman.service",
    ],
)
def test_host_processes(path: str) -> None:
    assert parse_cgroup(f"0::{path}\n") is None


@pytest.mark.parametrize("text", ["", "\n", "garbage", "0:", "a:b:c:d", "\ufffd:\ufffd:\ufffd"])
def test_text_that_is_no_cgroup_file(text: str) -> None:
    assert parse_cgroup(text) is None


def test_cgroups_are_read_below_the_host_root_and_ended_processes_left_out(tmp_path: Path) -> None:
    (tmp_path / "proc/42").mkdir(parents=True)
    (tmp_path / "proc/42/cgroup").write_bytes(b"0::/x\xff\n")
    assert read_cgroups(tmp_path, [41, 42]) == {42: "0::/x\ufffd\n"}


def test_a_cgroup_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    (tmp_path / "proc/42/cgroup").mkdir(parents=True)
    with pytest.raises(HostError, match="42"):
        read_cgroups(tmp_path, [42])


POD = f"0::/kubepods/pod{UID}/{ID}\n"


def test_a_pod_without_our_grant_holds_the_card() -> None:
    unmanaged = decide_unmanaged([replace(GPU, processes=running(42))], {42: POD}, [grant("another")])
    assert list(unmanaged.held) == [GPU.uuid]
    for word in ("42", UID, ID[:12]):
        assert word in unmanaged.held[GPU.uuid]


@pytest.mark.parametrize("devices", [whole(0), share(0)])
def test_a_pod_with_our_grant_of_that_card_does_not(devices: object) -> None:
    ours = grant(UID, devices=devices)  # type: ignore[arg-type]
    assert decide_unmanaged([replace(GPU, processes=running(42))], {42: POD}, [ours]) == Unmanaged()


def test_a_pod_with_our_grant_of_another_card_does() -> None:
    unmanaged = decide_unmanaged([replace(GPU, processes=running(42))], {42: POD}, [grant(UID, devices=whole(1))])
    assert list(unmanaged.held) == [GPU.uuid]


def test_host_processes_are_reported_and_do_not_hold() -> None:
    gpus = [replace(GPU, processes=running(1, 2, 3))]
    cgroups = {1: "0::/system.slice/x.service\n", 2: POD, 3: "0::/\n"}
    unmanaged = decide_unmanaged(gpus, cgroups, [])
    assert unmanaged.host == {GPU.uuid: (1, 3)}
    assert list(unmanaged.held) == [GPU.uuid]


def test_a_process_that_ended_holds_nothing() -> None:
    assert decide_unmanaged([replace(GPU, processes=running(42))], {}, []) == Unmanaged()
