"""Run pods on the guest by the proxy, then by NRI: cards, shares, VFs, and what the kernel refuses to a container."""

from collections.abc import Iterator

import pytest

from simnode.containerd_config import parse_version
from simnode.cri import Cri
from simnode.vm.guest import Guest
from tests.node.site import eventually
from tests.vm.node import FRONT_ENDS, VmNode

OTHER = 3  # a card that no pod has


@pytest.fixture(scope="module", params=[*FRONT_ENDS])
def kubelet(request: pytest.FixtureRequest, node: VmNode) -> Iterator[Cri]:
    version = node.guest.check("containerd --version").split()[2]
    if request.param == "nri" and parse_version(version) < (1, 7):
        pytest.skip(f"containerd {version} has no NRI")
    node.use(request.param)
    with node.kubelet() as client:
        yield client


def test_a_pod_has_its_card_and_the_kernel_refuses_all_others(kubelet: Cri, node: VmNode) -> None:
    pod, container = node.run_pod(kubelet, "card", {"gpus": [node.gpu(0)]})
    cards = [node.card(index) for index in range(len(node.guest.profile.gpus))]
    outcomes = node.try_numbers(container, [*cards, *node.verbs_nodes().values()])
    assert [path for path, outcome in outcomes.items() if outcome == "ok"] == [node.card(0)]
    assert set(outcomes.values()) == {"ok", "EPERM"}
    assert node.card(0) in container.sh("ls /dev/nvidia*").split()
    pod.remove()


def test_a_pod_without_devices_can_open_no_card(kubelet: Cri, node: VmNode) -> None:
    pod = kubelet.run_pod("plain")
    container = pod.run_container()
    assert set(node.try_numbers(container, [node.card(0), node.card(OTHER)]).values()) == {"EPERM"}
    pod.remove()


def test_two_pods_have_shares_of_one_card(kubelet: Cri, node: VmNode) -> None:
    share = {**node.gpu(1), "memory_mib": 2048, "core_percent": 30, "isolation": "tokens"}
    pods = [node.run_pod(kubelet, f"share-{number}", {"gpus": [share]}) for number in range(2)]
    for _, container in pods:
        assert node.try_numbers(container, [node.card(1), node.card(OTHER)]) == {node.card(1): "ok", node.card(OTHER): "EPERM"}
    status = eventually(lambda: _served(node.guest, len(pods)))
    assert status.count("share-") == len(pods)
    for pod, _ in pods:
        pod.remove()


def _served(guest: Guest, count: int) -> str:
    status = guest.run("lading-shares status")
    assert status.out.count("share-") == count, status
    return status.out


def test_a_vf_is_attached_and_returned_as_it_was(kubelet: Cri, node: VmNode) -> None:
    vf = node.vf(0, 1)
    before = node.read_vf(vf)
    nodes = node.verbs_nodes()
    pod, container = node.run_pod(kubelet, "vf", {"vfs": [vf]})
    assert "rdma0" in container.sh("ip -o link")
    outcomes = node.try_numbers(container, [*nodes.values()])
    assert [path for path, outcome in outcomes.items() if outcome == "ok"] == [nodes[before["ibdev"]]]
    assert not node.guest.check(f"ls /sys/bus/pci/devices/{vf['bdf']}/net").strip()
    pod.stop()

    def returned() -> None:
        assert node.read_vf(vf) == before

    eventually(returned)
    pod.remove()


def test_the_socket_stays_when_the_service_is_restarted(kubelet: Cri, node: VmNode) -> None:
    inode = node.guest.check("stat -c %i /run/lading/hooks.sock")
    node.guest.check("systemctl restart lading-hooks")
    assert node.guest.check("stat -c %i /run/lading/hooks.sock") == inode
    node.await_ready()
    pod, container = node.run_pod(kubelet, "after-restart", {"gpus": [node.gpu(2)]})
    assert node.try_numbers(container, [node.card(2)]) == {node.card(2): "ok"}
    pod.remove()


def test_a_running_container_keeps_its_filter_after_restarts(kubelet: Cri, node: VmNode) -> None:
    pod, container = node.run_pod(kubelet, "kept", {"gpus": [node.gpu(0)]})
    node.guest.check("systemctl kill -s KILL lading-hooks && systemctl daemon-reload && systemctl restart containerd")
    node.await_ready()
    expected = {node.card(0): "ok", node.card(OTHER): "EPERM"}
    assert eventually(lambda: node.try_numbers(container, [*expected])) == expected
    pod.remove()
