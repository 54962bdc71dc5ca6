"""Test enforced shares of a card: the real library in real containers, with a fake libcuda and a real share server."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from lading.log import Event
from lading.reasons import Reason
from shares.wire import Kind, WireRefusal
from simnode.cri import Container, Pod
from simnode.cuda import CudaDriver
from simnode.daemons import LadingNode
from simnode.kubelet import Mount
from simnode.nvml import NvmlState, Running
from tests.node.conftest import StartLading
from tests.node.site import Site, eventually, find_cgroups

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("driver")]

GPU = "lading.dev/gpus"
HAD_S, MEASURED_S = 0.05, 1.0  # time for which each pod has the card before turns are measured, and meanwhile


@pytest.fixture(scope="module")
def running(share_lading: StartLading) -> LadingNode:
    return share_lading(tokens=True)


def sharing(site: Site, driver: CudaDriver, name: str, share: str, *command: str) -> tuple[Pod, Container]:
    """Run a container with a share of the first card."""
    pod = site.kubelet.run_pod(name, annotations={f"{GPU}.main": f"0:{share},isolation=tokens"})
    options = driver.container()
    if command:
        options["command"] = command
    return pod, pod.run_container(**options)


def used_ms(container: Container) -> float:
    """Return for how long the device worked for the container's program, once that has ended."""
    assert container.wait() == 0, container.logs()
    return float(container.logs().split()[0])


def status(site: Site) -> list[dict[str, Any]]:
    command = [site.lading.shares.program, "status", "--config", str(site.lading.shares.config), "-o", "json"]
    result: list[dict[str, Any]] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result


def test_an_allocation_beyond_the_share_is_refused(site: Site, driver: CudaDriver) -> None:
    _, container = sharing(site, driver, "memory", "memory=2Gi,core=50")
    text = container.sh("gpu-work memory 1024 1025 500").splitlines()
    assert text == ["1024 MiB: 0", "1025 MiB: 2", "500 MiB: 0", "524 of 2048 MiB are free"]
    assert container.sh("gpu-work memory 2048").splitlines() == ["2048 MiB: 0", "0 of 2048 MiB are free"]  # all are free again
    assert container.env()["LADING_GPU_MEMORY_MIB"] == "2048"


def test_nvml_in_the_container_shows_the_share(site: Site, driver: CudaDriver) -> None:
    _, container = sharing(site, driver, "nvml", "memory=2Gi")
    assert container.sh("gpu-work nvml 700") == "700 of 2048 MiB are used\n"


def test_two_pods_share_a_card_by_their_requests(site: Site, driver: CudaDriver) -> None:
    work = ("gpu-work", "run", "60000", "5000")
    for core in (70, 30):
        sharing(site, driver, f"core-{core}", f"memory=1Gi,core={core}", *work)
    before = eventually(lambda: _times(site, {70: (0, 0), 30: (0, 0)}, HAD_S))
    for core, (held_s, waited_s) in eventually(lambda: _times(site, before, MEASURED_S)).items():
        assert (
            held_s / (held_s + waited_s) > core / 100 - 0.06
        )  # a program that waits for a CPU does not want the card meanwhile


def _times(site: Site, before: dict[int, tuple[float, float]], least_s: float) -> dict[int, tuple[float, float]]:
    """Return for how long each pod, by its request, has had the card and waited for it since `before`, once both had it."""
    uses = {use["requestPercent"]: (use["heldS"], use["waitedS"]) for use in status(site)}
    times = {core: (held_s - before[core][0], waited_s - before[core][1]) for core, (held_s, waited_s) in uses.items()}
    assert min(held_s for held_s, _ in times.values()) > least_s
    return times


def test_a_container_alone_gets_the_whole_card_or_its_limit(site: Site, driver: CudaDriver) -> None:
    pod, elastic = sharing(site, driver, "elastic", "core=20", "gpu-work", "run", "1500", "5000")
    assert used_ms(elastic) > 0.8 * 1500
    pod.remove()
    _, limited = sharing(site, driver, "limited", "core=20,limit=30", "gpu-work", "run", "3000", "5000")
    assert 0.2 * 3000 < used_ms(limited) < 0.4 * 3000


def test_who_has_what_is_shown(site: Site, driver: CudaDriver) -> None:
    sharing(site, driver, "shown", "memory=2Gi,core=50", "gpu-work", "run", "60000", "5000")

    def runs() -> None:
        (use,) = status(site)
        assert (use["pod"], use["container"], use["gpu"]) == ("shown", "main", site.gpu(0))
        assert (use["requestPercent"], use["limitPercent"], use["memoryLimitMiB"]) == (50, 100, 2048)
        assert use["processes"] == 1
        assert use["heldS"] > 0

    eventually(runs)


def test_a_share_ends_with_its_container(site: Site, driver: CudaDriver) -> None:
    pod, _ = sharing(site, driver, "ends", "core=50")
    folders = Path(site.lading.folder, "shares")
    assert [folder.name for folder in folders.iterdir()] == [f"{pod.spec.uid}_main"]
    pod.remove()
    eventually(lambda: _is_empty(folders))
    assert status(site) == []


def _is_empty(folder: Path) -> None:
    assert not list(folder.iterdir())


def test_a_card_has_one_isolation_at_a_time(site: Site, driver: CudaDriver) -> None:
    sharing(site, driver, "by-turns", "core=50")
    assert site.refused_at_once({GPU: "0:core=10"}).reason is Reason.ISOLATION_CONFLICT
    assert site.refused_at_once({GPU: "0:core=10,isolation=mps"}).reason is Reason.ISOLATION_UNAVAILABLE
    pod = site.kubelet.run_pod("other-card", annotations={GPU: "1:core=10"})
    assert "libcuda" not in pod.run_container().sh("grep lading/gpu /proc/mounts || true")


def test_a_container_cannot_take_the_library_away(site: Site, driver: CudaDriver) -> None:
    _, container = sharing(site, driver, "hostile", "memory=1Gi")
    for path in ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/.lading/gpu/real/libcuda.so.1"):
        assert container.exec("sh", "-c", f"echo >>{path}").exit != 0
        assert container.exec("rm", path).exit != 0
    assert container.exec("rm", "/.lading/gpu/share/s.sock").exit != 0
    assert container.exec("sh", "-c", "echo '{}' >/.lading/gpu/share/grant.json").exit != 0
    assert container.sh("gpu-work memory 1025").splitlines()[0] == "1025 MiB: 2"


def test_a_process_of_no_pod_is_not_served(site: Site, driver: CudaDriver) -> None:
    pod, container = sharing(site, driver, "owner", "core=50")
    assert container.sh("gpu-work memory 1").startswith("1 MiB: 0")  # it waits until the server listens
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.settimeout(5)
        stranger.connect(str(site.lading.folder / "shares" / f"{pod.spec.uid}_main" / "s.sock"))
        assert stranger.recv(64)[1] == Kind.REFUSED
    site.await_log(site.lading.shares, Event.SHARE_REFUSED, "of no pod")
    assert container.sh("gpu-work memory 1").startswith("1 MiB: 0")


_CONNECT: Final = """
import socket, struct, sys
input()
with socket.socket(socket.AF_UNIX) as connection:
    connection.settimeout(10)
    connection.connect(sys.argv[1])
    frame = connection.recv(32)
print(frame[1], struct.unpack_from("<q", frame, 8)[0])
"""


def test_a_process_of_another_pod_is_not_served(site: Site, driver: CudaDriver) -> None:
    """Connect from a process in the cgroup of b's container to the socket of a's container."""
    first, a = sharing(site, driver, "a", "core=50")
    second, b = sharing(site, driver, "b", "core=50")
    assert a.sh("gpu-work memory 1").startswith("1 MiB: 0")  # it waits until the server listens
    stranger = [sys.executable, "-c", _CONNECT, str(site.lading.folder / "shares" / f"{first.spec.uid}_main" / "s.sock")]
    with subprocess.Popen(stranger, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for folder in find_cgroups(b.id):
            (folder / "cgroup.procs").write_text(str(process.pid))
        assert process.communicate("\n", timeout=20)[0].split() == [str(int(Kind.REFUSED)), str(int(WireRefusal.OTHER_POD))]
    site.await_log(site.lading.shares, Event.SHARE_REFUSED, f"of pod {second.spec.uid}")
    assert site.logged(site.lading.shares, Event.SHARE_REFUSED, first.spec.uid)


@pytest.mark.parametrize(
    "way",
    [
        "gpu-work memory 1025",
        "env -i FAKE_CUDA_DIR=$FAKE_CUDA_DIR gpu-work memory 1025",
        "cp /bin/gpu-work /set-user-id; chmod 4755 /set-user-id; su nobody -c '/set-user-id memory 1025'",
        "gpu-work --library libcuda.so memory 1025",
        "gpu-work --library /usr/lib/x86_64-linux-gnu/libcuda.so.1 memory 1025",
        "gpu-work --library /usr/lib/x86_64-linux-gnu/libcuda.so memory 1025",
        "gpu-work --library $(ls /usr/lib/x86_64-linux-gnu/libcuda.so.[1-9]*.*) memory 1025",
    ],
)
def test_however_a_program_comes_to_the_library_it_is_limited(site: Site, driver: CudaDriver, way: str) -> None:
    _, container = sharing(site, driver, "ways", "memory=1Gi")
    assert container.sh(way).splitlines()[0] == "1025 MiB: 2"


def test_a_process_that_goes_past_the_library_is_reported(site: Site, driver: CudaDriver) -> None:
    """Show a process of the container on the card in the driver that the share server has no connection from."""
    pod, container = sharing(site, driver, "past", "memory=1Gi", "pause")
    pid = int((find_cgroups(container.id)[0] / "cgroup.procs").read_text().split()[0])
    observed = site.node.root / "proc" / str(pid)
    observed.symlink_to(f"/proc/{pid}")
    try:
        NvmlState(profile=site.node.profile, processes={0: [Running(pid, used_mib=100)]}).write(site.node.nvml_state)
        site.await_log(site.lading.hooks, Event.SHARE_BYPASSED, pod.spec.uid)
        (text,) = site.logged(site.lading.hooks, Event.SHARE_BYPASSED, pod.spec.uid)
        assert str(pid) in text
    finally:
        NvmlState(profile=site.node.profile).write(site.node.nvml_state)
        observed.unlink()


def test_a_pods_own_mount_does_not_replace_its_grant(site: Site, driver: CudaDriver, tmp_path: Path) -> None:
    options = driver.container()
    options["mounts"] = [*options["mounts"], Mount(host_path=tmp_path, container_path="/.lading/gpu/share")]
    pod = site.kubelet.run_pod("hostile-mount", annotations={GPU: "0:memory=1Gi,isolation=tokens"})
    assert pod.run_container(**options).sh("gpu-work memory 1025").startswith("1025 MiB: 2")


def test_a_pod_starts_with_a_read_only_volume_at_run(site: Site, driver: CudaDriver, tmp_path: Path) -> None:
    options = driver.container()
    for mount in options["mounts"]:
        (tmp_path / Path(mount.container_path).name).mkdir()  # the simulated driver's own folder is in /run too
    options["mounts"] = [*options["mounts"], Mount(host_path=tmp_path, container_path="/run", readonly=True)]
    pod = site.kubelet.run_pod("read-only-run", annotations={GPU: "0:memory=1Gi,isolation=tokens"})
    assert pod.run_container(**options).sh("gpu-work memory 1").startswith("1 MiB: 0")


def test_what_a_process_has_of_the_card_besides_its_allocations_counts(site: Site, driver: CudaDriver) -> None:
    pod = site.kubelet.run_pod("context", annotations={GPU: "0:memory=1Gi,isolation=tokens"})
    container = pod.run_container(**driver.container(context_mib=514))
    assert [container.sh(f"gpu-work memory {mib}").split("\n")[0] for mib in (508, 506)] == ["508 MiB: 2", "506 MiB: 0"]
