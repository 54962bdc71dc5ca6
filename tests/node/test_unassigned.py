"""Test `hide_unassigned`: neither an image nor a pod can show ungranted cards; only the node's configuration exempts pods."""

from collections.abc import Mapping

import pytest

from lading.reasons import Reason
from simnode.images import BUSYBOX, CUDA
from simnode.kubelet import Device
from tests.node.conftest import StartSite
from tests.node.site import Site

pytestmark = pytest.mark.node

VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def visible(
    site: Site,
    *,
    namespace: str = "default",
    annotations: Mapping[str, str] | None = None,
    image: str = BUSYBOX,
    env: Mapping[str, str] | None = None,
    devices: tuple[Device, ...] = (),
) -> str | None:
    """Return what a container's main program finds in the variable; None where it is not set."""
    with site.kubelet.pod("seeing", namespace=namespace, annotations=annotations or {}) as pod:
        return pod.run_container(image=image, env=env or {}, devices=devices).env().get(VISIBLE)


@pytest.mark.parametrize("value", ["all", "0", "GPU-00000001-4c61-6469-6e67-000000001efc"])
def test_a_pods_own_value_is_replaced(site: Site, value: str) -> None:
    assert visible(site, env={VISIBLE: value}) == "void"


def test_an_images_value_is_replaced(site: Site) -> None:
    assert visible(site, image=CUDA) == "void"


def test_a_device_plugins_value_is_replaced_on_a_node_without_device_plugins(site: Site) -> None:
    assert visible(site, devices=(site.supplied("/dev/nvidia4"),), env={VISIBLE: site.gpu(0)}) == "void"


def test_an_exempt_namespace_is_left_alone(start_site: StartSite) -> None:
    site = start_site(hooks={"exempt_namespaces": ["gpu-operator"]})
    assert visible(site, namespace="gpu-operator", image=CUDA) == "all"
    assert visible(site, namespace="gpu-operator", env={VISIBLE: "0"}) == "0"
    assert visible(site, image=CUDA) == "void"
    # Also in a pod that has other devices of Lading, which the hook server answers for instead of the proxy.
    assert visible(site, namespace="gpu-operator", annotations={"lading.dev/vfs": "1"}, image=CUDA) == "all"
    assert visible(site, annotations={"lading.dev/vfs": "1"}, image=CUDA) == "void"
    # It exempts from hiding only: what is given there is what the annotation says.
    assert visible(site, namespace="gpu-operator", annotations={"lading.dev/gpus": "1"}, image=CUDA) == "void"


def test_on_a_node_with_device_plugins_their_values_are_kept(start_site: StartSite) -> None:
    site = start_site("mig", hooks={"coexist": True})
    uuids = f"{site.gpu(0)},{site.gpu(1)}"
    assert visible(site, env={VISIBLE: uuids}, image=CUDA) == uuids
    assert visible(site, env={VISIBLE: "all"}) == "void"
    assert visible(site, image=CUDA) == "void"
    with site.kubelet.pod("by-plugin") as pod:
        sight = site.see(pod.run_container(devices=[site.supplied("/dev/nvidia0")], env={VISIBLE: site.gpu(1)}))
        assert sight.nodes == {"/dev/nvidia0"}
    both = site.kubelet.run_pod("both", annotations={"lading.dev/gpus": "1"})
    assert site.refused(both, env={VISIBLE: uuids}).reason is Reason.DEVICE_PLUGIN_CONFLICT


def test_without_hide_unassigned_nothing_is_hidden(start_site: StartSite) -> None:
    site = start_site("mig", hooks={"hide_unassigned": False})
    assert visible(site, image=CUDA) == "all"
    assert visible(site, env={VISIBLE: "1"}) == "1"
    assert visible(site) is None
