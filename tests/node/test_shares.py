"""Shares of a card that are kept: the real library in real containers, in front of a fake libcuda, with a real share server."""

import json
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lading.log import Event
from lading.reasons import Reason
from shares.wire import Kind
from simnode.cri import Container, Pod
from simnode.cuda import CudaDriver, install_fake_cuda
from simnode.daemons import LadingNode
from simnode.kubelet import Mount
from tests.node.conftest import StartLading
from tests.node.site import Site, eventually

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("driver")]

GPU = "lading.dev/gpus"
BOTH_RUN_MS = 4000


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
    found: list[dict[str, Any]] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def test_an_allocation_beyond_the_share_is_refused(site: Site, driver: CudaDriver) -> None:
    _, container = sharing(site, driver, "memory", "memory=2Gi,core=50")
    said = container.sh("gpu-work memory 1024 1025 500").splitlines()
    assert said == ["1024 MiB: 0", "1025 MiB: 2", "500 MiB: 0", "524 of 2048 MiB are free"]
    assert container.sh("gpu-work memory 2048").splitlines() == ["2048 MiB: 0", "0 of 2048 MiB are free"]  # all are free again
    assert container.env()["LADING_GPU_MEMORY_MIB"] == "2048"


def test_nvml_in_the_container_shows_the_share(site: Site, driver: CudaDriver) -> None:
    _, container = sharing(site, driver, "nvml", "memory=2Gi")
    assert container.sh("gpu-work nvml 700") == "700 of 2048 MiB are used\n"


def test_two_pods_share_a_card_by_their_requests(site: Site, driver: CudaDriver) -> None:
    work = ("gpu-work", "run", str(BOTH_RUN_MS), "5000")
    seven, three = (sharing(site, driver, f"core-{core}", f"memory=1Gi,core={core}", *work)[1] for core in (70, 30))
    seven_ms, three_ms = used_ms(seven), used_ms(three)
    assert seven_ms + three_ms > 0.6 * BOTH_RUN_MS
    assert 0.6 < seven_ms / (seven_ms + three_ms) < 0.8


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
    for path in ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/local/lading/gpu/real/libcuda.so.1"):
        assert container.exec("sh", "-c", f"echo >>{path}").exit != 0
        assert container.exec("rm", path).exit != 0
    assert container.exec("rm", "/run/lading/gpu/s.sock").exit != 0
    assert container.exec("sh", "-c", "echo '{}' >/run/lading/gpu/grant.json").exit != 0
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


def test_a_pods_own_mount_does_not_replace_its_grant(site: Site, driver: CudaDriver, tmp_path: Path) -> None:
    options = driver.container()
    options["mounts"] = [*options["mounts"], Mount(host_path=tmp_path, container_path="/run/lading/gpu")]
    pod = site.kubelet.run_pod("hostile-mount", annotations={GPU: "0:memory=1Gi,isolation=tokens"})
    assert pod.run_container(**options).sh("gpu-work memory 1025").startswith("1025 MiB: 2")


def test_programs_go_on_at_their_request_while_the_server_is_away(
    start_lading: StartLading, visit: Callable[[LadingNode], Site]
) -> None:
    lading = start_lading(tokens=True)
    driver, site = install_fake_cuda(lading.node), visit(lading)
    _, worker = sharing(site, driver, "worker", "memory=1Gi,core=40", "gpu-work", "run", "6000", "5000")
    eventually(lambda: _has_turns(site))
    lading.shares.kill()
    time.sleep(2)
    lading.shares.start()
    eventually(lambda: _has_turns(site))
    assert 0.45 * 6000 < used_ms(worker) < 0.95 * 6000  # all of the card, and for two seconds 40 percent of it


def _has_turns(site: Site) -> None:
    (use,) = status(site)
    assert use["hasTurn"]
