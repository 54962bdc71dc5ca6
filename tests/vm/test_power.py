"""Reboot a guest, and cut its power, while a pod has a card and a VF."""

import json
from collections.abc import Callable

import pytest

from simnode.vm.guest import Guest
from tests.node.site import eventually
from tests.vm.node import VmNode


def reboot(guest: Guest) -> None:
    guest.reboot()


def lose_power(guest: Guest) -> None:
    guest.check("sync")
    guest.cut_power()
    guest.boot()


@pytest.mark.parametrize("end", [reboot, lose_power])
def test_a_pod_has_its_devices_again_and_the_vf_is_returned(node: VmNode, end: Callable[[Guest], None]) -> None:
    guest, vf = node.guest, node.vf(1, 0)
    before = node.read_vf(vf)
    with node.kubelet() as client:
        pod, _ = node.run_pod(client, end.__name__, {"gpus": [node.gpu(0)], "vfs": [vf]})
        uid, annotations, old = pod.spec.uid, pod.spec.annotations, pod.id
        end(guest)
    node.await_ready()
    with node.kubelet() as client:
        # kubelet makes a new sandbox of the same pod, then removes the old one.
        again = client.run_pod(end.__name__, uid=uid, annotations=annotations, attempt=1)
        container = eventually(lambda: again.run_container(attempt=1))  # kubelet counts its restarts
        assert node.try_numbers(container, [node.card(0), node.card(1)]) == {node.card(0): "ok", node.card(1): "EPERM"}
        assert "rdma0" in container.sh("ip -o link")
        client.remove_sandbox(old)
        again.remove()

        def returned() -> None:
            assert node.read_vf(vf) == before
            devices = json.loads(guest.check("lading-hooks ledger -o json"))["devices"]
            assert {device["state"] for device in devices} == {"free"}

        eventually(returned)
