"""The path of a card of this machine into containers: by devices and by CDI, whole and shared, refused, and after kills."""

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from lading.reasons import Reason
from simnode.cri import Container, CriError
from tests.gpu.node import GPU, GpuNode
from tests.node.site import OPENS, eventually, refusal_of

RUN_MS = 5000
KERNEL_US = 2000
CONTROL = "195 255"  # device numbers of /dev/nvidiactl (the kernel's Documentation/admin-guide/devices.txt)
# The folder of the driver's libraries in a container depends on gpu_mode and on the machine's own folders.
ANYWHERE = "LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu:/usr/lib/aarch64-linux-gnu:/usr/lib64:/lib64"


@contextmanager
def running(node: GpuNode, name: str, gpus: str = "") -> Iterator[Container]:
    """Run a container in a pod of its own. A card that was just given back may be refused for a moment."""
    with node.kubelet.pod(name, annotations={GPU: gpus} if gpus else {}, host_network=True) as pod:
        container = eventually(lambda: pod.create_container(**node.container()))
        container.start()
        yield container


def find_refusal(node: GpuNode, gpus: str) -> Reason | None:
    """Return why a container with these cards is refused."""
    with node.kubelet.pod("refused", annotations={GPU: gpus}, host_network=True) as pod:
        try:
            pod.create_container(**node.container())
        except CriError as e:
            return refusal_of(e).reason
    return None


def share(core: int) -> str:
    return f"0:memory=4Gi,core={core},isolation=tokens"


def open_control(container: Container) -> str:
    """Open the driver's control device by its number. Return `ok` or the name of the errno."""
    container.sh(f"mkdir -p /tmp; rm -f /tmp/control; mknod /tmp/control c {CONTROL}")
    (outcome,) = container.try_open("/tmp/control")
    return outcome


def work(container: Container, milliseconds: int = RUN_MS) -> float:
    """Run kernels one after another. Return for how many milliseconds the card worked for them."""
    used = re.fullmatch(r"(\d+) of \d+ ms\n", container.sh(f"{ANYWHERE} gpu-work run {milliseconds} {KERNEL_US}"))
    assert used
    return float(used[1])


def test_a_pod_that_asks_for_no_card_cannot_open_one(node: GpuNode) -> None:
    with running(node, "plain") as container:
        assert open_control(container) == "EPERM"
        assert "libcuda" not in container.sh("cat /proc/mounts")


def test_a_whole_card_computes_and_is_given_to_one_pod(node: GpuNode) -> None:
    check_whole_card(node)


def test_a_whole_card_by_cdi_computes_and_is_given_to_one_pod(cdi_node: GpuNode) -> None:
    check_whole_card(cdi_node)


def check_whole_card(node: GpuNode) -> None:
    with running(node, "whole", "0") as container:
        assert open_control(container) in OPENS
        assert container.sh(f"{ANYWHERE} gpu-work memory 1024").startswith("1024 MiB: 0\n")
        assert work(container, 500) > 0
        assert find_refusal(node, "0") is Reason.DEVICE_HELD


def test_memory_beyond_a_share_is_refused_and_nvml_shows_the_share(node: GpuNode) -> None:
    with running(node, "share", share(50)) as container:
        assert container.sh("gpu-work memory 1024 4097 1024").splitlines()[:3] == ["1024 MiB: 0", "4097 MiB: 2", "1024 MiB: 0"]
        assert container.sh("gpu-work nvml 1024").endswith(" of 4096 MiB are used\n")
        assert find_refusal(node, "0") is Reason.DEVICE_HELD


def test_two_shares_get_their_requests(node: GpuNode) -> None:
    with running(node, "seventy", share(70)) as seventy, running(node, "thirty", share(30)) as thirty:
        with ThreadPoolExecutor() as both:
            assert min(both.map(work, (seventy, thirty))) > 0
        for use in node.uses():  # a program that waits for a CPU does not want the card meanwhile
            assert use["heldS"] / (use["heldS"] + use["waitedS"]) > use["requestPercent"] / 100 - 0.06


def test_a_share_goes_on_while_the_servers_are_killed(node: GpuNode) -> None:
    with running(node, "goes-on", share(50)) as container:
        with ThreadPoolExecutor() as beside:
            worked = beside.submit(work, container)
            eventually(lambda: check_has_worked(node))
            for daemon in (node.hooks, node.shares):
                daemon.kill()
            time.sleep(1)  # no server answers meanwhile
            for daemon in (node.shares, node.hooks):
                daemon.start()
            assert worked.result() > 0
        assert find_refusal(node, "0") in {Reason.DEVICE_HELD, Reason.NOT_RECONCILED}
        assert container.sh("gpu-work memory 4097").startswith("4097 MiB: 2\n")


def check_has_worked(node: GpuNode) -> None:
    (use,) = node.uses()
    assert use["heldS"] > 0
