"""Test alternative names with the real kernel: moves into a pod's namespace and back, also if a name is in use there."""

import errno
import os

import pytest

from hooks.attach.kernel import Kernel, KernelError, refused
from hooks.attach.messages import parse_answer
from hooks.attach.netlink import exchange_with_kernel
from hooks.attach.rtnetlink import render_add_altname
from tests.fakes.namespaces import Netns

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("needs_namespaces")]


def altnames(netns: Netns, name: str) -> set[str]:
    return set(netns.links()[name].get("altnames", ()))


def call_too(netns: Netns, name: str, altnames: list[str]) -> None:
    index = netns.links()[name]["ifindex"]

    def add() -> None:
        for altname in altnames:
            parse_answer(exchange_with_kernel(render_add_altname(index, altname)))

    netns.run(add)


def test_alternative_names_stay_behind_on_both_ways(host: Netns, pod: Netns, kernel: Kernel) -> None:
    host.ip("link property add dev vf0 altname rdma0 altname enp24s0f0v0")
    host.run(lambda: kernel.move_in("vf0", pod.path, pod.id, "rdma0"))
    assert altnames(pod, "rdma0") == set()
    host.ip("link add vf1 type veth peer name peer1")
    pod.ip("link property add dev rdma0 altname vf1 altname peer1 altname ld0000180002")  # VFs that are the host's
    call_too(pod, "rdma0", [os.fsdecode(b"/ \xff\n")])  # ip does not, the kernel takes it
    host.run(lambda: kernel.move_out(pod.path, pod.id, "rdma0", "ld0000180002"))
    assert altnames(host, "ld0000180002") == set()
    assert {"vf1", "peer1"} < set(host.links())


def test_any_number_of_alternative_names_goes(host: Netns, pod: Netns, kernel: Kernel) -> None:
    host.run(lambda: kernel.move_in("vf0", pod.path, pod.id, "rdma0"))
    call_too(pod, "rdma0", [f"{number:0>100}" for number in range(400)])  # near the kernel's limit, 64 KiB
    assert len(altnames(pod, "rdma0")) == 400
    host.run(lambda: kernel.move_out(pod.path, pod.id, "rdma0", "vf0"))
    assert altnames(host, "vf0") == set()


@pytest.mark.parametrize("whose", ["vf0", "peer0"])
def test_a_name_is_taken_from_who_has_it_besides_its_own(host: Netns, kernel: Kernel, whose: str) -> None:
    """Check a name that a pod gave to a device before its namespace ended, or that udev gave to the device that is to be
    renamed."""
    host.ip(f"link property add dev {whose} altname ens1v1 altname other")
    host.run(lambda: kernel.rename("vf0", "ens1v1"))
    assert altnames(host, "ens1v1" if whose == "vf0" else whose) == {"other"}
    assert "UP" not in host.links()["ens1v1"]["flags"]


def test_a_parking_name_that_is_another_devices_alternative_is_available(host: Netns, pod: Netns, kernel: Kernel) -> None:
    host.run(lambda: kernel.move_in("vf0", pod.path, pod.id, "rdma0"))
    host.ip("link property add dev peer0 altname ld0000180002")
    host.run(lambda: kernel.move_out(pod.path, pod.id, "rdma0", "ld0000180002"))
    assert "ld0000180002" in host.links()


def test_a_name_that_is_a_devices_own_is_not_taken_from_it(host: Netns, kernel: Kernel) -> None:
    with pytest.raises(KernelError) as caught:
        host.run(lambda: kernel.rename("vf0", "peer0"))
    assert refused(caught.value, errno.EEXIST)
    assert {"vf0", "peer0"} <= set(host.links())


def test_alternative_names_are_set_and_what_is_not_to_be_had_stays_away(host: Netns, kernel: Kernel) -> None:
    host.ip("link property add dev vf0 altname kept altname dropped")
    host.ip("link property add dev peer0 altname taken")
    for _ in range(2):
        host.run(lambda: kernel.set_altnames("vf0", ("kept", "added", "taken", "peer0")))
        assert altnames(host, "vf0") == {"kept", "added"}
    assert altnames(host, "peer0") == {"taken"}


def test_a_name_that_the_pod_has_besides_is_refused_by_the_owners(host: Netns, pod: Netns, kernel: Kernel) -> None:
    pod.ip("link add net1 type veth peer name other")
    pod.ip("link property add dev net1 altname rdma0")
    assert host.run(lambda: kernel.names(pod.path)) == {"lo", "net1", "other", "rdma0"}
    with pytest.raises(KernelError, match=r"EEXIST.*net1"):
        host.run(lambda: kernel.move_in("vf0", pod.path, pod.id, "rdma0"))
    assert "vf0" in host.links()
