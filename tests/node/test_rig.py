"""Test the rig: node tests rely on its reports of pods, devices and exits."""

import contextlib
import os
import stat
from pathlib import Path

import grpc
import pytest

from protos.cri.runtime.v1 import api_pb2
from simnode import leftovers
from simnode.containerd import Binaries, PrivateContainerd
from simnode.cri import Container, Cri, CriError
from simnode.kubelet import Device, Mount
from tests.node.site import eventually

pytestmark = pytest.mark.node


def char_device(folder: Path, major: int, minor: int) -> Path:
    path = folder / f"char-{major}-{minor}"
    os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
    return path


def cgroups_named(name: str) -> list[Path]:
    return list(Path("/sys/fs/cgroup").glob(f"{name}")) + list(Path("/sys/fs/cgroup").glob(f"*/{name}"))


def test_a_container_sees_its_env_mounts_and_files(cri: Cri, tmp_path: Path) -> None:
    (tmp_path / "hello").write_text("from the host\n")
    with cri.pod("seen", annotations={"example.com/note": "é"}, labels={"app": "x"}) as pod:
        container = pod.run_container(env={"A": "b c"}, mounts=[Mount(host_path=tmp_path, container_path="/h", readonly=True)])
        assert container.env()["A"] == "b c"
        assert container.sh("cat /h/hello; hostname") == "from the host\nseen\n"
        assert container.exec("touch", "/h/no").exit != 0
        assert container.exec("sh", "-c", "echo out; echo err >&2; exit 3") == (3, "out\n", "err\n")
        assert pod.status().annotations["example.com/note"] == "é"
        assert container.status().state == api_pb2.CONTAINER_RUNNING


def test_the_device_cgroup_tells_granted_from_not_granted(cri: Cri, tmp_path: Path) -> None:
    granted = Device(host_path=char_device(tmp_path, 195, 0), container_path="/dev/nvidia0", permissions="rw")
    with cri.pod("devices") as pod:
        container = pod.run_container(devices=[granted])
        container.sh("mknod /tmp/kvm c 10 232; mknod /tmp/nvidia1 c 195 1")
        first, *others = container.try_open("/dev/nvidia0", "/tmp/kvm", "/tmp/nvidia1", "/dev/null", "/none")
        assert first in {"ENXIO", "ok"}  # ok where an NVIDIA driver is loaded
        assert others == ["EPERM", "EPERM", "ok", "ENOENT"]


def test_a_privileged_container_may_open_every_device(cri: Cri) -> None:
    with cri.pod("privileged", privileged=True, host_network=True) as pod:
        container = pod.run_container(privileged=True)
        container.sh("mknod /tmp/nvidia1 c 195 1")
        assert container.try_open("/tmp/nvidia1") != ["EPERM"]


def is_ready(container: Container) -> None:
    assert container.logs() == "ready\n"


def test_exit_logs_and_restart(cri: Cri) -> None:
    with cri.pod("exits") as pod:
        first = pod.run_container(command=["sh", "-c", "echo one; echo two; exit 3"])
        assert first.wait() == 3
        assert first.logs() == "one\ntwo\n"
        second = pod.run_container(
            attempt=1, command=["sh", "-c", "trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done"]
        )
        assert second.id != first.id
        eventually(lambda: is_ready(second))  # a signal before the trap is set is ignored
        second.stop()
        assert second.status().exit_code == 0
        second.remove()
        assert [c.id for c in cri.list_containers(pod_id=pod.id)] == [first.id]


def test_a_pod_has_a_network_of_its_own_unless_it_wants_the_hosts(cri: Cri) -> None:
    with cri.pod("own") as own, cri.pod("host", host_network=True) as host:
        assert own.status().network.ip.startswith("198.18.")
        assert own.run_container().sh("cat /sys/class/net/lo/operstate") == "unknown\n"  # the state of a loopback that is up
        in_host = host.run_container().sh("readlink /proc/self/ns/net").strip()
        assert in_host == str(Path("/proc/self/ns/net").readlink())


def test_a_refused_call_is_an_error_with_status_and_text(cri: Cri) -> None:
    with cri.pod("refused") as pod, pytest.raises(CriError) as caught:
        pod.create_container(devices=[Device(host_path=Path("/dev/none-such"), container_path="/dev/x")])
    assert caught.value.method == "CreateContainer"
    assert caught.value.code is grpc.StatusCode.UNKNOWN
    assert "/dev/none-such" in caught.value.details


def test_a_client_removes_what_it_made_also_after_a_failure(containerd: PrivateContainerd, cri: Cri) -> None:
    made = []
    with contextlib.suppress(ZeroDivisionError), containerd.client() as other:
        made.append(other.run_pod("left").id)
        raise ZeroDivisionError
    assert made[0] not in [pod.id for pod in cri.list_pods()]


def test_the_older_api_name_works_where_the_runtime_has_it(containerd: PrivateContainerd) -> None:
    with containerd.client(api="v1alpha2") as client:
        if containerd.version.startswith("1."):
            assert client.version().runtime_api_version == "v1alpha2"
        else:
            with pytest.raises(CriError) as caught:
                client.version()
            assert caught.value.code is grpc.StatusCode.UNIMPLEMENTED


def test_pods_survive_a_restart_of_containerd_and_nothing_survives_its_end(binaries: Binaries, short_folder: Path) -> None:
    runtime = PrivateContainerd(short_folder, binaries)
    with runtime, runtime.client() as client:
        container = client.run_pod("survivor").run_container()
        runtime.restart()
        assert container.sh("echo alive") == "alive\n"
        assert cgroups_named(runtime.layout.cgroup_root) != []
        assert {line.split()[0] for line in leftovers.below(short_folder)} == {"mount", "socket", "process"}
        runtime.kill()
    # `kill` left pods that no one could remove through CRI any more
    assert leftovers.below(short_folder) == []
    assert cgroups_named(runtime.layout.cgroup_root) == []
    assert not runtime.layout.state.exists()
    assert not runtime.layout.root.exists()
