"""Test every reason for which a node refuses a container: the error has the reason's code, and the runtime gets no request.

Reasons about central's assignments are in `test_signed`, reasons about daemons that do not answer in `test_fail_closed`.
"""

import re
from pathlib import Path

import grpc
import pytest

from lading.log import Event
from lading.reasons import Reason
from protos.cri.runtime.v1 import api_pb2 as cri
from simnode.cri import CriError
from simnode.nvml import GPU_IS_LOST, Failure, NvmlState
from tests.node.conftest import StartSite
from tests.node.site import Refused, Site, eventually, refusal_of

pytestmark = pytest.mark.node

GPU = "lading.dev/gpus"
VFS = "lading.dev/vfs"

# The reasons that no test of this folder can reach, and why.
NOT_REACHED = {
    Reason.INTERNAL: "an error of our own code",
    Reason.LEDGER_UNAVAILABLE: "tests/faults/test_disk.py fills and removes the ledger's disk",
    Reason.NRI_UNSUPPORTED: "the settings that would lead to it are refused with front_end = nri",
}


def test_every_reason_is_met_by_some_test_of_this_folder() -> None:
    sources = (path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    met = {Reason[name] for source in sources for name in re.findall(r"\bReason\.([A-Z_]+)\b(?!:)", source)}
    assert met == set(Reason) - NOT_REACHED.keys()


# ---- what the annotation says


@pytest.mark.parametrize(
    "annotations",
    [
        pytest.param({GPU: ""}, id="empty"),
        pytest.param({GPU: "0,,1"}, id="comma-too-many"),
        pytest.param({GPU: "0-3"}, id="range"),
        pytest.param({GPU: "1,1"}, id="twice"),
        pytest.param({GPU: "0,GPU-00000001-4c61-6469-6e67-000000001efc"}, id="twice-by-two-names"),
        pytest.param({GPU: "0:memory=8"}, id="no-unit"),
        pytest.param({GPU: "0:core=101"}, id="percent"),
        pytest.param({GPU: "all:core=10"}, id="share-of-all"),
        pytest.param({VFS: "0"}, id="no-vf"),
        pytest.param({"lading.dev/gpu": "0"}, id="misspelt"),
        pytest.param({"lading.dev/gpu-memory": "8Gi"}, id="limit-as-annotation"),
        pytest.param({f"{GPU}.Train": "0"}, id="no-container-name"),
    ],
)
def test_a_malformed_annotation_is_refused(site: Site, annotations: dict[str, str]) -> None:
    refused = site.refused_at_once(annotations)
    assert refused.reason is Reason.ANNOTATION_MALFORMED
    assert refused.code is grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize(
    ("annotations", "reason"),
    [
        pytest.param({GPU: "8"}, Reason.DEVICE_UNKNOWN, id="no-such-index"),
        pytest.param({GPU: "0000:ff:00.0"}, Reason.DEVICE_UNKNOWN, id="no-such-address"),
        pytest.param({GPU: "0", VFS: "mlx5_0"}, Reason.DEVICE_UNKNOWN, id="a-pf-is-the-hosts"),
        pytest.param({GPU: "0", VFS: "17"}, Reason.CAPACITY_EXCEEDED, id="more-than-there-are"),
        pytest.param({GPU: "0:memory=80Gi"}, Reason.CAPACITY_EXCEEDED, id="more-than-it-has"),
        pytest.param({GPU: "0", "lading.dev/policy": "binpack"}, Reason.ANNOTATION_CONFLICT, id="by-hand-and-for-central"),
        pytest.param({"lading.dev/assignment": "{}"}, Reason.FORM_NOT_ACCEPTED, id="by-central"),
    ],
)
def test_devices_that_the_node_cannot_give_are_refused(site: Site, annotations: dict[str, str], reason: Reason) -> None:
    assert site.refused_at_once(annotations).reason is reason
    with site.kubelet.pod("after", annotations={GPU: "0"}) as pod:  # nothing of a refused request is held
        assert site.see(pod.run_container()).gpus == (site.gpu(0),)


@pytest.mark.parametrize("key", ["lading.dev/grant", "cdi.k8s.io/x", "org.systemd.property.DeviceAllow"])
def test_a_pod_with_an_annotation_that_only_the_node_writes_is_refused(site: Site, key: str) -> None:
    with pytest.raises(CriError) as caught:
        site.kubelet.run_pod("smuggles", annotations={GPU: "0", key: "nvidia.com/gpu=all"})
    assert refusal_of(caught.value).reason is Reason.ANNOTATION_RESERVED
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert site.direct.list_pods() == []
    pod = site.kubelet.run_pod("smuggles-later", annotations={GPU: "0"})
    assert site.refused(pod, annotations={key: "nvidia.com/gpu=all"}).reason is Reason.ANNOTATION_RESERVED


def test_a_plain_pod_with_a_grant_annotation_is_refused(site: Site) -> None:
    with site.kubelet.pod("plain") as pod:
        assert site.refused(pod, annotations={"lading.dev/grant": "{}"}).reason is Reason.ANNOTATION_RESERVED


# ---- the pod and its runtime


def test_a_privileged_container_with_devices_is_refused(site: Site) -> None:
    pod = site.kubelet.run_pod("privileged", annotations={GPU: "0"}, privileged=True)
    assert site.refused(pod, privileged=True).reason is Reason.PRIVILEGED


def test_a_container_in_a_user_namespace_is_refused(site: Site) -> None:
    pod = site.kubelet.run_pod("user-namespace", annotations={GPU: "0"})
    pod.config.linux.security_context.namespace_options.userns_options.mode = cri.POD
    assert site.refused(pod).reason is Reason.USER_NAMESPACE


def test_a_container_that_has_a_device_plugins_device_too_is_refused(site: Site) -> None:
    pod = site.kubelet.run_pod("both", annotations={GPU: "0", f"{VFS}.rdma": "1"})
    refused = site.refused(pod, devices=[site.supplied("/dev/nvidia4")])
    assert refused.reason is Reason.DEVICE_PLUGIN_CONFLICT
    assert "/dev/nvidia4" in refused.message
    assert site.refused(pod, "rdma", devices=[site.supplied(site.uverbs(site.vfs[0]))]).reason is Reason.DEVICE_PLUGIN_CONFLICT


def test_an_unsupported_runtime_handler_is_refused(start_site: StartSite) -> None:
    site = start_site("workstation", hooks={"unsupported_handlers": ["run?"]})
    pod = site.kubelet.run_pod("elsewhere", annotations={GPU: "0"}, runtime_handler="runc")
    refused = site.refused(pod)
    assert refused.reason is Reason.RUNTIME_HANDLER
    assert "runc" in refused.message
    with site.kubelet.pod("by-default", annotations={GPU: "0"}) as by_default:
        assert site.see(by_default.run_container()).gpus == (site.gpu(0),)
    with site.kubelet.pod("plain", runtime_handler="runc") as plain:
        assert site.see(plain.run_container()).nodes == frozenset()


# ---- the node


def test_a_container_is_refused_while_its_card_or_driver_is_unhealthy(start_site: StartSite) -> None:
    site = start_site("mig", hooks={"inventory_interval": 1})
    pod = site.kubelet.run_pod("unlucky", annotations={GPU: "1"})

    lost = Failure(status=GPU_IS_LOST, gpu=1)
    NvmlState(profile=site.node.profile, failures=(lost,)).write(site.node.nvml_state)
    site.await_log(site.lading.hooks, Event.DEVICE_UNHEALTHY, site.gpu(1))
    assert site.refused(pod).reason is Reason.DEVICE_UNHEALTHY

    NvmlState(profile=site.node.profile).write(site.node.nvml_state)
    site.await_log(site.lading.hooks, Event.DEVICE_HEALTHY, site.gpu(1))
    nvidiactl = site.node.root / "dev/nvidiactl"
    nvidiactl.rename(site.node.root / "nvidiactl")
    site.await_log(site.lading.hooks, Event.INVENTORY_CHANGED, "/dev/nvidiactl")
    assert site.refused(pod).reason is Reason.DEVICE_NODE_INVALID

    (site.node.root / "nvidiactl").rename(nvidiactl)
    container = site.started(pod)
    assert site.see(container).gpus == (site.gpu(1),)


def test_a_card_whose_memory_a_process_without_a_grant_uses_is_refused(start_site: StartSite) -> None:
    site = start_site("demo-8gpu", hooks={"inventory_interval": 1})
    pod = site.kubelet.run_pod("next", annotations={GPU: "0"})
    lost = Failure(status=GPU_IS_LOST, gpu=7)  # the event of this card says that the state was read
    NvmlState(profile=site.node.profile, used={0: (20_000, 0)}, failures=(lost,)).write(site.node.nvml_state)
    site.await_log(site.lading.hooks, Event.DEVICE_UNHEALTHY, site.gpu(7))
    refused = site.refused(pod)
    assert refused.reason is Reason.DEVICE_DIRTY
    assert "20000 MiB" in refused.message
    NvmlState(profile=site.node.profile).write(site.node.nvml_state)
    container = site.started(pod)
    assert site.see(container).gpus == (site.gpu(0),)


def test_a_container_without_a_name_is_refused(start_site: StartSite) -> None:
    """Check the refusal of such a container. kubelet always sends a name, and the grant is stored under it."""
    site = start_site("workstation")
    pod = site.kubelet.run_pod("unnamed", annotations={GPU: "0"})
    assert site.refused(pod, name="").reason is Reason.CONTAINER_UNNAMED


def test_a_vf_without_its_rdma_device_is_refused(start_site: StartSite) -> None:
    site = start_site(hooks={"inventory_interval": 1})
    vf = site.vfs[2]
    pod = site.kubelet.run_pod("unlucky", annotations={VFS: vf})
    # A driver that is unbound leaves the VF like this.
    (site.node.pci(vf) / "infiniband").rename(site.node.root / "infiniband-of-vf")
    site.await_log(site.lading.hooks, Event.DEVICE_UNHEALTHY, vf)
    assert site.refused(pod).reason is Reason.DEVICE_UNHEALTHY
    by_number = site.kubelet.run_pod("lucky", annotations={VFS: "3"})
    assert site.see(by_number.run_container()).vfs == (site.vfs[0], site.vfs[1], site.vfs[3])


def test_a_container_is_refused_until_the_devices_were_read(start_site: StartSite) -> None:
    site = start_site("workstation", hooks={"inventory_interval": 1})
    pod = site.kubelet.run_pod("early", annotations={GPU: "0"})
    site.lading.hooks.stop()
    dev = site.node.root / "dev"
    dev.rename(site.node.root / "no-dev")
    site.lading.hooks.start()
    assert site.refused(pod).reason is Reason.INVENTORY_UNAVAILABLE
    (site.node.root / "no-dev").rename(dev)
    container = site.started(pod)
    assert site.see(container).gpus == (site.gpu(0),)


def test_a_container_is_refused_until_the_ledger_was_compared_with_the_runtime(start_site: StartSite) -> None:
    site = start_site("workstation", hooks={"runtime_endpoint": "/none/such.sock"})
    refused = site.refused_at_once({GPU: "0"})
    assert refused.reason is Reason.NOT_RECONCILED
    assert refused.code is grpc.StatusCode.UNAVAILABLE  # kubelet tries again, and no one has to do anything


# ---- requests that no kubelet makes


def test_a_container_of_an_unknown_sandbox_is_refused(site: Site) -> None:
    config = cri.PodSandboxConfig(metadata=cri.PodSandboxMetadata(name="ghost", uid="u"), annotations={GPU: "0"})
    request = cri.CreateContainerRequest(pod_sandbox_id="f" * 64, sandbox_config=config)
    with pytest.raises(CriError) as caught:
        site.kubelet.call("CreateContainer", request, cri.CreateContainerResponse)
    assert refusal_of(caught.value).reason is Reason.NOT_RECONCILED


def test_an_unreadable_request_is_refused(site: Site) -> None:
    """Send a request whose second field is no ContainerConfig, and which contains Lading's prefix."""
    with pytest.raises(CriError) as caught:
        site.kubelet.call("CreateContainer", cri.VersionResponse(runtime_name="lading.dev/gpus"), cri.CreateContainerResponse)
    assert refusal_of(caught.value).reason is Reason.REQUEST_UNREADABLE
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT


def test_restoring_a_guarded_pod_is_refused(site: Site) -> None:
    """Call RestorePod, which this containerd does not implement and refuses at the call's headers: if the message follows a
    moment later, containerd's answer is first and is passed on."""

    def restore(text: str) -> CriError:
        with pytest.raises(CriError) as caught:
            site.kubelet.call("RestorePod", cri.VersionResponse(runtime_name=text), cri.VersionResponse)
        return caught.value

    def refused() -> Refused:
        error = restore("lading.dev/gpus")
        assert error.code is not grpc.StatusCode.UNIMPLEMENTED
        return refusal_of(error)

    assert eventually(refused).reason is Reason.CREATED_ANOTHER_WAY
    assert not restore("nobody's").details.startswith("lading")  # any other goes to the runtime
